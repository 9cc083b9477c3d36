"""What the first bytes of a refused file say it is.

Owns: the signatures of the forms that are taken for a checkpoint by mistake, and the advice.
May not know: how files are opened and read.
Read next: `open.py`, which chooses the reader.
"""

from __future__ import annotations

_LEGACY = "`firsthand convert` handles legacy PyTorch files"
_SIGNATURES = (
    (b"PK\x03\x04", "a zip archive", _LEGACY),
    (b"\x93NUMPY", "a NumPy array", _LEGACY),
    (b"\x80", "a Python pickle", _LEGACY),
    (b"GGUF", "a GGUF file", "name the file itself, not as safetensors"),
    (b"GGML", "a GGML file, older than GGUF", "fetch the model again as GGUF"),
    (b"version https://git-lfs", "a Git LFS pointer", "fetch the real file"),
    (b"<", "an HTML or XML page", "the download went wrong; fetch it again"),
)


def describe_start(head: bytes) -> str:
    """What a refused file begins with, in hexadecimal, and what that suggests."""
    if not head:
        return "the file is empty"
    found = f"begins with {head[:8].hex(' ')}"
    text = head.lstrip()
    for signature, noun, advice in _SIGNATURES:
        if text.startswith(signature) or head.startswith(signature):
            return f"{found}, as {noun} does; {advice}"
    return f"{found}; if it is a legacy file: {_LEGACY}"
