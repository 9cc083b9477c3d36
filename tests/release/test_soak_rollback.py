"""D-9, G24: rollback under full traffic, again and again, with its time and what it lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from firsthand.release.sockets import AdminSocket
from firsthand.release.store import Store
from firsthand.release.switching import Switch
from tests.release.conftest import SUMS, stage_micro
from tests.release.traffic import Traffic
from tests.server.processes import launched

ROUNDS = 20
LIMIT_S = 10.0


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.native
def test_g24_every_rollback_is_quick_and_loses_nothing(tmp_path: Path, models: Path) -> None:
    store = Store(tmp_path / "store")
    first, second = (
        stage_micro(store, models / f"model-{seed}", seed, golden=True) for seed in (1, 2)
    )
    Switch(store, None, None, SUMS).promote("1")
    admin = tmp_path / "admin"
    flags = (str(store.root / "current"), "--admin-socket", str(admin))
    seconds = []
    with launched(tmp_path, *flags) as server:
        server.wait_ready(300)
        switch = Switch(store, AdminSocket(admin), None, SUMS)
        with Traffic(server) as traffic:
            for _ in range(ROUNDS):
                traffic.wait(first)
                switch.promote("2", force=True)
                traffic.wait(second)
                seconds.append(switch.rollback()["seconds"])
                traffic.wait(first)
    print(f"{ROUNDS} rollbacks, the slowest {max(seconds):.2f} s; {len(traffic.seen)} requests")
    assert max(seconds) < LIMIT_S
    assert traffic.failed == []
