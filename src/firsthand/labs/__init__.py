"""One experiment for each lesson: the faulty way beside ours, seen on this machine.

Owns: the labs, the faults that they put in, how an outcome is drawn.
May not know: how a command line looks. Nothing below knows the labs: a fault is handed to a part
through a place where any other value could be handed to it, never by a switch of the product.
Read next: `lab.py` (what a lab is), `registry.py` (all of them), `forward.py` (a forward pass small
enough to break), `drawing.py` and `figure.py`.
"""
