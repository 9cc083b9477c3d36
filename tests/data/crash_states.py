"""What a disk may hold after the power went: many such states, and a run gone on with from each.

Owns: which states a sequence of calls may leave, the comparison. May not know: pytest. Read next:
`kill_shim.c`, which writes the calls down; `killing.py`, whose run it is.

    LD_PRELOAD=shim.so python -m tests.data.crash_states shim.so FOLDER KIND SEED SHARE

Of a file the bytes that were synced are there. Each call since then is there, or not, or, of a
write, some of its blocks of 512 bytes; in any order, for none waits for another. A name that was
changed or went since the folder was synced is there as it was, or as it is. One line of JSON: how
many states there were, and each that went wrong.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.data.killing import compared, job_in, prepare, run

BLOCK = 512
HEAD = struct.Struct("=qqqq")


@dataclass(frozen=True)
class Call:
    """`what`, by a letter: write, sync, truncate, unlink, rename."""

    what: str
    path: str
    at: int
    content: bytes


@dataclass
class Disk:
    """`synced` are files as they are for certain; `since` the calls that are not."""

    synced: dict[str, bytes]
    since: list[Call] = field(default_factory=list)

    def do(self, call: Call, folder: Path) -> None:
        """A sync of a file makes its bytes certain, one of the folder its names."""
        if call.what != "s":
            self.since.append(call)
            return
        kept = []
        for one in self.since:
            of_names = one.what in "ur"
            if of_names == (call.path == str(folder)) and (of_names or one.path == call.path):
                apply(self.synced, one)
            else:
                kept.append(one)
        self.since = kept

    def states(self, chance: random.Random) -> Iterator[dict[str, bytes]]:
        """None of what is open, all of it, and some of it at random, blocks torn."""
        for share in (0.0, 1.0, chance.random(), chance.random()):
            files = dict(self.synced)
            for call in self.since:
                if chance.random() < share:
                    torn = share < 1.0 and call.what == "w" and chance.random() < 0.5
                    for part in blocks(call, chance) if torn else (call,):
                        apply(files, part)
            yield files


def blocks(call: Call, chance: random.Random) -> Iterator[Call]:
    """Some of a write's blocks."""
    end = call.at + len(call.content)
    for begin in range(call.at - call.at % BLOCK, end, BLOCK):
        low, high = max(begin, call.at), min(begin + BLOCK, end)
        if chance.random() < 0.5:
            yield Call("w", call.path, low, call.content[low - call.at : high - call.at])


def apply(files: dict[str, bytes], call: Call) -> None:
    now = files.get(call.path, b"")
    match call.what:
        case "w":
            end = call.at + len(call.content)
            files[call.path] = now[: call.at].ljust(call.at, b"\0") + call.content + now[end:]
        case "t":
            files[call.path] = now[: call.at].ljust(call.at, b"\0")
        case "u":
            files.pop(call.path, None)
        case "r" if call.path in files:
            files[call.content.decode()] = files.pop(call.path)


def calls_of(log: bytes) -> Iterator[Call]:
    at = 0
    while at < len(log):
        what, place, path_bytes, num_bytes = HEAD.unpack_from(log, at)
        end = at + HEAD.size + path_bytes
        yield Call(chr(what), log[at + HEAD.size : end].decode(), place, log[end : end + num_bytes])
        at = end + num_bytes


def main(arguments: list[str]) -> None:
    library, place, kind, seed, share = arguments
    shim, chance = ctypes.CDLL(library), random.Random(int(seed))
    folder, log = Path(place).resolve(), Path(place).resolve() / "log"
    (folder / "run").mkdir()
    job = prepare(folder / "run", kind)
    here = job.folder
    before = {str(one): one.read_bytes() for one in here.iterdir() if one.suffix != ".db-shm"}
    times = {path: os.stat(path).st_mtime_ns for path in before}
    shim.shim_record(str(here).encode(), str(log).encode())
    wanted = run(job, resume=False)
    shim.shim_record(b"/nowhere", b"/dev/null")
    content = (here / "out.jsonl").read_bytes()
    disk, wrong, num_states = Disk(before), list[str](), 0
    for number, call in enumerate(calls_of(log.read_bytes())):
        disk.do(call, here)
        if chance.random() >= float(share):
            continue
        for which, files in enumerate(disk.states(chance)):
            num_states += 1
            shutil.rmtree(here)
            here.mkdir()
            for path, held in files.items():
                Path(path).write_bytes(held)
                if path in times:
                    os.utime(path, ns=(times[path], times[path]))
            again = job_in(here, kind, job.file.source.model_dump(exclude_unset=True))
            try:
                complaint = compared(again, content, wanted, run(again, resume=True))
            except Exception as fault:
                complaint = repr(fault)
            if complaint:
                wrong.append(f"call {number} ({call.what} {call.path}), state {which}: {complaint}")
    print(json.dumps({"states": num_states, "wrong": wrong}))


if __name__ == "__main__":
    main(sys.argv[1:])
