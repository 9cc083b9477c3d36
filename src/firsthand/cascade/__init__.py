"""A small model first, and a large one where the small one is not sure: the arithmetic of it.

Owns: nothing; every name lives in its module. May not know: models, engines, servers.
Read next: `confidence.py`, `calibration.py`, `decision.py`, `tradeoff.py`; docs/cascade.md.
"""
