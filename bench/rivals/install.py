"""Install the rivals and convert the model for each, into one folder; what is there is kept.

Owns: the steps, their order, the stamps that say which are done.
May not know: how an engine is called or timed.
Read next: `engines.py`, what has to be there in the end.

    python bench/rivals/install.py [--model MODEL] [--rivals FOLDER] [--only PART,…]

A step's stamp holds its commands: changed commands are run again. A step that fails stops those
that need it and no other; its output is in FOLDER/logs. Engines run in environments of their own,
without PyTorch; one environment, `convert`, has what their converters need.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.rivals.engines import HERE, VERSIONS  # noqa: E402

OPENVINO_GROUP = "64"  # the width of 576 is no multiple of its default, 128
TORCH = next(
    line
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line.startswith("torch==")
)
LLAMACPP_SERVER_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_TOOLS=ON", "-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF",
)  # fmt: skip
LLAMACPP_OPTIONS = (
    "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_SERVER=OFF "
    "-DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_OPENSSL=OFF"
)


@dataclass(frozen=True, slots=True)
class Step:
    """Commands that run one after another, with the steps that have to be done before."""

    name: str
    commands: Sequence[Sequence[str]]
    needs: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    interpreter: str = ""  # make this environment first


def pinned(*packages: str) -> list[str]:
    return [f"{name}=={VERSIONS[name]}" for name in packages]


def steps(rivals: Path, source: Path) -> list[Step]:
    models = rivals / "models"
    folder = str(models / "safetensors")

    def python(environment: str) -> str:
        return str(rivals / "venv" / environment / "bin" / "python")

    def pip(environment: str, *arguments: str) -> list[str]:
        return [python(environment), "-m", "pip", "install", *arguments]

    def gguf(kind: str) -> Step:
        script, target = str(HERE / "quantize_gguf.py"), str(models / f"{kind}.gguf")
        command = [python("llamacpp"), script, str(source), target, kind]
        return Step(f"llamacpp-{kind}", [command], ["llamacpp"])

    def openvino(kind: str, *options: str) -> Step:
        export = str(rivals / "venv" / "convert" / "bin" / "optimum-cli")
        command = [export, "export", "openvino", "--model", folder, "--weight-format", kind]
        command += [*options, "--task", "text-generation-with-past"]
        needs = ["openvino", "convert-openvino", "safetensors"]
        return Step(f"openvino-{kind}", [[*command, str(models / f"openvino-{kind}")]], needs)

    def llama_server() -> Step:
        """The package's sources hold the whole of llama.cpp."""
        package = pinned("llama-cpp-python")
        sources, build = str(rivals / "src"), str(rivals / "build" / "llama.cpp")
        tree = f"{sources}/{package[0].replace('==', '-').replace('-', '_', 2)}"
        tools = str(rivals / "venv" / "llamacpp" / "bin")
        download = [python("llamacpp"), "-m", "pip", "download", "--no-deps", "--no-binary"]
        make = [f"{tools}/cmake", "-G", "Ninja", "-S", f"{tree}/vendor/llama.cpp", "-B", build]
        make += [f"-DCMAKE_MAKE_PROGRAM={tools}/ninja", *LLAMACPP_SERVER_OPTIONS]
        return Step(
            "llamacpp-server",
            [
                pip("llamacpp", "cmake", "ninja"),
                [*download, "llama-cpp-python", *package, "--dest", sources],
                ["tar", "-xzf", f"{tree}.tar.gz", "-C", sources],
                make,
                [f"{tools}/ninja", "-C", build, "llama-server"],
                ["cp", f"{build}/bin/llama-server", tools],
            ],
            ["llamacpp"],
        )

    # Nothing may choose another PyTorch than the one asked for by its version.
    keep_torch = ("--constraint", str(rivals / "torch.txt"))
    llamacpp = pip("llamacpp", "--no-binary", "llama-cpp-python", *pinned("llama-cpp-python"))
    onnx = [python("convert"), "-m", "onnxruntime_genai.models.builder", "-m", folder]
    onnx += ["-o", str(models / "onnx-int4"), "-p", "int4", "-e", "cpu"]
    onnx += ["-c", str(rivals / "cache")]
    ctranslate2 = [str(rivals / "venv" / "convert" / "bin" / "ct2-transformers-converter")]
    ctranslate2 += ["--model", folder, "--output_dir", str(models / "ctranslate2-int8")]
    ctranslate2 += ["--quantization", "int8", "--force"]
    return [
        Step(
            "llamacpp",
            [llamacpp],
            environment={"CMAKE_ARGS": LLAMACPP_OPTIONS},
            interpreter="llamacpp",
        ),
        llama_server(),
        gguf("Q8_0"),
        gguf("Q4_0"),
        Step("convert", [pip("convert", TORCH)], interpreter="convert"),
        Step(
            "safetensors",
            [
                pip("convert", *keep_torch, *pinned("transformers", "gguf", "accelerate")),
                [python("convert"), str(HERE / "to_safetensors.py"), str(source), folder],
            ],
            ["convert"],
        ),
        Step(
            "ctranslate2",
            [pip("ctranslate2", *pinned("ctranslate2"))],
            interpreter="ctranslate2",
        ),
        Step(
            "ctranslate2-int8",
            [pip("convert", *keep_torch, *pinned("ctranslate2")), ctranslate2],
            ["ctranslate2", "safetensors"],
        ),
        Step(
            "ortgenai",
            [pip("ortgenai", *pinned("onnxruntime-genai"), "onnxruntime")],
            interpreter="ortgenai",
        ),
        Step(
            "onnx-int4",
            [
                pip("convert", *keep_torch, *pinned("onnxruntime-genai"), "onnx", "onnx-ir"),
                onnx,
            ],
            ["ortgenai", "safetensors"],
        ),
        Step(
            "openvino",
            [pip("openvino", *pinned("openvino-genai", "openvino-tokenizers"))],
            interpreter="openvino",
        ),
        Step(
            "convert-openvino",
            [
                pip(
                    "convert", *keep_torch, *pinned("optimum-intel", "nncf", "openvino-tokenizers")
                ),
                # Text models need no torchvision, and one that was built beside another PyTorch
                # breaks the import of transformers.
                [python("convert"), "-m", "pip", "uninstall", "--yes", "torchvision"],
            ],
            ["convert"],
        ),
        Step(
            "lmeval",
            [pip("lmeval", f"lm-eval[api]=={VERSIONS['lm-eval']}", "transformers")],
            interpreter="lmeval",
        ),
        openvino("int8"),
        openvino("int4", "--group-size", OPENVINO_GROUP, "--ratio", "1.0"),
    ]


def do(step: Step, rivals: Path) -> bool:
    """Run a step unless its stamp says that it is done; False if it fails."""
    stamp = rivals / "done" / step.name
    wanted = json.dumps([list(step.commands), dict(step.environment)])
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return True
    print(f"{step.name} …", file=sys.stderr)
    place = rivals / "venv" / step.interpreter
    if step.interpreter and not (place / "bin" / "python").exists():
        venv.create(place, with_pip=True)
    with (rivals / "logs" / f"{step.name}.log").open("w", encoding="utf-8") as log:
        for command in step.commands:
            if not succeeds(command, {**os.environ, **step.environment}, log):
                print(f"{step.name} failed; see {log.name}", file=sys.stderr)
                return False
    stamp.write_text(wanted, encoding="utf-8")
    return True


def make_folders(rivals: Path) -> None:
    for name in ("done", "logs", "models", "venv"):
        (rivals / name).mkdir(parents=True, exist_ok=True)


def do_all(chosen: Sequence[Step], rivals: Path) -> set[str]:
    """The names of the steps that failed or had to be left out."""
    failed: set[str] = set()
    for step in chosen:
        blocked = [name for name in step.needs if name in failed]
        if blocked:
            print(f"{step.name}: left out, for want of {', '.join(blocked)}", file=sys.stderr)
        if blocked or not do(step, rivals):
            failed.add(step.name)
    return failed


def succeeds(command: Sequence[str], environment: Mapping[str, str], log: IO[str]) -> bool:
    try:
        return subprocess.run(command, stdout=log, stderr=log, env=environment).returncode == 0
    except OSError as error:
        print(error, file=log)
        return False


def main(arguments: Sequence[str]) -> int:
    from firsthand.config import read_environment
    from firsthand.weights.catalogue import resolve

    parser = argparse.ArgumentParser(description="Install the rivals, convert the model for each.")
    parser.add_argument("--model", default="smollm2-135m", help="a name or a .gguf file")
    parser.add_argument("--rivals", type=Path, default=ROOT / ".rivals", help="where they go")
    parser.add_argument("--only", default="", help="steps to do, by the beginnings of their names")
    given = parser.parse_args(arguments)
    rivals = given.rivals.resolve()
    make_folders(rivals)
    (rivals / "torch.txt").write_text(TORCH + "\n", encoding="utf-8")
    source = resolve(given.model, read_environment()).path
    only = tuple(given.only.split(",")) if given.only else ("",)
    chosen = [step for step in steps(rivals, source) if step.name.startswith(only)]
    failed = do_all(chosen, rivals)
    if failed:
        print(f"Not installed: {', '.join(sorted(failed))}.", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
