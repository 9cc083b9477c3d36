"""Checkpoints: from untrusted bytes on a disk to weights that an executor can take.

Owns: the file forms, their checks, names, loading and downloads.
May not know: engines, schedulers, requests, text.
Read next: `checkpoint.py` (the interface), `open.py` (which reader for which file).
"""
