"""The native executor: a recorded plan, replayed in C++ with threads of its own.

Owns: the package's front door, and nothing else.
May not know: models, scheduling, files.
Read next: `executor.py`; then `csrc/plan.hpp` and `csrc/linear.hpp`.
"""
