"""How much memory there is, what it is given to, and one reservation shared out in ranges.

Owns: the arithmetic of the budget, what the machine has free, the arena.
May not know: models, sequences, arrays. Standard library only.
Read next: `budget.py`, then `arena.py`.
"""
