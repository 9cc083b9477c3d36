"""Who computes how many tokens now, and in which blocks: a state machine over integers.

Owns: the waiting and the running sequences, the token budget, the end of a sequence.
May not know: arrays, bytes, layers, text, clocks, logging. Standard library only.
Read next: `plan.py` (the values), `scheduler.py` (the machine), `stopping.py` (when it ends).
"""
