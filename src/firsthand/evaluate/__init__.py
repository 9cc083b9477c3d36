"""What a model is worth: numbers that say how well it knows a text.

Owns: what is measured, and over which tokens.
May not know: terminals, the engine, how a model computes.
Read next: `perplexity.py`, the measure; `windows.py`, which tokens it scores.
"""
