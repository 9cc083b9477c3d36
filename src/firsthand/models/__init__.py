"""Architectures: each stated once, as the paper reads, over the vocabulary of `compute/ops.py`.

Owns: what a model is (its spec) and what it computes (its forward).
May not know: devices, number formats, caches, scheduling.
Read next: `spec.py`.
"""
