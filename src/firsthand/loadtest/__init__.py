"""A server under load: how long answers take at which rate, where that turns, what is needed.

Owns: the load, what came of it, the knee, the arithmetic of capacity.
May not know: whose server it is; any in the form of OpenAI's API will do. What a server does inside
is for `measure`.
Read next: `playing.py`, which loads; `ramp.py`, which finds the knee; `capacity.py`.
"""
