"""The catalogue: every metric that a server gives out, once.

Owns: names, kinds, units, meanings, labels with their values, buckets, vLLM's names for them.
May not know: how anything is counted or shown.
Read next: `catalogue_work.py` and `catalogue_state.py`, its halves; `metrics.py`, which counts;
docs/metrics.md, made of this.

Base units. No label holds what a caller wrote; `model` is the service's own name for its model,
whichever of its names a caller used.
"""

from __future__ import annotations

from firsthand.observe.catalogue_state import DEVICE, DOOR, PROCESS, REPLICAS, STATE
from firsthand.observe.catalogue_work import CACHE, ENGINE, LATENCY, REQUESTS

SECTIONS = (REQUESTS, LATENCY, ENGINE, CACHE, DOOR, STATE, REPLICAS, PROCESS, DEVICE)
CATALOGUE = {entry.name: entry for section in SECTIONS for entry in section.entries}
