"""How many replicas there should be: a function of what they report, and a simulator to judge it.

Owns: limits, the decision, the readings that it takes, loads and a simulated service.
May not know: Ray, clocks, processes; whoever asks says what time it is.
Read next: `policy.py`.

Standard library only, and low among the layers.
"""
