"""Computing: one vocabulary of operators, and the executors that run it.

Owns: what an operator means and how it is executed.
May not know: scheduling, text, files, who asked.
Read next: `ops.py`.
"""
