"""The native executor: a recorded plan, replayed in C++ with threads of its own.

Owns: the package's front door, and nothing else.
Read next: `executor.py`; then `csrc/plan.hpp` and `csrc/linear.hpp`.
"""
