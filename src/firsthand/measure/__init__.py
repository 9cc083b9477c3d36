"""Where the time goes, and how far from the machine's limits.

Owns: the measurements behind `firsthand bench` and `firsthand profile`.
May not know: terminals, how anything below works; it uses `generation` as any program does.
Read next: `limits.py` (what the machine can do), `bounds.py` (what a model must do), then one file
per measurement: `latency.py`, `startup.py`, `ablation.py`, `profile.py`.
"""
