"""What a model is worth, and what a promise is: how well a text is known, that bits are equal.

Owns: what is measured and over which tokens; what is proven and with which requests.
May not know: terminals, how a model computes.
Read next: `perplexity.py`, the measure; `parity.py`, the proof.
"""
