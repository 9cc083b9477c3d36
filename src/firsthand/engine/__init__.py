"""The engine: plan, run, commit, on a thread of its own.

Owns: the step, and the composition of scheduler and runner.
May not know: text, HTTP, metric names, files.
Read next: `engine.py` (the step), `runner.py` (integers become arrays), `worker.py` (the thread).
"""
