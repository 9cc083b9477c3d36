"""Who guesses for a loaded model: prompt lookup, or its draft with an engine's parts of its own.

Owns: from options to a `Speculation`.
May not know: how a guess is made, or judged.
Read next: `engine/guessing/speculation.py`; `assembly.py`, which asks.
"""

from __future__ import annotations

from collections.abc import Callable

from firsthand.compute.executor import Executor
from firsthand.engine.guessing.config import guess_config
from firsthand.engine.guessing.draft_model import DraftLimits, DraftModel
from firsthand.engine.guessing.guesser import Guesser
from firsthand.engine.guessing.lookup import PromptLookup
from firsthand.engine.guessing.payoff import Payoff
from firsthand.engine.guessing.speculation import Speculation
from firsthand.engine.readings import Sample
from firsthand.engine.runner import ModelRunner
from firsthand.generation.loading import LoadedModel
from firsthand.kvcache.blocks import BlockPool


def speculation_of(
    loaded: LoadedModel,
    clock: Callable[[], float],
    sampler_of: Callable[[Executor], Sample],
) -> Speculation | None:
    """None where nothing is to be guessed."""
    config = guess_config(loaded.options.speculative_config)
    if config is None:
        return None
    guesser: Guesser
    if loaded.draft is None:
        guesser = PromptLookup(config.prompt_lookup_min, config.prompt_lookup_max)
    else:
        guesser = _draft_model(loaded.draft, loaded.limits.vocab_size, clock, sampler_of)
    return Speculation(guesser, Payoff() if config.adaptive else None, clock)


def _draft_model(
    draft: LoadedModel,
    vocab_size: int,
    clock: Callable[[], float],
    sampler_of: Callable[[Executor], Sample],
) -> DraftModel:
    limits = draft.limits
    sample = sampler_of(draft.executor)
    runner = ModelRunner(draft.executor, draft.store, limits.vocab_size, sample, clock)
    return DraftModel(
        runner,
        BlockPool(draft.budget.num_blocks, draft.budget.block_size),
        DraftLimits(
            limits.context_length,
            limits.max_step_tokens,
            limits.max_sequences,
            min(vocab_size, limits.vocab_size),
        ),
    )
