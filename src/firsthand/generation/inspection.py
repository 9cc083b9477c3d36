"""What a model is, without loading it.

Owns: the facts of a checkpoint, of a spec and of a plan, as frozen values.
May not know: how they are shown.
Read next: `loading.py`, which does the rest of the way.

Models that we cannot run are described too: `spec` is then None, and `problem` says why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

from firsthand.compute.fusion import RULES, fuse
from firsthand.compute.plan import record
from firsthand.config import read_environment
from firsthand.errors import FirsthandError, InvalidRequest
from firsthand.generation.reading import read_spec, read_tokenizer
from firsthand.memory.budget import kv_bytes_per_token
from firsthand.models import families
from firsthand.models.spec import ModelSpec
from firsthand.values import dataclass
from firsthand.weights.catalogue import resolve
from firsthand.weights.checkpoint import Checkpoint, TensorInfo
from firsthand.weights.loading import TiedTensor
from firsthand.weights.open import open_checkpoint
from firsthand.weights.tensor_names import canonical_names

KV_TYPE = "int16"  # the default type of the cache


@dataclass(frozen=True, slots=True)
class KindSum:
    """The tensors of one number format together."""

    kind: str
    num_tensors: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    kind: str
    vocab_size: int
    bos_id: int | None
    end_ids: tuple[int, ...]  # sorted
    has_chat_template: bool


@dataclass(frozen=True, slots=True)
class RuleState:
    """One fusion rule, what it saves, and whether it was applied."""

    name: str
    saves: str
    applied: bool


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """The native plan, one line per operator."""

    rules: tuple[RuleState, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """A model as it lies on the disk.

    `architecture` is the file's own word. `spec` is None when we cannot run the model, and
    `problem` then says why; likewise `tokenizer` and `tokenizer_problem`. `shared` are names that
    mean a tensor held already. `plan` is None when it was not asked for or there is no spec.
    """

    path: Path
    form: Literal["safetensors", "gguf"]
    architecture: str
    spec: ModelSpec | None
    problem: str | None
    tokenizer: TokenizerFacts | None
    tokenizer_problem: str | None
    tensors: tuple[TensorInfo, ...]
    kinds: tuple[KindSum, ...]  # the most tensors first
    shared: tuple[TiedTensor, ...]  # name, target, saved_bytes
    plan: PlanFacts | None

    @property
    def num_parameters(self) -> int:
        return sum(info.num_elements for info in self.tensors)

    @property
    def tensor_bytes(self) -> int:
        """What the weights take in the file."""
        return sum(info.num_bytes for info in self.tensors)

    @property
    def saved_bytes(self) -> int:
        return sum(tied.saved_bytes for tied in self.shared)

    @property
    def kv_bytes_per_token(self) -> int | None:
        """Keys and values of one token in float16."""
        if self.spec is None:
            return None
        return kv_bytes_per_token(
            self.spec.num_layers, self.spec.num_kv_heads, self.spec.head_size, KV_TYPE
        )

    @property
    def kv_bytes(self) -> int | None:
        """Keys and values of one full context in float16."""
        if self.spec is None or self.kv_bytes_per_token is None:
            return None
        return self.spec.context_length * self.kv_bytes_per_token


def inspect_model(
    model: str | Path,
    max_context: int | None = None,
    *,
    with_plan: bool = False,
    disabled_rules: Collection[str] = (),
) -> Inspection:
    """Describe a model by its name, path or hub id; nothing is fetched, no weight is read.

    Raises ModelNotFound, CheckpointError or UnsupportedModel when the file cannot be opened at
    all, InvalidRequest for `max_context` or a rule that does not exist.
    """
    resolved = resolve(str(model), read_environment())
    with closing(open_checkpoint(resolved.path)) as checkpoint:
        spec, problem = _spec(checkpoint, max_context)
        tokenizer, tokenizer_problem = _tokenizer(checkpoint)
        return Inspection(
            path=resolved.path,
            form=checkpoint.form,
            architecture=_architecture(checkpoint),
            spec=spec,
            problem=problem,
            tokenizer=tokenizer,
            tokenizer_problem=tokenizer_problem,
            tensors=tuple(checkpoint.tensors.values()),
            kinds=_kinds(checkpoint),
            shared=() if spec is None else tuple(_shared(checkpoint, spec)),
            plan=_plan(spec, disabled_rules) if with_plan and spec is not None else None,
        )


def _spec(checkpoint: Checkpoint, max_context: int | None) -> tuple[ModelSpec | None, str | None]:
    try:
        return read_spec(checkpoint, max_context), None
    except InvalidRequest:
        raise
    except FirsthandError as error:
        return None, str(error)


def _tokenizer(checkpoint: Checkpoint) -> tuple[TokenizerFacts | None, str | None]:
    try:
        tokenizer = read_tokenizer(checkpoint)
    except FirsthandError as error:
        return None, str(error)
    facts = TokenizerFacts(
        kind=tokenizer.kind,
        vocab_size=tokenizer.vocab_size,
        bos_id=tokenizer.bos_id,
        end_ids=tuple(sorted(tokenizer.end_ids)),
        has_chat_template=tokenizer.chat_template is not None,
    )
    return facts, None


def _architecture(checkpoint: Checkpoint) -> str:
    if checkpoint.form == "gguf":
        return str(checkpoint.metadata.get("general.architecture", "unknown"))
    named = checkpoint.config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else "unknown"


def _kinds(checkpoint: Checkpoint) -> tuple[KindSum, ...]:
    sizes: defaultdict[str, list[int]] = defaultdict(list)
    for info in checkpoint.tensors.values():
        sizes[info.kind].append(info.num_bytes)
    sums = [KindSum(kind, len(of_kind), sum(of_kind)) for kind, of_kind in sizes.items()]
    return tuple(sorted(sums, key=lambda row: -row.num_tensors))


def _shared(checkpoint: Checkpoint, spec: ModelSpec) -> Iterator[TiedTensor]:
    """By address in the file, or tied by the model."""
    family = families.family(spec)
    layout = family.gguf_layout if checkpoint.form == "gguf" else None
    infos = {
        canonical: checkpoint.tensors[name]
        for name, canonical in canonical_names(checkpoint.tensors, layout).items()
    }
    first_at: dict[tuple[str, int], str] = {}
    for name, info in infos.items():
        other = first_at.setdefault((info.file, info.offset), name)
        if other != name and info.num_bytes:
            yield TiedTensor(name, other, info.num_bytes)
    for slot in family.slots(spec):
        if slot.tied_to in infos and slot.name not in infos:
            yield TiedTensor(slot.name, slot.tied_to, infos[slot.tied_to].num_bytes)


def _plan(spec: ModelSpec, disabled_rules: Collection[str]) -> PlanFacts:
    """As recorded, and as fused. Only shapes are needed for it."""
    shapes = {slot.name: slot.shape for slot in families.slots(spec)}
    before = record(families.program(spec).forward, lambda name: (shapes[name][0], shapes[name][1]))
    after = fuse(before, disabled_rules)
    return PlanFacts(
        rules=tuple(
            RuleState(rule.name, rule.saves, rule.name not in disabled_rules) for rule in RULES
        ),
        before=tuple(str(op) for op in before),
        after=tuple(str(op) for op in after),
    )
