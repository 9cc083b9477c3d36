"""Speculative decoding: tokens are guessed, computed beside the one that is known, and kept where
the model draws the very same.

Owns: who guesses, how many guesses pay, which of them count.
May not know: budgets and blocks (`scheduling/guessing.py` grants the room), text.
Read next: `speculation.py`; then `lookup.py` and `draft_model.py`, which guess, and `payoff.py`.
"""
