"""One model over several workers: each has a run of its layers, and rows go from one to the next.

Owns: how a model is split, how a step is cut so that all stages compute, what a hop costs.
May not know: how tokens are made: above it stands the engine as over one process, and gets the same
bits.
Read next: `executor.py`, which the engine takes for an executor; docs/cluster.md.
"""
