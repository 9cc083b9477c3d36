"""Keys and values of past tokens: which block belongs to whom, and the memory behind it.

Owns: `blocks.py` (ids only, pure) and the stores (memory only): paged, the default, and
contiguous. One integer, the block id, is all that passes between them.
May not know: requests, models, scheduling.
Read next: `blocks.py`, then `store.py`, `arrays.py`, `paged.py`.
"""
