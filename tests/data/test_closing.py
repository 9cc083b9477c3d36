"""A source is closed while another thread reads from it: the reader ends, and the process does not.

Owns: these proofs, each in a process of its own, since what they guard against ends one.
May not know: runs. Read next: `test_killed.py`, which found it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.process

QUEUE = """
import contextlib, sqlite3, sys, threading, time
from pathlib import Path
from firsthand.data.queues.sqlite import SqliteQueue

def read():
    with contextlib.suppress(sqlite3.Error):
        queue.receive(0.0)

path = Path(sys.argv[1])
queue = SqliteQueue(path, "asks", "us")
queue.send([(str(n), b"{}") for n in range(64)])
other = sqlite3.connect(path, isolation_level=None)
other.execute("BEGIN IMMEDIATE")  # so that the reader waits inside its statement
reader = threading.Thread(target=read, daemon=True)
closer = threading.Thread(target=queue.close, daemon=True)
reader.start()
time.sleep(0.2)
closer.start()
time.sleep(0.2)
other.execute("ROLLBACK")
closer.join(10)
reader.join(10)
print(closer.is_alive(), reader.is_alive())
"""

# The first row comes at once; the next one would take for minutes.
TABLE = """
import sqlite3, sys, threading, time
from pathlib import Path
from firsthand.data.sources.tables import _sqlite

def read():
    try:
        list(rows.rows)
    except rows.faults as fault:
        print(fault)

path = Path(sys.argv[1])
made = sqlite3.connect(path)
made.execute("CREATE TABLE asks (id INTEGER PRIMARY KEY)")
made.executemany("INSERT INTO asks VALUES (?)", [(1,), (2,), (3,)])
made.commit()
slow = (
    "SELECT id FROM asks WHERE id = 1 OR (SELECT count(*) FROM (WITH RECURSIVE n(i) AS "
    "(SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000) SELECT i FROM n "
    "WHERE i % 2 = id % 2)) > 0"
)
rows = _sqlite(path, slow, "id", ())
reader = threading.Thread(target=read, daemon=True)
reader.start()
time.sleep(0.3)
rows.close()
reader.join(10)
print(reader.is_alive())
"""


def ran(code: str, path: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", code, path],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_queue_is_closed_under_its_reader(tmp_path: Path) -> None:
    assert ran(QUEUE, tmp_path / "queue.db") == (0, "False False\n")


def test_a_query_is_given_up_under_its_reader(tmp_path: Path) -> None:
    assert ran(TABLE, tmp_path / "table.db") == (0, "interrupted\nFalse\n")
