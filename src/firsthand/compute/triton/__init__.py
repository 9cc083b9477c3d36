"""The executor for a CUDA card: the plan of a model over kernels of our own, written in Triton.

Owns: the only imports of triton in Firsthand.
May not know: models, scheduling, files.
Read next: `rows.py`, `linear.py`, `attention.py` (each kernel beside its formula); `executor.py`.

Without a card the same kernels run in Triton's interpreter (TRITON_INTERPRET=1, set before triton
is imported): slow, and good for a proof. Importing this package without torch and triton raises
InvalidRequest.
"""

from __future__ import annotations

from firsthand.errors import InvalidRequest

try:
    import torch  # noqa: F401
    import triton  # noqa: F401
except ImportError as error:
    raise InvalidRequest(
        "executor", "'triton' needs both extras: pip install 'firsthand[torch,gpu]'"
    ) from error
