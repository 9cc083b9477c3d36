"""What a model is, on one page for a person and as one object for a program.

Owns: the layout of what `inspect` shows, and the keys of its JSON.
May not know: where a fact comes from.
Read next: `generation/inspection.py`.

Loaded by the command when it runs, so it may import what it shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from firsthand.cli.output import in_bytes, print_table
from firsthand.cli.report import shape_text
from firsthand.generation.inspection import KV_TYPE, Inspection, PlanFacts, TokenizerFacts
from firsthand.models.spec import ModelSpec

SPEC_NAMES = (
    *("architecture", "vocab_size", "num_layers", "width", "num_heads", "num_kv_heads"),
    *("head_size", "ffn_width", "norm_eps", "context_length", "activation", "tied_head"),
)


def as_dict(found: Inspection, tensors: bool) -> dict[str, object]:
    """Plain values for JSON. `tensors`: with a list of all of them."""
    facts: dict[str, object] = {
        "path": str(found.path),
        "form": found.form,
        "architecture": found.architecture,
        "problem": found.problem,
        "spec": None if found.spec is None else _spec(found.spec),
        "tokenizer": _tokenizer(found),
        "num_tensors": len(found.tensors),
        "num_parameters": found.num_parameters,
        "tensor_bytes": found.tensor_bytes,
        "kinds": [asdict(row) for row in found.kinds],
        "shared": [
            {"name": tied.name, "is": tied.target, "saved_bytes": tied.saved_bytes}
            for tied in found.shared
        ],
        "saved_bytes": found.saved_bytes,
        "memory": {
            "weights_bytes": found.tensor_bytes,
            "kv_bytes_per_token": found.kv_bytes_per_token,
            "kv_bytes": found.kv_bytes,
        },
    }
    if tensors:
        facts["tensors"] = [
            {
                "name": info.name,
                "shape": list(info.shape),
                "kind": info.kind,
                "num_bytes": info.num_bytes,
            }
            for info in found.tensors
        ]
    if found.plan is not None:
        facts["plan"] = asdict(found.plan)
    return facts


def print_facts(found: Inspection, tensors: bool, all_layers: bool) -> None:
    """`tensors`: with a table of all of them. `all_layers`: with plans of the same layer again."""
    print(f"path          {found.path} ({found.form})")
    if found.spec is None:
        print(f"architecture  {found.architecture}")
        print(f"cannot run    {found.problem}")
    else:
        _print_spec(found.spec)
    _print_tokenizer(found.tokenizer, found.tokenizer_problem)
    print(f"parameters    {found.num_parameters:,} in {len(found.tensors)} tensors\n")
    print_table(
        ("KIND", "TENSORS", "SIZE"),
        [(row.kind, str(row.num_tensors), in_bytes(row.num_bytes)) for row in found.kinds],
    )
    for tied in found.shared:
        print(f"shared        {tied.name} is {tied.target}: {in_bytes(tied.saved_bytes)} saved")
    print(f"\nmemory        weights {in_bytes(found.tensor_bytes)}")
    if found.kv_bytes_per_token is not None and found.kv_bytes is not None:
        each, whole = in_bytes(found.kv_bytes_per_token), in_bytes(found.kv_bytes)
        print(f"              KV {each} per token, {whole} for one full context ({KV_TYPE})")
    if tensors:
        print()
        rows = [
            (info.name, shape_text(info.shape), info.kind, in_bytes(info.num_bytes))
            for info in found.tensors
        ]
        print_table(("TENSOR", "SHAPE", "KIND", "SIZE"), rows)
    if found.plan is not None:
        _print_plan(found.plan, all_layers)


def _spec(spec: ModelSpec) -> dict[str, object]:
    return {name: getattr(spec, name) for name in SPEC_NAMES} | {"rope": spec.rope.kind}


def _tokenizer(found: Inspection) -> dict[str, object]:
    if found.tokenizer is None:
        return {"problem": found.tokenizer_problem}
    return asdict(found.tokenizer)


def _print_spec(spec: ModelSpec) -> None:
    print(
        f"architecture  {spec.architecture}: {spec.num_layers} layers, width {spec.width}, "
        f"{spec.num_heads} heads over {spec.num_kv_heads} of size {spec.head_size}, "
        f"feed-forward {spec.ffn_width} ({spec.activation})"
    )
    head = "tied to the embedding" if spec.tied_head else "a matrix of its own"
    print(f"vocabulary    {spec.vocab_size} tokens; the head is {head}")
    print(f"context       {spec.context_length} tokens, RoPE {spec.rope.kind}")


def _print_tokenizer(tokenizer: TokenizerFacts | None, problem: str | None) -> None:
    if tokenizer is None:
        print(f"tokenizer     cannot be used: {problem}")
        return
    ends = ", ".join(map(str, tokenizer.end_ids)) or "none"
    template = "a chat template" if tokenizer.has_chat_template else "no chat template"
    print(f"tokenizer     {tokenizer.kind}, {tokenizer.vocab_size} tokens, ends {ends}, {template}")


def _print_plan(plan: PlanFacts, all_layers: bool) -> None:
    for title, lines in (("before", plan.before), ("after", plan.after)):
        print(f"\nplan {title} fusion, {len(lines)} operators:")
        for line in lines if all_layers else collapsed(lines):
            print(f"  {line}")
    print("\nrules:")
    for rule in plan.rules:
        state = "" if rule.applied else " (left out)"
        print(f"  {rule.name}{state} saves {rule.saves}")


LAYER = re.compile(r"\blayers?[. ](\d+)\b")  # in a weight's name, or in an operator's note
VALUE = re.compile(r"\bv(\d+)\b")


def collapsed(lines: Sequence[str]) -> Iterator[str]:
    """A plan in which a run of layers that differ in numbers alone is shown by its first."""
    starts: list[int] = []  # of each layer, by its number
    for at, line in enumerate(lines):
        named = LAYER.search(line)
        if named is not None and int(named[1]) == len(starts):
            starts.append(at)
    # What follows the last layer names none: it is taken to be as long as the one before it.
    size = starts[-1] - starts[-2] if len(starts) > 1 else 0
    ends = [*starts[1:], starts[-1] + size] if starts else []
    layers = [lines[start:end] for start, end in zip(starts, ends, strict=True)]
    yield from lines[: starts[0]] if layers else lines
    first = 0
    while first < len(layers):
        last = first
        while last + 1 < len(layers) and _alike(layers[first], layers[last + 1]):
            last += 1
        yield from layers[first]
        if last > first:
            yield (
                f"layers {first + 1} … {last} alike" if last > first + 1 else f"layer {last} alike"
            )
        first = last + 1
    yield from lines[ends[-1] :] if layers else ()


def _alike(one: Sequence[str], other: Sequence[str]) -> bool:
    return _without_numbers(one) == _without_numbers(other)


def _without_numbers(layer: Sequence[str]) -> list[str]:
    """Operators with no layer's number, and with values counted from the layer's first one."""
    first = next((int(number) for line in layer for number in VALUE.findall(line)), 0)
    return [
        VALUE.sub(lambda found: f"v{int(found[1]) - first}", LAYER.sub("layer", line))
        for line in layer
    ]
