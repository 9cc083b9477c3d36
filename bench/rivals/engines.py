"""The engines of the comparison, each with the weight formats that it runs.

Owns: names, versions, which script runs in which interpreter on which files.
May not know: how an engine is installed or timed.
Read next: `install.py`, which makes what is named here; `bench/compare.py`, which runs it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

OURS = "firsthand"
HERE = Path(__file__).resolve().parent
VERSIONS = {
    "llama-cpp-python": "0.3.36",
    "onnxruntime-genai": "0.18.0",
    "openvino-genai": "2026.4.1.0",
    "openvino-tokenizers": "2026.4.1.0",
    "ctranslate2": "4.8.5",
    "transformers": "5.5.4",  # the newest that optimum-intel takes
    "optimum-intel": "2.2.0",
    "nncf": "3.4.0",
    "gguf": "0.19.0",
    "accelerate": "1.15.0",
    "lm-eval": "0.4.13",  # no engine: the judge of bench/judge.py
}


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine with one format of weights: one row of the table.

    `folder` is that of its interpreter, "" for the one that runs this. `model` lies in `models/`,
    "" for the file as it comes; it is the first argument of `script`, `options` are the others.
    `is_server`: it is asked over HTTP, and only takes part where all are.
    """

    name: str
    weights: str
    package: str
    folder: str
    script: str
    model: str = ""
    options: tuple[str, ...] = ()
    is_server: bool = False

    @property
    def version(self) -> str:
        return VERSIONS.get(self.package, "")

    def command(self, rivals: Path, source: Path) -> list[str]:
        python = rivals / "venv" / self.folder / "bin" / "python" if self.folder else sys.executable
        model = rivals / "models" / self.model if self.model else source
        return [str(python), str(HERE / self.script), str(model), *self.options]

    def lacks(self, rivals: Path, source: Path) -> str:
        """What of its files is not there; "" if all is."""
        python, script, model = self.command(rivals, source)[:3]
        absent = [name for name in (python, script, model) if not Path(name).exists()]
        return "not installed" if absent else ""


def _ours(weights: str) -> Engine:
    return Engine(OURS, weights, "", "", "run_firsthand.py", options=(weights,))


def _llamacpp(weights: str, model: str) -> Engine:
    package = "llama-cpp-python"
    return Engine("llama.cpp", weights, package, "llamacpp", "run_llamacpp.py", model)


def _our_server(weights: str) -> Engine:
    options = ("firsthand", weights)
    return Engine(OURS, weights, "", "", "run_server.py", options=options, is_server=True)


def _llama_server(weights: str, model: str) -> Engine:
    return replace(
        _llamacpp(weights, model),
        script="run_server.py",
        options=("llama-server",),
        is_server=True,
    )


def _openvino(weights: str) -> Engine:
    model = f"openvino-{weights}"
    name, package = "OpenVINO GenAI", "openvino-genai"
    return Engine(name, weights, package, "openvino", "run_openvino.py", model)


ENGINES: Sequence[Engine] = (
    _ours("auto"),
    _ours("int8"),
    _llamacpp("Q8_0", "Q8_0.gguf"),
    _llamacpp("Q4_1", ""),
    _llamacpp("Q4_0", "Q4_0.gguf"),
    Engine(
        name="ONNX Runtime GenAI",
        weights="int4",
        package="onnxruntime-genai",
        folder="ortgenai",
        script="run_ortgenai.py",
        model="onnx-int4",
    ),
    _openvino("int8"),
    _openvino("int4"),
    Engine(
        name="CTranslate2",
        weights="int8",
        package="ctranslate2",
        folder="ctranslate2",
        script="run_ctranslate2.py",
        model="ctranslate2-int8",
        options=("int8",),
    ),
    Engine(
        name="transformers",
        weights="float32",
        package="transformers",
        folder="convert",
        script="run_transformers.py",
        model="safetensors",
    ),
    _our_server("auto"),
    _our_server("int8"),
    _llama_server("Q8_0", "Q8_0.gguf"),
    _llama_server("Q4_1", ""),
    _llama_server("Q4_0", "Q4_0.gguf"),
)
