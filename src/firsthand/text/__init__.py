"""Text: from characters to token ids, and back as far as it is certain.

Owns: tokenizers, chat templates, incremental detokenizing, stop strings.
May not know: tensors, models, scheduling, engines, servers.
Read next: `tokenizer.py`, then `detokenize.py`, `stops.py` and `templates.py`.
"""
