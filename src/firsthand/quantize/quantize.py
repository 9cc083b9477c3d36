"""One quantisation from beginning to end: read, calibrate, round, write, judge, publish.

Owns: the order of the work, the judgement, and the report.
May not know: terminals; how a layer is rounded.
Read next: `source.py`, `calibration.py`, `rounding.py`, `writing.py`.

The new folder is written beside its place, loaded from there by the engine itself, and judged on
text that the calibration has not seen: its perplexity against that of the source, both with the
engine's own kernels. It gets its name only if the loss is within the limit, or by force.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from firsthand.config import read_environment
from firsthand.errors import CheckpointError, InvalidRequest
from firsthand.evaluate.perplexity import load_for_scoring, perplexity
from firsthand.generation.load_options import LoadOptions
from firsthand.models import families
from firsthand.models.llama import HEAD
from firsthand.quant.grid import Grid
from firsthand.quantize.calibration import DEFAULT_TOKENS, Calibration, calibration_of
from firsthand.quantize.forward import Done, Listener, NumpyOps
from firsthand.quantize.mixed import Measurer, widened
from firsthand.quantize.rounding import LayerError, Rounder
from firsthand.quantize.scheme import GROUP_STEP, HEAD_GRID, MAX_GROUP, Scheme
from firsthand.quantize.source import Source, config_of, open_source_model, write_companions
from firsthand.quantize.writing import (
    planned_bytes,
    quantization_config,
    tensors_of,
    with_joined,
    write_model,
)
from firsthand.values import dataclass
from firsthand.weights.catalogue import resolve
from firsthand.weights.open import open_checkpoint
from firsthand.weights.sources import Quantization
from firsthand.weights.writing import check_new, new_folder

JUDGED_WINDOWS: Final = 16
WINDOW: Final = 512
REPORT_FILE: Final = "quantization.json"

Progress = Callable[[str, int, int], None]  # what, layers done, layers in all


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known before the work begins: the source's weights as they lie, about what will be
    written, and whether the layers have been rounded once already."""

    source_bytes: int
    num_bytes: int
    rounded_twice: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """Perplexity of the source and of the result on the same text."""

    before: float
    after: float
    num_tokens: int

    @property
    def loss_percent(self) -> float:
        return 100 * (self.after / self.before - 1)


@dataclass(frozen=True, slots=True)
class Report:
    """What was done. `layers` have an error where inputs were seen, which `num_unseen` lacked:
    experts that the calibration text never chose. `bits_per_weight` counts codes, scales and zeros
    of the rounded layers. Not `published`: the loss was past the limit."""

    destination: str
    published: bool
    scheme: Scheme
    layers: tuple[LayerError, ...]
    bits_per_weight: float
    num_unseen: int
    source_bytes: int
    num_bytes: int
    judgement: Judgement | None
    calibration_sha256: str | None
    rounded_twice: bool
    rounding_s: float
    seconds: float

    def fields(self) -> dict[str, Any]:
        return asdict(self) | {
            "loss_percent": None if self.judgement is None else self.judgement.loss_percent
        }


class _LossTooLarge(Exception):
    """Ends the block of the new folder, so that it is removed."""


def quantize(
    model: str | Path,
    dst: Path,
    scheme: Scheme,
    *,
    calibration: str | None = None,
    judged_on: str | None = None,
    num_tokens: int = DEFAULT_TOKENS,
    progress: Progress | None = None,
    planned: Callable[[Plan], None] | None = None,
) -> Report:
    """Write the model, quantised, as the new folder `dst`. `calibration` and `judged_on` are texts;
    without the second the part of the first that is kept back is judged on. `planned` is called
    before the work, which may take minutes.

    Raises InvalidRequest for a `dst` that exists, a text that is none, or a scheme that does not
    fit the layers; the errors of a load. A loss past the limit is no error: see `Report.published`.
    """
    began_s = time.perf_counter()
    _check_texts(dst, scheme, calibration, judged_on)
    resolved = resolve(str(model), read_environment())
    with closing(open_checkpoint(resolved.path)) as checkpoint:
        source = open_source_model(checkpoint)
        _check_groups(source, scheme)
        if planned is not None:
            planned(_plan(source, scheme))
        set_ = None
        if calibration is not None:
            encode = source.tokenizer.encode
            set_ = calibration_of(calibration, encode, num_tokens, source.spec.context_length)
        rounder, rounding_s = _rounded(source, scheme, set_, progress)
        text = judged_on if judged_on is not None else None if set_ is None else set_.kept_back
        judgement = None
        try:
            with new_folder(dst) as partial:
                num_bytes = _write(source, rounder, scheme, partial)
                if text is not None:
                    window = min(WINDOW, source.spec.context_length)
                    judgement = _judge(resolved.path, partial, text, window)
                report = Report(
                    destination=str(dst),
                    published=True,
                    scheme=scheme,
                    layers=tuple(rounder.errors.values()),
                    bits_per_weight=_bits_per_weight(source, rounder),
                    num_unseen=_num_unseen(source, rounder),
                    source_bytes=source.file_bytes,
                    num_bytes=num_bytes,
                    judgement=judgement,
                    calibration_sha256=None if set_ is None else set_.artefact.sha256,
                    rounded_twice=source.was_rounded,
                    rounding_s=rounding_s,
                    seconds=time.perf_counter() - began_s,
                )
                if judgement and judgement.loss_percent > scheme.max_loss and not scheme.force:
                    raise _LossTooLarge
                _write_report(partial, report, set_)
        except _LossTooLarge:
            report = replace(report, published=False)
        return report


def _check_texts(dst: Path, scheme: Scheme, calibration: str | None, judged_on: str | None) -> None:
    check_new(dst)
    if not dst.parent.is_dir():
        raise InvalidRequest("dst", f"{dst.parent} is no folder")
    if scheme.needs_calibration and calibration is None:
        raise InvalidRequest("calibration", f"a text is needed for {scheme.kind} {scheme.method}")
    if calibration is None and judged_on is None and not scheme.force:
        raise InvalidRequest(
            "text", "nothing tells what the rounding costs; give a text to judge on, or force it"
        )


def _check_groups(source: Source, scheme: Scheme) -> None:
    """compressed-tensors takes whole groups only, so a short last one is no way out."""
    group = scheme.grid.group
    if group is None:
        return
    widths = {source.weights.shape(name)[1]: name for name in source.linear_names}
    for k, name in widths.items():
        if k % group:
            every = range(GROUP_STEP, MAX_GROUP + 1, GROUP_STEP)
            fitting = [str(one) for one in every if not any(width % one for width in widths)]
            raise InvalidRequest(
                "group",
                f"{name} has {k} columns, no multiple of {group}; these fit every layer: "
                f"{', '.join(fitting) or 'none'}, and 0 for a whole row",
            )


def _plan(source: Source, scheme: Scheme) -> Plan:
    shape = source.weights.shape
    bits = {
        name: scheme.budget or scheme.grid.bits_per_weight(shape(name)[1])
        for name in source.linear_names
    }
    if scheme.head:
        bits |= {name: HEAD_GRID.bits_per_weight(shape(name)[1]) for name in source.head_names}
    num_bytes = planned_bytes(source.weights.sources, bits)
    return Plan(source.file_bytes, num_bytes, source.was_rounded)


def _rounded(
    source: Source, scheme: Scheme, set_: Calibration | None, progress: Progress | None
) -> tuple[Rounder, float]:
    began_s = time.perf_counter()
    grids: Mapping[str, Grid] = {}
    total = len(source.linear_names)
    try:
        if set_ is not None and scheme.mixed:
            measurer = Measurer(source.weights, scheme)
            _run(source, set_, _counted(measurer, "measuring", total, progress))
            grids = widened(measurer.found, scheme, source.units)
        rounder = Rounder(source.weights, scheme, source.ops, grids)
        if set_ is not None and scheme.needs_calibration:
            _run(source, set_, _counted(rounder, "rounding", total, progress))
        else:
            for done, name in enumerate(source.linear_names, 1):
                rounder.alone(name)
                if progress is not None:
                    progress("rounding", done, total)
        for name in source.head_names if scheme.head else ():
            rounder.alone(name, HEAD_GRID)
    except ValueError as error:
        raise CheckpointError(source.checkpoint.path, str(error)) from error
    return rounder, time.perf_counter() - began_s


def _run(source: Source, set_: Calibration, listener: Listener) -> None:
    program = families.program(source.spec)
    ops = NumpyOps(set_.sequences, source.weights, program.ropes, listener)
    with suppress(Done):
        program.forward(ops)


def _counted(listener: Listener, what: str, total: int, progress: Progress | None) -> Listener:
    return listener if progress is None else _Counted(listener, what, total, progress)


class _Counted:
    """A listener that says how far it is."""

    def __init__(self, inner: Listener, what: str, total: int, progress: Progress) -> None:
        self._inner, self._what, self._total, self._progress = inner, what, total, progress
        self._done = 0

    def normed(self, x: Any, gain: str) -> Any:
        return self._inner.normed(x, gain)

    def linear(self, x: Any, weight: str) -> Any:
        out = self._inner.linear(x, weight)
        self._done += 1
        self._progress(self._what, self._done, self._total)
        return out


def _write(source: Source, rounder: Rounder, scheme: Scheme, folder: Path) -> int:
    """The weights' bytes."""
    vectors = {
        name: values - np.float32(source.offsets.get(name, 0.0))
        for name, values in (source.weights.vectors | rounder.vectors).items()
    }
    matrices = with_joined(rounder.rounded, source.joined)
    floats = {n: one for n, one in source.weights.sources.items() if n not in rounder.rounded}
    as_int8 = scheme.rounds_activations
    tensors = tensors_of(floats, vectors, matrices, as_int8=as_int8)
    untouched = [*sorted(source.weights.exact), *({HEAD} - {*matrices})]
    config = config_of(source) | {
        "quantization_config": quantization_config(
            matrices, untouched, source.head_names, rounds_activations=as_int8
        )
    }
    write_model(folder, tensors, config)
    write_companions(source, folder)
    return sum(tensor.num_bytes for tensor in tensors)


def _judge(before: Path, after: Path, text: str, window: int) -> Judgement:
    found = []
    as_floats: tuple[Path, Quantization] = (before, "none")
    as_it_is: tuple[Path, Quantization] = (after, "auto")
    for path, quantization in (as_floats, as_it_is):
        options = LoadOptions(quantization=quantization, pack_cache=False, max_context=window)
        loaded = load_for_scoring(path, options)
        found.append(perplexity(loaded, text, window=window, max_windows=JUDGED_WINDOWS))
    return Judgement(found[0].perplexity, found[1].perplexity, found[1].num_tokens)


def _write_report(folder: Path, report: Report, set_: Calibration | None) -> None:
    artefact = None if set_ is None else asdict(set_.artefact)
    content = report.fields() | {
        "calibration": artefact,
        "destination": Path(report.destination).name,
    }
    (folder / REPORT_FILE).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _bits_per_weight(source: Source, rounder: Rounder) -> float:
    layers = [rounder.rounded[name] for name in source.linear_names]
    bits = sum(one.codes.size * one.grid.bits_per_weight(one.codes.shape[1]) for one in layers)
    return bits / sum(one.codes.size for one in layers)


def _num_unseen(source: Source, rounder: Rounder) -> int:
    return len(source.linear_names) - len(rounder.errors) if rounder.errors else 0
