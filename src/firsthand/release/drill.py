"""The drill: deploy a release and return to the one before it, under load, in a server of its own.

Owns: what is checked, in which order, and what counts as recovered.
May not know: the form of the report, how requests are made.
Read next: `drill_load.py`, `drill_report.py`.

It touches no server that others use: one is started for it, with the release that is current, and
ends with it. It holds no lock, so that a rollback need not wait for it. A check that fails ends
the drill where the next ones cannot be made without it.
"""

from __future__ import annotations

import http.client
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Final

from firsthand.errors import EngineUnavailable, FirsthandError, ReleaseRefused
from firsthand.release.drill_load import NUM_CLIENTS, Load
from firsthand.release.drill_report import Finding, Report, write_report
from firsthand.release.engines import PROGRAM, command, python_of
from firsthand.release.history import now
from firsthand.release.record import Release, verify_release
from firsthand.release.sockets import AdminSocket
from firsthand.release.store import Store
from firsthand.unix_http import exchange
from firsthand.values import dataclass
from firsthand.version import VERSION
from firsthand.weights.sums import Sums

RECOVERY_S: Final = 10.0
START_S: Final = 600.0
ANSWERS_S: Final = 120.0
HEADER_CHARS: Final = 16  # of a release's hash, in an answer's header


@dataclass(slots=True)
class Drill:
    """`read_configuration` raises FirsthandError for a release that this engine cannot run as it
    says; `tell` gets a line for a person."""

    store: Store
    read_configuration: Callable[[Path], object]
    tell: Callable[[str], None]
    new_contract: bool = False  # another one than that of what is served is meant
    _findings: list[Finding] = field(default_factory=list)
    _deploy_s: float | None = None
    _recovery_s: float | None = None

    def run(self, word: str) -> Report:
        """Of a release, back to the current one; of the current one, to the one before. Raises
        ReleaseRefused where there is none, ModelNotFound, CheckpointError."""
        new = self.store.find(word)
        current = self.store.current()
        back = self.store.previous() if current == new.number else current
        if back is None:
            raise ReleaseRefused("there is no earlier release to return to")
        old = self.store.read(back)
        began_s, at, load = time.perf_counter(), now(), None
        if self._at_rest(old, new):
            load = self._under_load(old, new)
        report = Report(
            release=new.number,
            id=new.id,
            back_to=old.number,
            back_to_id=old.id,
            at=at,
            findings=tuple(self._findings),
            num_requests=0 if load is None else load.num_requests,
            num_failed=0 if load is None else len(load.faults),
            deploy_s=self._deploy_s,
            recovery_s=self._recovery_s,
            seconds=round(time.perf_counter() - began_s, 3),
        )
        write_report(self.store, report)
        return report

    def _at_rest(self, old: Release, new: Release) -> bool:
        """What can be seen without a server: every byte is read, whatever is remembered."""
        for release in (old, new):
            folder = self.store.folder(release.number)
            self._try(f"files of {release.number}", partial(_files, folder, release))
            self._try(
                f"configuration of {release.number}", partial(self._configuration, folder, release)
            )
        was, now = old.contract_hash, new.contract_hash
        same = was == now
        detail = "the same" if same else f"{now or 'none'} instead of {was or 'none'}"
        if not same and not (was is None or self.new_contract):
            detail += "; --new-contract says that this is meant"
        self._found("contract of the data", same or was is None or self.new_contract, detail)
        has = old.golden is not None and new.golden is not None
        self._found(
            "golden tokens on record", has, "of both" if has else "stage without --no-golden"
        )
        return all(one.passed for one in self._findings)

    def _configuration(self, folder: Path, release: Release) -> str:
        """Each by the engine that is to serve it. Raises FirsthandError."""
        if release.engine_version == VERSION:
            self.read_configuration(folder)
            return "this engine reads it"
        python = python_of(self.store.root, release.engine_version)
        asked = subprocess.run(
            command(python, ["config", "check", str(folder)]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWERS_S,
            check=False,
        )
        if asked.returncode:
            raise ReleaseRefused(f"engine {release.engine_version}: {asked.stderr.strip()[-300:]}")
        return f"engine {release.engine_version} reads it"

    def _under_load(self, old: Release, new: Release) -> Load | None:
        load = None
        try:
            with _server(self.store, old) as (public, admin, key):
                load = Load(public, key, {_header(one): _golden(one) for one in (old, new)})
                load.start()
                try:
                    self._there_and_back(load, admin, old, new)
                finally:
                    load.stop()
                tokens = load.ask(*_asked(old), stream=False)
                right = tokens == (_header(old), _golden(old)[1])
                self._found(f"golden tokens of {old.number}", right, str(tokens[1]))
        except (FirsthandError, ValueError) as error:
            self._found("the server", False, str(error))
        if load is not None:
            lost = f"{load.num_requests} requests, {len(load.faults)} failed"
            shown = "; ".join([lost, *load.faults[:3]])
            self._found("nothing lost", not load.faults and load.num_requests > 0, shown)
        return load

    def _there_and_back(self, load: Load, admin: AdminSocket, old: Release, new: Release) -> None:
        """Raises FirsthandError."""
        answers = 2 * NUM_CLIENTS
        load.wait_answers(_header(old), answers, ANSWERS_S)
        self.tell(f"deploying {new.number}")
        began_s = time.perf_counter()
        admin.release(self.store.folder(new.number).resolve(), None)
        self._deploy_s = round(time.perf_counter() - began_s, 3)
        came = load.wait_answers(_header(new), answers, ANSWERS_S)
        self._found(f"{new.number} answers", came, f"deployed in {self._deploy_s:.2f} s")
        self.tell(f"returning to {old.number}")
        began_s = time.perf_counter()
        admin.release(self.store.folder(old.number).resolve(), None)
        back = load.wait_answers(_header(old), 1, ANSWERS_S)
        self._recovery_s = round(time.perf_counter() - began_s, 3)
        in_time = back and self._recovery_s <= RECOVERY_S
        detail = f"{self._recovery_s:.2f} s; the limit is {RECOVERY_S:g} s"
        self._found("time to recover", in_time, detail)
        load.wait_answers(_header(old), answers, ANSWERS_S)

    def _try(self, check: str, work: Callable[[], str]) -> None:
        began_s = time.perf_counter()
        try:
            detail, passed = work(), True
        except (FirsthandError, OSError) as error:
            detail, passed = str(error), False
        self._found(check, passed, detail, round(time.perf_counter() - began_s, 3))

    def _found(self, check: str, passed: bool, detail: str, seconds: float | None = None) -> None:
        self._findings.append(Finding(check, passed, detail, seconds))
        self.tell(f"{check}: {'passed' if passed else 'failed'}: {detail}")


def _files(folder: Path, release: Release) -> str:
    manifest = verify_release(folder, release, Sums(None))
    return f"{len(manifest.files)} files, {sum(one.size for one in manifest.files)} bytes"


def _header(release: Release) -> str:
    return release.id[:HEADER_CHARS]


def _golden(release: Release) -> tuple[list[int], list[int]]:
    assert release.golden is not None, "checked before"
    return list(release.golden["prompt"]), list(release.golden["tokens"])


def _asked(release: Release) -> tuple[list[int], int]:
    prompt, tokens = _golden(release)
    return prompt, len(tokens)


@contextmanager
def _server(store: Store, release: Release) -> Iterator[tuple[Path, AdminSocket, str]]:
    """Its public socket, its admin socket, its key. Raises EngineUnavailable, ReleaseRefused."""
    folder, version = store.folder(release.number), release.engine_version
    program = [sys.executable, "-c", PROGRAM]
    if version != VERSION:
        program = command(python_of(store.root, version), [])
    with tempfile.TemporaryDirectory(prefix="drill-") as place:
        public, admin, log = Path(place, "public"), Path(place, "admin"), Path(place, "log")
        key = secrets.token_hex(16)
        arguments = [
            *program,
            *("serve", str(folder), "--uds", str(public)),
            *("--admin-socket", str(admin), "--api-key", key, "--log-format", "json"),
        ]
        with log.open("wb") as out:
            process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        try:
            _wait_ready(process, public, key, log)
            yield public, AdminSocket(admin), key
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], public: Path, key: str, log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError, http.client.HTTPException):
            if exchange(public, "GET", "/readyz", key=key).status == 200:
                return
        time.sleep(0.05)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    raise EngineUnavailable(f"the server of the drill did not become ready: {lines[-3:]}")
