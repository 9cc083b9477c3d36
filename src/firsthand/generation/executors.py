"""What computes a model: the executor that the options ask for, and the adapters that it gets.

Owns: how an option becomes an argument of an executor.
May not know: files of models, how an executor computes.
Read next: `loading.py`, which fills one with weights; `compute/executor.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from firsthand.compute.buckets import check_buckets
from firsthand.compute.executor import Executor
from firsthand.config import Environment
from firsthand.errors import InvalidRequest
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.report import AdapterFacts
from firsthand.weights.adapters import open_adapter
from firsthand.weights.checkpoint import Slot
from firsthand.weights.verifying import sums_of, verified


def new_executor(options: LoadOptions, environment: Environment) -> Executor:
    """Only the chosen executor is imported: torch is an extra, and slow to start."""
    if options.executor == "native":
        from firsthand.compute.native.executor import NativeExecutor

        return NativeExecutor(
            threads=environment.threads if options.threads is None else options.threads,
            disabled_rules=options.disabled_rules,
            isa=environment.isa or "",
        )
    if options.executor == "triton":
        from firsthand.compute.triton.executor import TritonExecutor
        from firsthand.compute.triton.graphs import DEFAULT_GRAPHS

        sizes = options.compile_buckets
        return TritonExecutor(
            device=options.device,
            buckets=check_buckets(DEFAULT_GRAPHS if sizes is None else sizes)
            if options.compile
            else (),
            disabled_rules=options.disabled_rules,
            deterministic=options.deterministic,
        )
    try:
        from firsthand.compute.torch.executor import TorchExecutor
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        message = "'torch' needs the extra: pip install 'firsthand[torch]'"
        raise InvalidRequest("executor", message) from None
    return TorchExecutor(
        device=options.device,
        attention=options.attention or "fast",
        buckets=check_buckets(options.compile_buckets) if options.compile else (),
        deterministic=options.deterministic,
    )


def device_free_bytes(executor: str, device: str) -> int | None:
    """What a card would still give, whose memory holds all that the executor has; None: the memory
    is the machine's, or nobody can say."""
    if executor != "triton" or device == "cpu":
        return None
    from firsthand.compute.triton.memory import free_bytes

    return free_bytes(device)


def add_adapters(
    executor: Executor, slots: Sequence[Slot], options: LoadOptions, environment: Environment
) -> dict[str, AdapterFacts]:
    """Their matrices are counted with the weights, what their rows need with the scratch."""
    found: dict[str, AdapterFacts] = {}
    for name, folder in (options.lora or {}).items():
        with verified(Path(folder), sums_of(environment), trusted=environment.trusted_keys):
            adapter = open_adapter(Path(folder), slots)
        executor.add_adapter(name, adapter.factors)
        found[name] = AdapterFacts(adapter.sha256, adapter.rank, adapter.num_bytes)
    return found
