"""Releases: what was served when, and the way back.

Owns: the store of releases, its history, promotion, rollback, the drill.
May not know: HTTP routes, how a model is loaded.
Read next: `record.py` (what a release is), `store.py` (where it lies), `switching.py`, `drill.py`.
"""
