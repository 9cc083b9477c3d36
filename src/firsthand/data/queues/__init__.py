"""Queues: one file per kind, each behind the protocol of `protocol.py`.

Owns: nothing of its own.
May not know: what a message means.
Read next: `protocol.py`, `sqlite.py`.
"""
