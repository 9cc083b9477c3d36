"""Three choices between quick answers and many of them.

Owns: the values that each stands for.
May not know: what a setting does, where values come from.
Read next: `settings.py`; `../engine/microbatch.py` for batches.

How long a text may wait for company and how large a batch may be are the usual figures: 10 to 20 ms
and 8 to 16 where somebody waits for each answer, 100 ms and 64 to 128 for work in bulk, 50 ms
between. The rest follows: as many sequences run at once as a batch has, and a step that computes
more tokens at once is the better used and the longer, for whoever waits for the next word.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

PROFILES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "latency": {
            "max_batch_size": 16,
            "max_batch_wait": 0.01,
            "min_batch_size": 1,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 256,
        },
        "balanced": {
            "max_batch_size": 32,
            "max_batch_wait": 0.05,
            "min_batch_size": 8,
            "max_num_seqs": 32,
            "max_num_batched_tokens": 512,
        },
        "throughput": {
            "max_batch_size": 128,
            "max_batch_wait": 0.1,
            "min_batch_size": 64,
            "max_num_seqs": 128,
            "max_num_batched_tokens": 2048,
        },
    }
)
