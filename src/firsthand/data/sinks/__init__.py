"""Where outputs go: one file per kind, each behind the protocol of `../sink.py`.

Owns: nothing of its own.
May not know: what an output means.
Read next: `jsonl.py`.
"""
