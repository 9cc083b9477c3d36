"""The checklist before a deployment, run: each item is asked of the real thing.

Owns: the items, in the order of a person's checklist, and what to do where one does not hold.
May not know: how a table looks; how anything that is asked works.
Read next: `items.py` (the form), `on_disk.py` (nothing is loaded), `on_release.py` (a release of
a store), `loaded.py` (the model is), `served.py` (a server is, and is ended again).
"""
