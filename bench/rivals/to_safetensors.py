"""A GGUF file as the folder that the converters of the other engines read, by transformers.

Owns: nothing but the call. May not know: who installs, who compares.
Read next: `install.py`.

    python to_safetensors.py SOURCE.gguf FOLDER

The weights are in float32, exactly what the file's blocks stand for.
"""

from __future__ import annotations

import os
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(source: str, target: str) -> None:
    folder, file = os.path.split(os.path.abspath(source))
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
