"""What answers were made by, in one short word: equal words, and a seed gives equal answers.

Owns: what goes into `system_fingerprint`, and its form.
May not know: routes, how a model is loaded.
Read next: `routes/models.py`, where the parts are told.
"""

from __future__ import annotations

import hashlib
import json

from firsthand.generation.golden import NUMERICS
from firsthand.generation.service import Service
from firsthand.version import VERSION

NUM_CHARS = 12


def made_of(service: Service, name: str) -> dict[str, str | None]:
    """`name` is that of the model, or of the adapter, that is asked. A hash that is not known is
    null, and stands for one model as well as for another."""
    model = service.model
    adapter = model.adapters.get(name)
    return {
        "engine": VERSION,
        "manifest_sha256": model.manifest_sha256,
        "adapter_sha256": None if adapter is None else adapter.sha256,
        "numerics": f"{NUMERICS} {model.numerics}",
    }


def fingerprint(service: Service, name: str) -> str:
    text = json.dumps(made_of(service, name), sort_keys=True)
    return f"fp_{hashlib.sha256(text.encode()).hexdigest()[:NUM_CHARS]}"
