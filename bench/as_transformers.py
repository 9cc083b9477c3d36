"""How far two folders of one model are apart when transformers runs them.

Owns: the sum over windows. Needed for activations of 8 bits, which our own executors do not round
so coarsely. May not know: how either was made.
Read next: `quantization.py`; `src/firsthand/evaluate/divergence.py`, the same by our own executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from firsthand.evaluate.divergence import Divergence


def divergence_of(reference: Path, candidate: Path, windows: Sequence[Sequence[int]]) -> Divergence:
    torch.set_num_threads(1)
    both = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for folder in (reference, candidate)
    ]
    divergences, reference_nlls, candidate_nlls, same = [], [], [], []
    for window in windows:
        ids = torch.tensor([window])
        with torch.inference_mode():
            p, q = (model(ids).logits[0, :-1].double().log_softmax(-1) for model in both)
        divergences += (p.exp() * (p - q)).sum(-1).clamp(min=0).tolist()
        rows = torch.arange(len(window) - 1)
        reference_nlls += (-p[rows, ids[0, 1:]]).tolist()
        candidate_nlls += (-q[rows, ids[0, 1:]]).tolist()
        same += (p.argmax(-1) == q.argmax(-1)).tolist()
    return Divergence(tuple(divergences), tuple(reference_nlls), tuple(candidate_nlls), tuple(same))
