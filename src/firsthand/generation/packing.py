"""The packed form of a model: found at a start, written after one.

Owns: when a packed file is used, when one is written, and by whom.
May not know: the layout of the file, of the folder, or of a packed weight.
Read next: `weights/packed_cache.py`, `weights/packed_file.py`, `compute/native/executor.py`.

The first load packs from the model's file, and leaves the result to a thread of the lowest
priority, which hashes the model and writes; the first token does not wait for it. A process that
ends earlier waits for that thread. Later loads map the file: nothing is packed, and processes share
its pages. Whatever is wrong with a packed file, be it one bit, the model is loaded from its own
file instead.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial as bound
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from firsthand.errors import CapacityExceeded, CheckpointError
from firsthand.quant.formats import Format, WeightSource
from firsthand.weights.checkpoint import Checkpoint, FileIdentity, WeightSink
from firsthand.weights.loading import LoadReport, Progress
from firsthand.weights.packed_cache import PackedCache, packed_folder
from firsthand.weights.packed_file import PackedEntry, PackedFile, write_packed
from firsthand.weights.sources import Quantization

LEAST_BYTES: Final = 16 << 20  # what is smaller is packed as fast as it is found


class StoredMatrix(Protocol):
    """A packed matrix, ready to be written."""

    @property
    def name(self) -> str: ...
    @property
    def format(self) -> Format: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def num_bytes(self) -> int: ...
    def pieces(self) -> Iterable[memoryview]: ...


@runtime_checkable
class KeepsPacked(Protocol):
    """An executor whose packed matrices can be stored: the native one, which explains these."""

    @property
    def threads(self) -> int: ...
    def packing_fingerprint(self) -> str: ...
    def open_packed(self, format: Format, n: int, k: int, stored: NDArray[np.uint8]) -> Any: ...
    def load_packed(self, name: str, weight: Any, format: Format) -> None: ...
    def packed(self) -> Sequence[StoredMatrix]: ...
    def unpacked(self, source: WeightSource) -> StoredMatrix: ...


class Later:
    """A `WeightSink` that takes nothing yet: matrices are packed one by one, while a file of them
    is written."""

    def __init__(self, executor: KeepsPacked) -> None:
        self._executor = executor
        self.matrices: list[StoredMatrix] = []

    def load_weight(self, source: WeightSource) -> None:
        self.matrices.append(self._executor.unpacked(source))

    def load_vector(self, name: str, values: NDArray[np.float32]) -> None:
        """Vectors are read from the model's own file."""

    def alias(self, name: str, target: str) -> None:
        """So are ties."""


class Packing:
    """The packed form of one model for one load: take it if it is there, write it if not."""

    def __init__(
        self,
        home: Path,
        checkpoint: Checkpoint,
        quantization: Quantization,
        executor: KeepsPacked,
    ) -> None:
        self._cache = PackedCache(packed_folder(home), executor.packing_fingerprint())
        self.source = os.path.realpath(checkpoint.path)
        self._files: tuple[FileIdentity, ...] = tuple(checkpoint.files)
        self._opened_ns = time.time_ns()
        self._quantization = quantization
        self._executor = executor
        self.path: Path | None = None  # of the file in use

    def open(self, *, sparing: bool = False) -> TakenForm | None:
        """The packed form if it is there. A bad one is removed, with a warning. Threads begin to
        read all of it; `TakenForm.fits` waits for them. `sparing`: they hold little of it."""
        path = self._cache.find(self.source, self._files, self._quantization)
        if path is None or not path.is_file():
            return None
        try:
            with closing(PackedFile(path)) as file:
                if f"{file.header.key}.packed" != path.name:
                    raise CheckpointError(str(path), "is the packed form of something else")
                return TakenForm(file, self._executor, self, sparing)
        except (CheckpointError, ValueError) as error:
            self.discard(path, error)
            return None

    def whole(self) -> PackedFile | None:
        """The packed file if it is there and every bit is as it was written; closed. A bad one is
        removed, with a warning."""
        path = self._cache.find(self.source, self._files, self._quantization)
        if path is None or not path.is_file():
            return None
        try:
            with closing(PackedFile(path)) as file:
                file.verify()
                return file
        except CheckpointError as error:
            self.discard(path, error)
            return None

    def discard(self, path: Path, why: Exception | str) -> None:
        message = f"the packed model {path.name} is not used, and written anew: {why}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        with suppress(OSError):
            path.unlink(missing_ok=True)

    def make(self, read: Callable[[WeightSink], LoadReport], progress: Progress | None) -> Path:
        """Write what `read` finds in the model, with one matrix in memory at a time. Raises
        CheckpointError when the model changes meanwhile, CapacityExceeded when the disk is full."""
        sink = Later(self._executor)
        try:
            return self.write(read(sink), sink.matrices, progress)
        except OSError as error:
            raise CapacityExceeded(f"{self.source}: cannot be packed: {error}") from error

    def write(
        self,
        report: LoadReport,
        matrices: Sequence[StoredMatrix] | None = None,
        progress: Progress | None = None,
    ) -> Path:
        """Write the matrices (None: what the executor holds), unless they are there. Raises
        OSError, CheckpointError when the model has changed since, CapacityExceeded."""
        content = self._cache.record(self.source, self._files, self._opened_ns)
        path = self._cache.path_of(content, self._quantization)
        kinds = {tensor.name: tensor.kind for tensor in report.tensors}
        weights = [
            (
                PackedEntry(each.name, each.shape, kinds[each.name], each.format, each.num_bytes),
                each.pieces,
            )
            for each in (self._executor.packed() if matrices is None else matrices)
        ]
        total = sum(entry.num_bytes for entry, _ in weights)
        weights = _followed(weights, total, progress)
        with self._cache.writing(path, total) as partial:
            if partial is not None:
                key = self._cache.key_of(content, self._quantization)
                write_packed(partial, key, content, self.source, self._quantization, weights)
        self._cache.drop_older(path, self.source, self._quantization)
        return path

    def write_later(self, report: LoadReport) -> threading.Thread | None:
        """The thread that writes; None where nothing is to be written."""
        if self.path is not None or report.held_bytes < LEAST_BYTES:
            return None
        thread = threading.Thread(target=self._write_quietly, args=(report,), name="pack-writer")
        thread.start()
        return thread

    def _write_quietly(self, report: LoadReport) -> None:
        """Without a packed file all works as before: a full or read-only disk is worth one line."""
        with suppress(OSError):  # on Linux this is the thread's own priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        with suppress(CheckpointError):  # the model has changed, or only just came
            try:
                self.write(report)
            except (OSError, CapacityExceeded) as error:
                message = f"the packed model cannot be kept, so each start packs it again: {error}"
                warnings.warn(message, RuntimeWarning, stacklevel=1)


Weights = list[tuple[PackedEntry, Callable[[], Iterable[memoryview]]]]


def _followed(weights: Weights, total: int, progress: Progress | None) -> Weights:
    """The same; whoever takes the pieces of one is seen to have it."""
    if progress is None:
        return weights
    done_bytes = 0

    def pieces(
        entry: PackedEntry, taken: Callable[[], Iterable[memoryview]]
    ) -> Iterator[memoryview]:
        nonlocal done_bytes
        yield from taken()
        done_bytes += entry.num_bytes
        progress(done_bytes, total)

    return [(entry, bound(pieces, entry, taken)) for entry, taken in weights]


class TakenForm:
    """`PackedForm` over a mapped file. Every matrix is checked before the first is handed over."""

    def __init__(
        self, file: PackedFile, executor: KeepsPacked, packing: Packing, sparing: bool
    ) -> None:
        """Raises ValueError where a size or a format is wrong."""
        self._executor = executor
        self._packing = packing
        self._path = Path(file.name)
        self.memory = file.memory
        self.places = file.places()
        self.descriptor = file.descriptor  # these three: `StoredWeights`
        self._matrices = {
            entry.name: (entry, executor.open_packed(entry.format, *entry.shape, memory))
            for entry, memory in file.weights()
        }
        # One core is for the rest of the load.
        self._check = file.check(1 if sparing else max(1, executor.threads - 1), release=sparing)

    def fits(self, wanted: Mapping[str, tuple[tuple[int, ...], str]]) -> bool:
        if self._found() != dict(wanted):
            self._packing.discard(self._path, "its matrices are not those of the model")
            return False
        try:
            self._check.wait()
        except CheckpointError as error:
            self._packing.discard(self._path, error)
            return False
        self._packing.path = self._path
        return True

    def _found(self) -> dict[str, tuple[tuple[int, ...], str]]:
        return {name: (entry.shape, entry.kind) for name, (entry, _) in self._matrices.items()}

    def hand_over(self, name: str) -> Format:
        entry, weight = self._matrices[name]
        self._executor.load_packed(name, weight, entry.format)
        return entry.format
