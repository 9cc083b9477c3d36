"""A GGUF file in another of llama.cpp's formats, by llama.cpp itself.

Owns: nothing but the call. May not know: who installs, who compares.
Read next: `install.py`.

    python quantize_gguf.py SOURCE.gguf TARGET.gguf Q8_0

Weights that are quantised already are first made what they stand for, in float32.
"""

from __future__ import annotations

import ctypes
import os
import sys

import llama_cpp as llama


def main(source: str, target: str, kind: str) -> None:
    llama.llama_backend_init()
    parameters = llama.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama, f"LLAMA_FTYPE_MOSTLY_{kind}")
    parameters.allow_requantize = True
    status = llama.llama_model_quantize(
        source.encode(), f"{target}.part".encode(), ctypes.byref(parameters)
    )
    if status != 0:
        raise SystemExit(f"llama_model_quantize gives {status}")
    os.replace(f"{target}.part", target)


if __name__ == "__main__":
    main(*sys.argv[1:])
