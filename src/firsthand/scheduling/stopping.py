"""When a sequence ends, and for which one reason.

Owns: the order of the reasons, and the repetition guard.
May not know: text (stop strings are found by `generation`), blocks, arrays.
Read next: `scheduler.py`, the only caller.

The first that holds after a new token is the reason:

    1  END_TOKEN    the token is one of the model's, unless `ignore_end`      ┐ not before
    2  STOP_ID      the token is one of the request's                         ┘ `min_tokens`
    3  REPETITION   the guard saw the same run too often
    4  LENGTH       `max_tokens` new tokens
    5  CONTEXT      prompt and new tokens fill the context
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens

from firsthand.request import Finish, FinishReason, RepetitionGuard, StopRules


def finish_after(
    rules: StopRules, known: Tokens[int], num_prompt_tokens: int, context_length: int
) -> Finish | None:
    """The finish that the last of the `known` tokens brings, or None: the sequence goes on."""
    token_id = known[-1]
    num_new = len(known) - num_prompt_tokens
    if num_new >= rules.min_tokens:
        if token_id in rules.end_token_ids and not rules.ignore_end:
            return Finish(FinishReason.END_TOKEN, token_id)
        if token_id in rules.stop_token_ids:
            return Finish(FinishReason.STOP_ID, token_id)
    if rules.repetition is not None:
        run = repeated_run(known, num_new, rules.repetition)
        if run is not None:
            return Finish(FinishReason.REPETITION, run)
    if num_new >= rules.max_tokens:
        return Finish(FinishReason.LENGTH, rules.max_tokens)
    if len(known) >= context_length:
        return Finish(FinishReason.CONTEXT, context_length)
    return None


def repeated_run(known: Tokens[int], num_new: int, guard: RepetitionGuard) -> int | None:
    """Length of the shortest run that the last `num_new` tokens end with `guard.times` times.

    A tail of run · times tokens repeats with period `run` exactly when each of its tokens equals
    the one `run` places before. The comparison walks back from the end and leaves at the first
    difference, so on text that does not repeat it costs about one look per run length.
    """
    end = len(known)
    for run in range(1, guard.max_run + 1):
        length = run * guard.times
        if length > num_new:
            return None
        first = end - length + run
        if all(known[i] == known[i - run] for i in range(end - 1, first - 1, -1)):
            return run
    return None
