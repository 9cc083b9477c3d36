"""What each way of rounding costs a model, beside llama.cpp's formats: one line for each.

Owns: the list of schemes, and the lines that it adds to `results/quantization.jsonl`.
May not know: how anything is rounded.
Read next: `small_model.py`, which trains a model that nobody rounded yet; `quantization_table.py`,
which makes the table of docs/quantize.md of the lines.

    python bench/quantization.py NAME MODEL CALIBRATION TEXT WINDOW WINDOWS [LIBGGML]

Every result is scored as floats (quantization none), so that what differs is the layers' weights
alone: embedding and head are left as they are. llama.cpp's formats are rounded by its own
`ggml_quantize_chunk` (a shared library of ggml-base) and decoded by the gguf package.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from firsthand.evaluate.divergence import Divergence, divergence
from firsthand.evaluate.perplexity import cut, load_for_scoring
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LoadedModel
from firsthand.quantize import mixed
from firsthand.quantize.quantize import quantize
from firsthand.quantize.scheme import Scheme
from firsthand.quantize.source import config_of, open_source_model, write_companions
from firsthand.quantize.writing import write_model
from firsthand.weights.open import open_checkpoint
from firsthand.weights.writing import TensorToWrite

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
UPSIDE = "least_sensitive"  # a control: what is widened is what gains least by it
LINES = Path(__file__).parent / "results" / "quantization.jsonl"
SCHEMES: list[dict[str, Any]] = [
    {"kind": "int8", "group": 0, "method": "nearest"},
    {"kind": "int8", "group": 0, "method": "compensated"},
    {"kind": "int8", "group": 32, "method": "nearest"},
    {"kind": "int4", "group": 32, "method": "nearest"},
    {"kind": "int4", "group": 32, "method": "searched"},
    {"kind": "int4", "group": 32, "method": "scaled"},
    {"kind": "int4", "group": 32, "method": "compensated"},
    {"kind": "int4", "group": 64, "method": "nearest"},
    {"kind": "int4", "group": 64, "method": "compensated"},
    {"kind": "int4", "group": 64, "zeros": True, "method": "nearest"},
    {"kind": "int4", "group": 64, "zeros": True, "method": "compensated"},
    {"kind": "int4", "group": 128, "method": "nearest"},
    {"kind": "int4", "group": 128, "method": "scaled"},
    {"kind": "int4", "group": 128, "method": "compensated"},
    {"kind": "int4", "group": 128, "method": "compensated", "mixed": True, "budget": 4.5},
    {"kind": "int4", "group": 128, "method": "nearest", "mixed": True, "budget": 4.5},
    {"kind": "int4", "group": 128, "method": "nearest", "mixed": True, "budget": 4.5, UPSIDE: True},
    {"kind": "int3", "group": 32, "method": "nearest"},
    {"kind": "int3", "group": 32, "method": "scaled"},
    {"kind": "int3", "group": 32, "method": "compensated"},
    {"kind": "int3", "group": 64, "method": "nearest"},
    {"kind": "int3", "group": 64, "method": "compensated"},
    {"kind": "int3", "group": 128, "method": "nearest"},
    {"kind": "int3", "group": 128, "method": "compensated"},
]
W8A8 = {"kind": "w8a8", "group": 0, "method": "nearest"}
GGML = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14}


class Bench:
    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.text = given.text.read_text(encoding="utf-8")
        self.calibration = given.calibration.read_text(encoding="utf-8")

        self.floats = self.load(given.model)

    def load(self, path: Path, **more: Any) -> LoadedModel:
        asked = {"quantization": "none", "pack_cache": False, "max_context": self.given.window}
        return load_for_scoring(path, LoadOptions(**(asked | more)))

    def against_floats(self, candidate: LoadedModel) -> Divergence:
        window, windows = self.given.window, self.given.windows
        return divergence(self.floats, candidate, self.text, window=window, max_windows=windows)

    def write(self, label: str, by: str, bits: float, found: Divergence, **more: Any) -> None:
        line = {
            "at": time.strftime("%Y-%m-%d"),
            "model": self.given.name,
            "label": label,
            "by": by,
            "bits_per_weight": bits,
            "reference_perplexity": found.reference_perplexity,
            "perplexity": found.candidate_perplexity,
            "divergence": found.mean,
            "divergence_standard_error": found.standard_error,
            "same_top_share": found.same_top_share,
            "tokens": found.num_tokens,
            **more,
        }
        print(json.dumps(line), flush=True)
        with LINES.open("a", encoding="utf-8") as file:
            print(json.dumps(line), file=file)

    def ours(self, folder: Path) -> None:
        for number, options in enumerate(SCHEMES):
            if self.given.only and not re.search(self.given.only, str(options)):
                continue
            dst = folder / str(number)
            bits, more = self.rounded(options, dst)
            found = self.against_floats(self.load(dst))
            self.write(options["kind"], "firsthand", bits, found, **more)
            shutil.rmtree(dst)

    def rounded(self, options: dict[str, Any], dst: Path) -> tuple[float, dict[str, Any]]:
        """Bits per weight, and what the line says of how it was made."""
        cpu_s = time.process_time()
        scheme = {key: value for key, value in options.items() if key != UPSIDE}
        sign = -1.0 if UPSIDE in options else 1.0
        with patch.object(mixed, "_worth", lambda *of, _worth=mixed._worth: sign * _worth(*of)):
            report = quantize(
                self.given.model,
                dst,
                Scheme(**scheme, force=True),
                calibration=self.calibration,
                judged_on=self.text[:1_000],
                num_tokens=self.given.tokens,
            )
        more = {key: value for key, value in options.items() if key != "kind"}
        more["calibration_tokens"] = self.given.tokens
        more |= {"rounding_s": report.rounding_s, "cpu_s": time.process_time() - cpu_s}
        return report.bits_per_weight, more

    def activations_too(self, folder: Path) -> None:
        """w8a8 as transformers runs it, with activations rounded to 8 bits for each token."""
        from bench.as_transformers import divergence_of

        bits, more = self.rounded(W8A8, folder / "w8a8")
        windows = cut(self.floats, self.text, self.given.window, self.given.windows)
        found = divergence_of(self.given.model, folder / "w8a8", [w.token_ids for w in windows])
        self.write("w8a8", "firsthand", bits, found, **more)

    def keys_and_values(self) -> None:
        found = self.against_floats(self.load(self.given.model, kv_dtype="int8"))
        self.write("floats, int8 keys and values", "firsthand", 32.0, found)

    def theirs(self, folder: Path) -> None:
        library = ctypes.CDLL(str(self.given.ggml))
        for kind, number in GGML.items():
            dst = folder / kind
            dst.mkdir()
            bits = self.as_ggml(library, kind, number, dst)
            self.write(kind, "llama.cpp", bits, self.against_floats(self.load(dst)))
            shutil.rmtree(dst)

    def as_ggml(self, library: ctypes.CDLL, kind: str, number: int, dst: Path) -> float:
        """The model with its layers rounded by ggml and decoded again, in float32."""
        with closing(open_checkpoint(self.given.model)) as checkpoint:
            source = open_source_model(checkpoint)
            bits: list[float] = []
            tensors = []
            for name in source.weights.sources:
                values = source.weights.matrix(name)
                if name in source.linear_names:
                    values, width = rounded_by_ggml(library, kind, number, values)
                    bits.append(width)
                tensors.append(_tensor(name, values))
            tensors += [_tensor(*pair) for pair in source.weights.vectors.items()]
            write_model(dst, tensors, config_of(source))
            write_companions(source, dst)
        return sum(bits) / len(bits)


def rounded_by_ggml(
    library: ctypes.CDLL, kind: str, number: int, values: np.ndarray
) -> tuple[np.ndarray, float]:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    n, k = values.shape
    size = library.ggml_row_size
    size.restype, size.argtypes = ctypes.c_size_t, [ctypes.c_int, ctypes.c_int64]
    row_bytes = size(number, k)
    out = np.zeros((n, row_bytes), np.uint8)
    chunk = library.ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t
    pointer = ctypes.c_void_p
    chunk.argtypes = [ctypes.c_int, pointer, pointer, *[ctypes.c_int64] * 3, pointer]
    chunk(number, values.ctypes.data, out.ctypes.data, 0, n, k, None)
    return dequantize(out, GGMLQuantizationType[kind]), 8 * row_bytes / k


def _tensor(name: str, values: np.ndarray) -> TensorToWrite:
    held = np.ascontiguousarray(values, np.float32)
    return TensorToWrite(name, "F32", held.shape, _bytes_of(held))


def _bytes_of(held: np.ndarray) -> Iterator[memoryview]:
    yield held.reshape(-1).view(np.uint8).data


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    for path in ("model", "calibration", "text"):
        parser.add_argument(path, type=Path)
    parser.add_argument("window", type=int)
    parser.add_argument("windows", type=int)
    parser.add_argument("ggml", type=Path, nargs="?")
    parser.add_argument("--only", help="a regular expression of schemes, as they stand above")
    parser.add_argument("--ways", action="store_true", help="int8 keys and values, w8a8 too")
    parser.add_argument("--tokens", type=int, default=16_384, help="of the calibration text")
    given = parser.parse_args()
    bench = Bench(given)
    with tempfile.TemporaryDirectory() as folder:
        if given.ggml is not None and not given.only:
            bench.theirs(Path(folder))
        bench.ours(Path(folder))
        if given.ways:
            bench.keys_and_values()
            bench.activations_too(Path(folder))


if __name__ == "__main__":
    main()
