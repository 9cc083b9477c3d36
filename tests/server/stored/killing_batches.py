"""An upload, a batch and its end, killed at each call that changes a file, and gone on with: run by
`test_killed_batches.py`.

Owns: the kills, what has to be there afterwards. May not know: pytest. Read next:
`tests/data/kill_shim.c`.

    LD_PRELOAD=shim.so python -m tests.server.stored.killing_batches shim.so FOLDER FIRST STEP

One line of JSON: how many calls there are, how many were tried, and each that went wrong.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from firsthand.server.stored.batches import COMPLETED, Batches
from firsthand.server.stored.catalogue import open_catalogue
from firsthand.server.stored.files import Bounds, Files, Page, make_folders
from firsthand.server.stored.runner import Runner
from tests.data.jobs import Answers, prompt_of

NUM = 60
URL = "/v1/chat/completions"


def request(number: int) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": f"text {number}"}]}
    return {"custom_id": f"r{number}", "url": URL, "body": body}


CONTENT = b"".join(json.dumps(request(number)).encode() + b"\n" for number in range(NUM))


def rule(body: dict[str, Any], tries: int) -> tuple[int, str]:
    """Each tenth is refused."""
    text = prompt_of(body)
    return (400, "no") if text.endswith("7") else (200, text.upper())


def opened(folder: Path) -> tuple[Batches, Runner]:
    make_folders(folder)
    batches = Batches(Files(folder, open_catalogue(folder / "catalogue.db"), Bounds()))
    return batches, Runner(batches, lambda batch: Answers(rule), threading.Event())


def ask(folder: Path) -> None:
    """All of it, as a server would."""
    batches, runner = opened(folder)
    upload = batches.files.begin()
    upload.write(CONTENT)
    file = upload.keep("", "in.jsonl", "batch", None)
    upload.close()
    batches.create("", URL, file.id, None, None)
    while runner.turn():
        pass


def go_on(folder: Path) -> str:
    """What is wrong after another server came; empty: nothing."""
    batches, runner = opened(folder)
    runner.sweep()
    while runner.turn():
        pass
    files = batches.files
    kept, _ = files.list("", Page(100), None)
    found, _ = batches.list("", Page(100))
    if sorted(os.listdir(folder / "files")) != sorted(one.id for one in kept):
        return "files and their rows differ"
    if os.listdir(folder / "incoming"):
        return "an upload was left"
    if any(files.path(one.id).stat().st_size != one.num_bytes for one in kept):
        return "half a file"
    if not found:
        return "" if len(kept) < 2 else "outputs of nothing"
    (batch,) = found
    if (batch.status, batch.completed, batch.failed) != (COMPLETED, NUM - 6, 6):
        return f"another end: {batch}"
    ids = []
    for file_id in (batch.output_file_id, batch.error_file_id):
        lines = files.path(str(file_id)).read_bytes().splitlines()
        ids += [json.loads(line)["custom_id"] for line in lines]
    if sorted(ids) != sorted(f"r{number}" for number in range(NUM)) or len(kept) != 3:
        return f"lost or double: {ids}"
    return ""


def main(arguments: list[str]) -> None:
    library, place, first, step = arguments
    shim = ctypes.CDLL(library)
    shim.shim_calls.restype = ctypes.c_long
    folder = Path(place).resolve()
    shim.shim_arm(str(folder / "whole").encode(), ctypes.c_long(-2), 0)
    ask(folder / "whole")
    num_calls, wrong = int(shim.shim_calls()), list[str]()
    shim.shim_arm(b"/nowhere", ctypes.c_long(-2), 0)
    points = range(int(first), num_calls, int(step))
    for at in points:
        here = folder / "killed"
        process = os.fork()
        if process == 0:
            shim.shim_arm(str(here).encode(), ctypes.c_long(at), 0)
            ask(here)
            os._exit(0)
        os.waitpid(process, 0)
        try:
            complaint = go_on(here)
        except Exception as fault:
            complaint = repr(fault)
        if complaint:
            wrong.append(f"call {at}: {complaint}")
        shutil.rmtree(here)
    print(json.dumps({"calls": num_calls, "tried": len(points), "wrong": wrong}))


if __name__ == "__main__":
    main(sys.argv[1:])
