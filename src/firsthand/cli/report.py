"""Where time and memory went, on one page for a person.

Owns: the layout of the report and of a traced step.
May not know: how anything is measured; the values come from `generation`.
Read next: `generation/report.py`.

Loaded by a command when it has something to report, so it may import what it shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from firsthand.cli.budget_facts import budget_lines
from firsthand.cli.output import in_bytes, print_table, say, table
from firsthand.compute.buckets import CompileFacts
from firsthand.compute.executor import OpTime, SwapFacts
from firsthand.generation.completion import Completion
from firsthand.generation.loading import LoadedModel
from firsthand.weights.loading import LoadReport


def print_report(done: Completion, loaded: LoadedModel) -> None:
    """How one generation ended, its stages, and what holds the memory, to standard error."""
    report, load = done.report, done.report.load
    say("")
    say(
        f"load      {load.total_ms:9.1f} ms   open {load.open_ms:.1f}, tokenizer "
        f"{load.tokenizer_ms:.1f}, executor {load.executor_ms:.1f}, weights "
        f"{load.weights_ms:.1f}, plan {load.prepare_ms:.1f}"
    )
    say(f"tokenize  {report.tokenize_ms:9.1f} ms   {report.num_prompt_tokens} tokens")
    found = f", {report.num_cached_tokens} tokens found" if report.num_cached_tokens else ""
    say(f"prompt    {report.prompt_ms:9.1f} ms   {_rate(report.prompt_per_second)}{found}")
    say(
        f"output    {report.predicted_ms:9.1f} ms   {_rate(report.predicted_per_second)}, "
        f"{report.num_tokens} tokens{_spread(report.token_ms)}"
    )
    say(f"forward   {report.forward_ms:9.1f} ms   in {report.num_steps} steps")
    say(f"sample    {report.sample_ms:9.1f} ms")
    if report.num_guesses:
        say(f"guessed   {report.num_guesses:9} tokens, {report.num_accepted} of them right")
    say(f"detokenize{report.detokenize_ms:9.1f} ms")
    if loaded.swapping is not None:
        say(f"swapped   {swapping_line(loaded.swapping)}")
    if loaded.compiled_steps is not None:
        say(f"compiled  {compiled_line(loaded.compiled_steps)}")
    _print_memory(done, loaded)
    cause = "" if done.finish.cause is None else f" ({done.finish.cause!r})"
    say(f"ended     {done.finish_reason}{cause}, seed {done.seed}")


def swapping_line(facts: SwapFacts) -> str:
    """`12 of 30 shards, 61.2 MiB a step; 1.2 GiB read since the load, waited 310 ms for them`."""
    return (
        f"{facts.num_swapped} of {facts.num_shards} shards, {in_bytes(facts.step_bytes)} a step; "
        f"{in_bytes(facts.read_bytes)} read since the load, waited {facts.wait_ms:.0f} ms for them"
    )


def compiled_line(facts: CompileFacts) -> str:
    """`3 of 5 steps; 128 rows: 3 steps, 40 rows padded, 9.1 s to compile`: since the load."""
    parts = [f"{facts.num_hits} of {facts.num_hits + facts.num_misses} steps"]
    parts += [
        f"{bucket.num_rows} rows: {bucket.num_hits} steps, {bucket.num_padded_rows} rows padded, "
        f"{bucket.compile_ms / 1e3:.1f} s to compile"
        for bucket in facts.buckets
        if bucket.num_hits
    ]
    return "; ".join(parts)


def _print_memory(done: Completion, loaded: LoadedModel) -> None:
    """Its parts do not add up to the peak: a page counts when it is touched, and code counts."""
    memory = done.report.memory
    held = formats_held(loaded.weights)
    # The last token was never read back, unless there is none.
    num_stored = done.usage.total_tokens - min(1, done.usage.completion_tokens)
    reserved = in_bytes(memory.kv_reserved_bytes)
    say(f"memory    {in_bytes(memory.peak_rss_bytes):>12}   peak resident memory")
    say(f"  weights {in_bytes(memory.weights_bytes):>12}   {held}")
    say(
        f"  KV      {in_bytes(memory.kv_used_bytes):>12}   {num_stored} tokens used of "
        f"{loaded.spec.context_length}; reserved: {reserved} in {loaded.budget.num_blocks} blocks"
    )
    say(f"  scratch {in_bytes(memory.scratch_bytes):>12}")
    for line in budget_lines(loaded.budget):
        say(line)


def formats_held(weights: LoadReport) -> str:
    """How many tensors are held in each format: `211 × int4/32+min, 61 × float32`."""
    formats = Counter(tensor.format for tensor in weights.tensors).most_common()
    return ", ".join(f"{count} × {name}" for name, count in formats)


def print_shapes(ops: Sequence[OpTime]) -> None:
    """The tensors of one step, equal ones counted, to standard error."""
    say("\none step over the prompt:")
    for line in table(("OPERATOR", "RESULT", "TIMES", "MS", "READS"), by_shape(ops)):
        say(line)


def print_step(ops: Sequence[OpTime]) -> None:
    """Each operator of one step in order, then equal ones together, to standard output."""
    rows = [
        (op.name, shape_text(op.shape), f"{op.ms:.3f}", in_bytes(op.num_bytes), op.detail)
        for op in ops
    ]
    print_table(("OPERATOR", "RESULT", "MS", "READS", "DETAIL"), rows)
    print("\ntogether:")
    print_table(("OPERATOR", "RESULT", "TIMES", "MS", "READS"), by_shape(ops))
    print(f"{sum(op.ms for op in ops):.2f} ms in {len(ops)} operators")


def by_shape(ops: Sequence[OpTime]) -> list[tuple[str, str, str, str, str]]:
    """Rows (operator, shape, how often, milliseconds, bytes), in order of first appearance."""
    sums: dict[tuple[str, tuple[int, ...]], tuple[int, float, int]] = {}
    for op in ops:
        count, ms, num_bytes = sums.get((op.name, op.shape), (0, 0.0, 0))
        sums[op.name, op.shape] = (count + 1, ms + op.ms, num_bytes + op.num_bytes)
    return [
        (name, shape_text(shape), str(count), f"{ms:.2f}", in_bytes(num_bytes))
        for (name, shape), (count, ms, num_bytes) in sums.items()
    ]


def op_as_dict(op: OpTime) -> dict[str, object]:
    return {
        "name": op.name,
        "detail": op.detail,
        "shape": list(op.shape),
        "ms": op.ms,
        "num_bytes": op.num_bytes,
        "num_macs": op.num_macs,
    }


def shape_text(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def _rate(per_second: float | None) -> str:
    return "no rate" if per_second is None else f"{per_second:.1f} tok/s"


def _spread(token_ms: Sequence[float]) -> str:
    if not token_ms:
        return ""
    middle = sorted(token_ms)[len(token_ms) // 2]
    return f", each {min(token_ms):.1f} to {max(token_ms):.1f}, median {middle:.1f}"
