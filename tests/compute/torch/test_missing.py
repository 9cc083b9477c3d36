"""Without torch: the choice of this executor is refused with the way to get it.

Owns: the one error. May not know: torch. Read next: `test_executor.py`.
"""

from __future__ import annotations

import importlib
import sys

import pytest

from firsthand.errors import InvalidRequest


def test_without_torch_the_refusal_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "firsthand.compute.torch"
    for module in [name, *(m for m in sys.modules if m.startswith(name + "."))]:
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InvalidRequest, match=r"executor: .*pip install 'firsthand\[torch\]'"):
        importlib.import_module(name + ".executor")
