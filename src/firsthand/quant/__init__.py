"""Number formats: what a weight is, and how bytes of a file or plain floats become one.

Owns: formats, the blocks of GGUF files as values, rounding of floats.
May not know: files, tensor names, layers, executors.
Read next: `formats.py`.
"""
