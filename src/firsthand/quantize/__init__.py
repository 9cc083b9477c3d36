"""From a model to a smaller one whose cost is known: calibration, rounding, judgement, files.

Owns: `firsthand quantize`.
May not know: terminals; how a single matrix is rounded (`quant/`).
Read next: `quantize.py`.
"""
