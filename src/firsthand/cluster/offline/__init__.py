"""A job's source in parts, each run by a worker of its own, and joined to what one process gives.

Owns: the parts of a source, what a worker does with one, how their ledgers and outputs become one.
May not know: contracts, transforms, engines: a part is run by `data/running.py`, as a whole is.
Read next: `plan.py`, `part.py`, `joining.py`, `running.py`; `pool.py`, the only one that knows Ray.
"""
