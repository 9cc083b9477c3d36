"""Where outputs go: one file per kind, each behind the protocol of `../sink.py`.

Owns: nothing of its own.
May not know: the form of an output; engines.
Read next: `jsonl.py`.
"""
