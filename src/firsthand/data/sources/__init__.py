"""Where records come from: one file per kind, each behind the protocol of `../source.py`.

Owns: nothing of its own.
May not know: what becomes of a record.
Read next: `files.py`, `tables.py`, `messages.py`.
"""
