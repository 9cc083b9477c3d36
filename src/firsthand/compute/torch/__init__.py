"""The torch executor: every operator its formula, run at once; the reference for all others.

Owns: the only imports of torch in Firsthand.
May not know: models, scheduling, files.
Read next: `ops.py`, then `attention.py`.

Importing this package without torch raises InvalidRequest. So whoever offers a choice of
executors imports it when it has been chosen, never before.
"""

from __future__ import annotations

from firsthand.errors import InvalidRequest

try:
    import torch  # noqa: F401
except ImportError as error:
    raise InvalidRequest(
        "executor", "'torch' needs the torch extra: pip install 'firsthand[torch]'"
    ) from error
