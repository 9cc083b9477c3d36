"""How large a model is that is not here yet, without fetching it.

Owns: whom to ask, by the form of the name.
May not know: what is made of the number.
Read next: `catalogue.py`, which fetches; `hub.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from firsthand.config import Environment
from firsthand.weights.model_names import KNOWN_MODELS, KnownModel, check_model, parse_hub_id


def remote_bytes(
    model: str, env: Environment, known: Mapping[str, KnownModel] = KNOWN_MODELS
) -> int | None:
    """Of all its files; None: nobody can be asked. Raises what asking the hub raises."""
    check_model(model)
    if model in known:
        return known[model].num_bytes
    hub_id = parse_hub_id(model)
    if hub_id is None or env.hf_offline:
        return None
    from firsthand.weights.hub import hub_bytes  # only here HTTP is needed

    return hub_bytes(hub_id, env)
