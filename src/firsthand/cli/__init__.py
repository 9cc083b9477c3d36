"""The command line: one file per group of verbs.

Owns: what is typed and what is printed.
May not know: anything that a Python program could not do as well; there is no logic of its own.
Read next: `main.py`.
"""
