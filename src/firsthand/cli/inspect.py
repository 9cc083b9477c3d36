"""The commands that look inside a model: inspect, trace-step.

Owns: what is shown of a checkpoint, a plan and a step.
May not know: how any of it is read or computed.
Read next: `weights/loading.py`, `compute/plan.py`, `compute/fusion.py`.

`inspect` loads no weights. It also shows files of models that we cannot run, and says why not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Annotated, Any

import typer

from firsthand.cli import options
from firsthand.cli.generate import open_llm, read_text
from firsthand.cli.output import in_bytes, print_json, print_table, reported
from firsthand.cli.report import by_shape, op_as_dict, shape_text
from firsthand.errors import FirsthandError, InvalidRequest

KV_BYTES_PER_NUMBER = 2  # float16, the default type of the cache


def inspect(
    model: options.Model,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show the native plan before and after fusion.")
    ] = False,
    tensors: Annotated[
        bool, typer.Option("--tensors", help="List every tensor of the file.")
    ] = False,
    max_context: options.MaxContext = None,
    disabled_rules: options.DisableRule = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what a model is, without loading it."""
    with reported(as_json):
        from firsthand.config import read_environment
        from firsthand.weights.catalogue import resolve
        from firsthand.weights.open import open_checkpoint

        resolved = resolve(model, read_environment())
        with closing(open_checkpoint(resolved.path)) as checkpoint:
            facts = describe(checkpoint, max_context)
            if tensors:
                facts["tensors"] = [_tensor(info) for info in checkpoint.tensors.values()]
            if plan:
                facts["plan"] = describe_plan(checkpoint, max_context, disabled_rules or [])
        facts = {"model": model, "path": str(resolved.path), **facts}
        if as_json:
            print_json(facts)
        else:
            _print_facts(facts)


def trace_step(
    model: options.Model,
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT]", help="The prompt of the step; - reads standard input."),
    ] = "The capital of France is",
    step: Annotated[
        str, typer.Option(help="prompt: the step of the whole prompt; token: of its last token.")
    ] = "prompt",
    executor: options.Executor = "native",
    device: options.Device = "cpu",
    quantization: options.Quantization = "auto",
    threads: options.Threads = None,
    max_context: options.MaxContext = None,
    kv_dtype: options.KvDtype = "float16",
    disabled_rules: options.DisableRule = None,
    attention: options.Attention = None,
    as_json: options.AsJson = False,
) -> None:
    """Run one step and show each operator."""
    given = dict(locals())
    with reported(as_json):
        if step not in ("prompt", "token"):
            raise InvalidRequest("step", f"must be prompt or token, not {step!r}")
        content = read_text(text, "text")
        with open_llm(model, options.loading(given)) as llm:
            ops = llm.trace(content, step=step)
        total_ms = sum(op.ms for op in ops)
        if as_json:
            steps = [op_as_dict(op) for op in ops]
            print_json({"model": model, "step": step, "total_ms": total_ms, "operators": steps})
            return
        rows = [
            (op.name, shape_text(op.shape), f"{op.ms:.3f}", in_bytes(op.num_bytes), op.detail)
            for op in ops
        ]
        print_table(("OPERATOR", "RESULT", "MS", "WEIGHTS", "DETAIL"), rows)
        print("\ntogether:")
        print_table(("OPERATOR", "RESULT", "TIMES", "MS", "WEIGHTS"), by_shape(ops))
        print(f"{total_ms:.2f} ms in {len(ops)} operators")


def describe(checkpoint: Any, max_context: int | None) -> dict[str, Any]:
    """The facts of an opened checkpoint; `problem` says why we cannot run it, or is None."""
    from firsthand.generation.loading import read_spec, read_tokenizer

    facts: dict[str, Any] = {"form": checkpoint.form, "problem": None, "spec": None}
    try:
        spec = read_spec(checkpoint, max_context)
        facts["spec"] = _spec(spec)
        facts["shared"] = list(_shared(checkpoint, spec))
    except InvalidRequest:
        raise
    except FirsthandError as error:
        facts["problem"] = str(error)
        facts["shared"] = []
    facts["architecture"] = _architecture(checkpoint)
    facts["kinds"] = _kinds(checkpoint)
    facts["num_tensors"] = len(checkpoint.tensors)
    facts["num_parameters"] = sum(info.num_elements for info in checkpoint.tensors.values())
    facts["tensor_bytes"] = sum(info.num_bytes for info in checkpoint.tensors.values())
    facts["saved_bytes"] = sum(pair["saved_bytes"] for pair in facts["shared"])
    try:
        tokenizer = read_tokenizer(checkpoint)
        facts["tokenizer"] = {
            "kind": tokenizer.kind,
            "vocab_size": tokenizer.vocab_size,
            "bos_id": tokenizer.bos_id,
            "end_ids": sorted(tokenizer.end_ids),
            "chat_template": tokenizer.chat_template is not None,
        }
    except FirsthandError as error:
        facts["tokenizer"] = {"problem": str(error)}
    facts["memory"] = _memory(facts)
    return facts


def describe_plan(
    checkpoint: Any, max_context: int | None, disabled_rules: Sequence[str]
) -> dict[str, Any]:
    """The plan as recorded, and as fused. Only shapes are needed for it, no weights."""
    from firsthand.compute.fusion import RULES, fuse
    from firsthand.compute.plan import record
    from firsthand.generation.loading import read_spec
    from firsthand.models import families

    spec = read_spec(checkpoint, max_context)
    shapes = {slot.name: slot.shape for slot in families.slots(spec)}
    before = record(families.program(spec).forward, lambda name: (shapes[name][0], shapes[name][1]))
    after = fuse(before, disabled_rules)
    return {
        "rules": [
            {"name": rule.name, "saves": rule.saves, "applied": rule.name not in disabled_rules}
            for rule in RULES
        ],
        "before": [str(step) for step in before],
        "after": [str(step) for step in after],
    }


def _spec(spec: Any) -> dict[str, Any]:
    names = (
        *("architecture", "vocab_size", "num_layers", "width", "num_heads", "num_kv_heads"),
        *("head_size", "ffn_width", "norm_eps", "context_length", "activation", "tied_head"),
    )
    return {name: getattr(spec, name) for name in names} | {"rope": spec.rope.kind}


def _architecture(checkpoint: Any) -> str:
    """The file's own word for it."""
    if checkpoint.form == "gguf":
        return str(checkpoint.metadata.get("general.architecture", "unknown"))
    named = checkpoint.config.get("architectures") or ["unknown"]
    return str(named[0])


def _kinds(checkpoint: Any) -> list[dict[str, Any]]:
    counts: Counter[str] = Counter()
    sizes: defaultdict[str, int] = defaultdict(int)
    for info in checkpoint.tensors.values():
        counts[info.kind] += 1
        sizes[info.kind] += info.num_bytes
    return [
        {"kind": kind, "num_tensors": count, "num_bytes": sizes[kind]}
        for kind, count in counts.most_common()
    ]


def _shared(checkpoint: Any, spec: Any) -> Iterator[dict[str, Any]]:
    """Names that mean a tensor held already: by address in the file, or tied by the model."""
    from firsthand.models import families
    from firsthand.weights.tensor_names import canonical_names

    infos = {
        canonical: checkpoint.tensors[name]
        for name, canonical in canonical_names(checkpoint.tensors, checkpoint.form).items()
    }
    first_at: dict[tuple[str, int], str] = {}
    for name, info in infos.items():
        other = first_at.setdefault((info.file, info.offset), name)
        if other != name and info.num_bytes:
            yield {"name": name, "is": other, "saved_bytes": info.num_bytes}
    for slot in families.slots(spec):
        if slot.tied_to in infos and slot.name not in infos:
            saved_bytes = infos[slot.tied_to].num_bytes
            yield {"name": slot.name, "is": slot.tied_to, "saved_bytes": saved_bytes}


def _memory(facts: dict[str, Any]) -> dict[str, int]:
    """An estimate: the weights as the file has them, and the cache of one full sequence."""
    estimate = {"weights_bytes": facts["tensor_bytes"]}
    if spec := facts["spec"]:
        per_token = 2 * spec["num_layers"] * spec["num_kv_heads"] * spec["head_size"]
        estimate["kv_bytes_per_token"] = per_token * KV_BYTES_PER_NUMBER
        estimate["kv_bytes"] = estimate["kv_bytes_per_token"] * spec["context_length"]
    return estimate


def _tensor(info: Any) -> dict[str, Any]:
    return {
        "name": info.name,
        "shape": list(info.shape),
        "kind": info.kind,
        "num_bytes": info.num_bytes,
    }


def _print_facts(facts: dict[str, Any]) -> None:
    print(f"path          {facts['path']} ({facts['form']})")
    if facts["problem"]:
        print(f"architecture  {facts['architecture']}")
        print(f"cannot run    {facts['problem']}")
    else:
        _print_spec(facts["spec"])
    _print_tokenizer(facts["tokenizer"])
    print(f"parameters    {facts['num_parameters']:,} in {facts['num_tensors']} tensors\n")
    print_table(
        ("KIND", "TENSORS", "SIZE"),
        [
            (row["kind"], str(row["num_tensors"]), in_bytes(row["num_bytes"]))
            for row in facts["kinds"]
        ],
    )
    for pair in facts["shared"]:
        print(
            f"shared        {pair['name']} is {pair['is']}: {in_bytes(pair['saved_bytes'])} saved"
        )
    print(f"\nmemory        weights {in_bytes(facts['memory']['weights_bytes'])}")
    if "kv_bytes" in facts["memory"]:
        each = in_bytes(facts["memory"]["kv_bytes_per_token"])
        whole = in_bytes(facts["memory"]["kv_bytes"])
        print(f"              KV {each} per token, {whole} for one full context (float16)")
    if "tensors" in facts:
        print()
        rows = [
            (row["name"], shape_text(tuple(row["shape"])), row["kind"], in_bytes(row["num_bytes"]))
            for row in facts["tensors"]
        ]
        print_table(("TENSOR", "SHAPE", "KIND", "SIZE"), rows)
    if "plan" in facts:
        _print_plan(facts["plan"])


def _print_spec(spec: dict[str, Any]) -> None:
    print(
        f"architecture  {spec['architecture']}: {spec['num_layers']} layers, width "
        f"{spec['width']}, {spec['num_heads']} heads over {spec['num_kv_heads']} of size "
        f"{spec['head_size']}, feed-forward {spec['ffn_width']} ({spec['activation']})"
    )
    head = "tied to the embedding" if spec["tied_head"] else "a matrix of its own"
    print(f"vocabulary    {spec['vocab_size']} tokens; the head is {head}")
    print(f"context       {spec['context_length']} tokens, RoPE {spec['rope']}")


def _print_tokenizer(tokenizer: dict[str, Any]) -> None:
    if "problem" in tokenizer:
        print(f"tokenizer     cannot be used: {tokenizer['problem']}")
        return
    ends = ", ".join(map(str, tokenizer["end_ids"])) or "none"
    template = "a chat template" if tokenizer["chat_template"] else "no chat template"
    print(
        f"tokenizer     {tokenizer['kind']}, {tokenizer['vocab_size']} tokens, "
        f"ends {ends}, {template}"
    )


def _print_plan(plan: dict[str, Any]) -> None:
    for title in ("before", "after"):
        print(f"\nplan {title} fusion, {len(plan[title])} steps:")
        for line in plan[title]:
            print(f"  {line}")
    print("\nrules:")
    for rule in plan["rules"]:
        state = "" if rule["applied"] else " (left out)"
        print(f"  {rule['name']}{state} saves {rule['saves']}")
