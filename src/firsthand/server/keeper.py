"""What is left of a server whose place another engine's server has taken: its process id.

Owns: that whoever started the first server (a shell, systemd, a container) still has the process
that it knows: signals reach the server of now, and its exit code comes back.
May not know: anything of ours. It runs without any module beside the standard library's, in a few
megabytes.
Read next: `handover.py`, which becomes this.

    python -I -S keeper.py CHANNEL PID

CHANNEL is a descriptor. Each signal is one word to the server; each server says its own pid, which
may be another's by then: it hands its end of the channel on, and its process becomes our child.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys

WORDS = {signal.SIGTERM: b"TERM", signal.SIGINT: b"TERM", signal.SIGHUP: b"HUP"}


def main(channel_number: int, pid: int) -> int:
    """The exit code of the last server; negative for a signal."""
    channel = socket.socket(fileno=channel_number)
    waking, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for number in (*WORDS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    poll = select.poll()
    poll.register(waking, select.POLLIN)
    poll.register(channel, select.POLLIN)
    codes: dict[int, int] = {}
    told, text, servers_there = 0, b"", True
    while True:
        _reap(codes)
        if pid in codes:
            return codes[pid]
        if not servers_there and not _has_children():
            return 1
        for descriptor, _ in poll.poll(1000):
            if descriptor == waking:
                told = _tell(os.read(waking, 64), channel, told)
                continue
            content = channel.recv(4096)
            text += content
            *lines, text = text.split(b"\n")
            for line in lines:
                pid = int(line)
            if not content:
                servers_there = False
                poll.unregister(channel)


def _tell(numbers: bytes, channel: socket.socket, told: int) -> int:
    for number in numbers:
        word = WORDS.get(signal.Signals(number))
        if word is None:
            continue
        if word == b"TERM":
            told += 1
            word = b"END" if told > 1 else word
        try:
            channel.sendall(word + b"\n")
        except OSError:  # its end is told by its exit
            return told
    return told


def _reap(codes: dict[int, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        codes[pid] = os.waitstatus_to_exitcode(status)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    code = main(int(sys.argv[1]), int(sys.argv[2]))
    sys.exit(code if code >= 0 else 128 - code)
