"""An adapter as peft writes it: a few thin matrices that change a model's own.

Owns: which adapters are read, whose weight each pair of matrices changes, the scale.
May not know: executors, requests, who has which adapter.
Read next: `../quant/low_rank.py` (what comes of it), `compute/ops.py` (`linear`, where it is used).

    FOLDER/adapter_config.json          peft_type LORA, r, lora_alpha, …
    FOLDER/adapter_model.safetensors    base_model.model.MODULE.lora_A.weight (r, K), lora_B (N, r)

Which modules are changed is told by the tensors; the configuration tells the scale, and what else
the adapter would ask of a model. What we do not compute is refused by name. A module that our model
has in parts (a joined projection) gives each of them its rows of B. The experts of a layer come one
by one, or as the stacked parameters that transformers has them in (`target_parameters`):

    base_model.model.….experts.[base_layer.]lora_A.weight (E · r, K), lora_B (N, r · E)

whose place tells the nesting of peft and not the parameter; the shapes do. Everything is float32
here. Source: the package peft, 0.21.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from firsthand.errors import CheckpointError, ModelNotFound, UnsupportedModel
from firsthand.files import parse_json_object, path_inside, read_whole
from firsthand.models.fields import Fields
from firsthand.quant.formats import decode
from firsthand.quant.low_rank import LowRank
from firsthand.values import dataclass
from firsthand.weights.checkpoint import Checkpoint, Slot, TensorInfo
from firsthand.weights.safetensors import open_safetensors
from firsthand.weights.sources import FileSource, held_format

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
MAX_RANK: Final = 512
_MAX_CONFIG_BYTES = 4 << 20
_MAX_CONFIG_ITEMS = 1 << 17
_KINDS = ("F32", "F16", "BF16")
_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight", re.ASCII)
_STACKED = re.compile(r"model\.layers\.([0-9]{1,6})\.\w+\.experts(\.base_layer)?", re.ASCII)
_EXPERT = re.compile(r"model\.layers\.([0-9]{1,6})\.\w+\.experts\.[0-9]+\.\w+\.weight", re.ASCII)
_PATTERN = re.compile(r"\^?[A-Za-z0-9_.]+", re.ASCII)

T = TypeVar("T")

# What says nothing about the result: how the adapter was trained, or where it came from.
_HARMLESS = frozenset(
    (
        *("task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
        *("inference_mode", "lora_dropout", "layers_to_transform", "layers_pattern"),
        *("exclude_modules", "target_modules", "megatron_core", "qalora_group_size"),
        *("eva_config", "lora_ga_config", "ensure_weight_tying", "runtime_config"),
    )
)
_READ = frozenset(
    (
        *("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias"),
        *("init_lora_weights", "target_parameters"),
    )
)
# Beginnings that leave the model's own weights as they were.
_INIT_KEEPS_WEIGHTS = (True, False, None, "gaussian", "orthogonal", "eva", "lora_ga")


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """What it adds to each weight, by the weight's canonical name. `sha256` is of the matrices: two
    adapters of one are the same, whatever they are called."""

    factors: tuple[LowRank, ...]
    sha256: str
    rank: int  # the largest

    @property
    def num_bytes(self) -> int:
        """Factors that parts of one module share count once."""
        arrays = {id(array): array.nbytes for one in self.factors for array in (one.a, one.b)}
        return sum(arrays.values())


@dataclass(frozen=True, slots=True, eq=False)
class ModuleChange:
    """b (N, r) · a (r, K), scale in b, of one module of the model that the adapter was made for. Of
    stacked experts b (N, r · E) and a (E · r, K)."""

    module: str
    rank: int
    a: NDArray[np.float32]
    b: NDArray[np.float32]


def open_adapter(folder: Path, slots: Sequence[Slot]) -> Adapter:
    """The adapter in `folder`, for a model of these slots. Raises ModelNotFound, CheckpointError
    where it is damaged or does not fit the model, UnsupportedModel for what we do not compute."""
    changes = with_experts(folder, read_changes(folder), lambda: slots)
    by_name = {slot.name: slot for slot in slots if len(slot.shape) == 2}
    parts: dict[str, list[Slot]] = defaultdict(list)
    for slot in by_name.values():
        if slot.part_of is not None and len(slot.part_of.shape) == 2:
            parts[slot.part_of.name].append(slot)
    factors: list[LowRank] = []
    for change in changes:
        name = f"{change.module}.weight"
        if name in by_name:
            _check_shape(folder, change, by_name[name].shape)
            factors.append(LowRank(name, change.a, change.b))
        elif name in parts:
            factors += _of_parts(folder, change, parts[name])
        else:
            raise CheckpointError(str(folder), f"the model has no matrix {change.module!r}")
    if len({one.weight for one in factors}) < len(factors):
        raise CheckpointError(str(folder), "changes one matrix twice")
    digest = sha256()
    for one in sorted(factors, key=lambda it: it.weight):
        digest.update(f"{one.weight} {one.a.shape} {one.b.shape}\n".encode())
        digest.update(one.a.data)
        digest.update(one.b.data)
    return Adapter(tuple(factors), digest.hexdigest(), max(one.a.shape[0] for one in factors))


def adapter_bytes(folder: Path) -> int:
    """What its matrices will take, without reading one; parts of one module may share."""
    path = path_inside(folder, WEIGHTS)
    if not path.exists():
        return 0  # whoever loads it says what is wrong
    with closing(open_safetensors(path)) as checkpoint:
        return sum(4 * info.num_elements for info in checkpoint.tensors.values())


def read_changes(folder: Path) -> list[ModuleChange]:
    """Every module's change, in the order of the file. Raises as `open_adapter` does."""
    if not folder.is_dir():
        raise ModelNotFound(f"{folder}: no such folder, and an adapter is one")
    path = path_inside(folder, CONFIG)
    if not path.exists():
        raise ModelNotFound(f"{folder}: no {CONFIG}: this is no adapter")
    content = read_whole(path, _MAX_CONFIG_BYTES)
    fields = Fields(str(folder / CONFIG), parse_json_object(content, str(path), _MAX_CONFIG_ITEMS))
    scales = _Scales.of(fields)
    weights = path_inside(folder, WEIGHTS)
    if not weights.exists():
        raise ModelNotFound(f"{folder}: no {WEIGHTS}: save the adapter as safetensors")
    with closing(open_safetensors(weights)) as checkpoint:
        return list(_changes(checkpoint, scales))


@dataclass(frozen=True, slots=True)
class _Scales:
    """By which a module's b · a is multiplied: alpha / r, or alpha / sqrt(r) (rank-stabilised,
    arXiv 2312.03732). Patterns name modules by the end of their name, with `^` by the whole."""

    file: str
    rank: int
    alpha: float
    rank_stabilised: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]

    @classmethod
    def of(cls, fields: Fields) -> _Scales:
        _check_understood(fields)
        ranks = Fields(fields.file, _pattern(fields, "rank_pattern"))
        alphas = Fields(fields.file, _pattern(fields, "alpha_pattern"))
        return cls(
            fields.file,
            fields.integer("r", 1, MAX_RANK),
            fields.number("lora_alpha", 0.0, 1e9),
            fields.flag("use_rslora", False),
            {key: ranks.integer(key, 1, MAX_RANK) for key in ranks.values},
            {key: alphas.number(key, 0.0, 1e9) for key in alphas.values},
        )

    def rank_of(self, module: str) -> int:
        return _matched(self.ranks, module, self.rank)

    def scale_of(self, module: str) -> np.float32:
        rank, alpha = self.rank_of(module), _matched(self.alphas, module, self.alpha)
        return np.float32(alpha / (math.sqrt(rank) if self.rank_stabilised else rank))


def _check_understood(fields: Fields) -> None:
    """Raises UnsupportedModel for what would change the result and is not computed."""
    kind = fields.text("peft_type")
    if kind != "LORA":
        raise UnsupportedModel(f"{fields.file}: peft_type {kind[:40]!r} is not computed; LORA is")
    if fields.text("bias", "none") != "none":
        raise UnsupportedModel(f"{fields.file}: bias must be none: biases are the model's own")
    begun = fields.get("init_lora_weights")
    if not any(begun is one or begun == one for one in _INIT_KEEPS_WEIGHTS):
        raise UnsupportedModel(
            f"{fields.file}: init_lora_weights {str(begun)[:40]!r} changes the model's own "
            "weights; let peft convert the adapter to a plain one"
        )
    for name, value in fields.values.items():
        if value and name not in _READ | _HARMLESS:
            raise UnsupportedModel(f"{fields.file}: {name[:80]} is not computed")


def _pattern(fields: Fields, name: str) -> Mapping[str, Any]:
    table = fields.table(name)
    for key in table:
        if _PATTERN.fullmatch(key) is None:
            raise UnsupportedModel(
                f"{fields.file}: {name} {key[:80]!r}: only names of modules, or ends of them"
            )
    return table


def _matched(table: Mapping[str, T], module: str, otherwise: T) -> T:
    """The first that fits decides, as in peft."""
    for key, value in table.items():
        if key.startswith("^"):
            if module == key[1:]:
                return value
        elif module == key or module.endswith(f".{key}"):
            return value
    return otherwise


def _changes(checkpoint: Checkpoint, scales: _Scales) -> Iterator[ModuleChange]:
    modules: dict[str, dict[str, TensorInfo]] = defaultdict(dict)
    for name, info in checkpoint.tensors.items():
        found = _TENSOR.fullmatch(name)
        if found is None:
            raise UnsupportedModel(
                f"{info.file}: {name[:200]!r} is no lora_A or lora_B of a linear layer; of an "
                "output head, save the adapter with save_embedding_layers=False"
            )
        modules[found[1]][found[2]] = info
    if not modules:
        raise CheckpointError(checkpoint.path, "has no tensors")
    for module, pair in modules.items():
        if len(pair) != 2:
            raise CheckpointError(checkpoint.path, "has only one of lora_A and lora_B", module)
        a, b = _matrix(checkpoint, pair["A"]), _matrix(checkpoint, pair["B"])
        rank = scales.rank_of(module)
        of_all = rank
        if _STACKED.fullmatch(module) is not None:
            of_all = a.shape[0] // rank * rank  # of so many experts as the model has
        if a.shape[0] != of_all or b.shape[1] != of_all:
            raise CheckpointError(
                checkpoint.path, f"is {a.shape} and {b.shape}, and its rank {rank}", module
            )
        yield ModuleChange(module, rank, a, b * scales.scale_of(module))


def _matrix(checkpoint: Checkpoint, info: TensorInfo) -> NDArray[np.float32]:
    if info.kind not in _KINDS or len(info.shape) != 2 or 0 in info.shape:
        raise CheckpointError(
            info.file, f"is {info.kind} {info.shape}, not a matrix of floats", info.name
        )
    n, k = info.shape
    source = FileSource(checkpoint, info, info.name, (n, k), held_format(info))
    return np.array(decode(source.rows(0, n)), dtype=np.float32)


def _of_parts(folder: Path, change: ModuleChange, slots: Sequence[Slot]) -> Iterator[LowRank]:
    for slot in slots:
        assert slot.part_of is not None, "see the caller"
        _check_shape(folder, change, slot.part_of.shape)
        first = slot.part_of.first_row
        rows = np.ascontiguousarray(change.b[first : first + slot.shape[0]])
        yield LowRank(slot.name, change.a, rows)


def _layer_of_expert(slot: Slot) -> str | None:
    found = _EXPERT.fullmatch(slot.name)
    return None if found is None else found[1]


def with_experts(
    folder: Path, changes: Sequence[ModuleChange], slots: Callable[[], Sequence[Slot]]
) -> list[ModuleChange]:
    """A change of all experts of a layer as one of each; `slots`, the model's, are asked for where
    there is one. Raises CheckpointError as `open_adapter`."""
    found: list[ModuleChange] = []
    for change in changes:
        stacked = _STACKED.fullmatch(change.module)
        if stacked is None:
            found.append(change)
        else:
            experts = [one for one in slots() if _layer_of_expert(one) == stacked[1]]
            found += _of_experts(folder, change, experts)
    return found


def _of_experts(
    folder: Path, change: ModuleChange, slots: Sequence[Slot]
) -> Iterator[ModuleChange]:
    """`slots` are gate, up and down of each expert of a layer in turn."""
    num_experts, n = len(slots) // 3, change.b.shape[0]
    which: tuple[int, ...] = ()
    if slots:
        f, m = slots[0].shape
        which = {(2 * f, m): (0, 1), (m, f): (2,)}.get((n, change.a.shape[1]), ())
    if not which or change.a.shape[0] != num_experts * change.rank:
        raise CheckpointError(
            str(folder),
            f"has factors {change.a.shape} and {change.b.shape}, which fit neither gate and up nor "
            f"down of the layer's {num_experts} experts",
            change.module,
        )
    every = change.a.reshape(num_experts, change.rank, -1)
    b = change.b.reshape(n, change.rank, num_experts)
    for index, a in enumerate(every):
        for at, rows in zip(which, np.split(b[:, :, index], len(which)), strict=True):
            module = slots[3 * index + at].name.removesuffix(".weight")
            yield ModuleChange(module, change.rank, a, np.ascontiguousarray(rows))


def _check_shape(folder: Path, change: ModuleChange, shape: tuple[int, ...]) -> None:
    n, k = change.b.shape[0], change.a.shape[1]
    if (n, k) != shape:
        raise CheckpointError(
            str(folder), f"changes a matrix ({n}, {k}); the model's is {shape}", change.module
        )
