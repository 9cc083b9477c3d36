"""From loading to the last answer: readiness, drain, the self-check; then the real process.

Owns: proof of `lifecycle.py`, `selfcheck.py`, `running.py`, `admin.py`, `listening.py`, `logs.py`.
Read next: `test_guard_http.py`.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from firsthand.cli.micro_model import write_micro_model
from firsthand.errors import EngineError, InvalidRequest
from firsthand.generation.service import ServiceState, Status
from firsthand.server.admin import bind_unix
from firsthand.server.guard.call import Call, Caller
from firsthand.server.guard.gate import Gate
from firsthand.server.guard.keys import KeyRing
from firsthand.server.guard.queue import Bounds
from firsthand.server.guard.refusal import Refused
from firsthand.server.guard.work import Work
from firsthand.server.health import Checks
from firsthand.server.lifecycle import STALLED_S, Lifecycle
from firsthand.server.listening import check_exposure
from firsthand.server.logs import configure_logging, set_level, tell, tell_request
from firsthand.server.selfcheck import SelfCheck
from firsthand.server.settings import Settings
from tests.server.guarded import CHAT, KEY, guarded
from tests.server.processes import Server, started, stream, streams

WORK = Work(1, 1)


def state(status: Status, progress: float | None = None, age_s: float = 2.0) -> ServiceState:
    return ServiceState(status, "", age_s, None, None, 0, None, progress)


class House:
    """A lifecycle with a clock and an engine of the test."""

    def __init__(self, status: Status = Status.READY, limit_s: float = 1.0) -> None:
        self.now = 10.0
        self.states = [state(status)]
        self.gate = Gate(Bounds(), lambda: self.now, lambda: 0.5)
        self.life = Lifecycle(self.gate, lambda: self.now, lambda: self.states, lambda: limit_s)
        self.gate.door = self.life.door
        self.checks = Checks()
        self.life.add_to(self.checks)

    def refusal(self) -> Refused:
        with pytest.raises(Refused) as found:
            self.gate.admit(Call("r", Caller(), self.now), [WORK])[0]
        return found.value

    @property
    def ready(self) -> bool:
        return all(check.ok for check in self.checks.run().values())

    @property
    def live(self) -> bool:
        return all(check.ok for check in self.checks.run(live_only=True).values())


def test_ops_3_alive_in_every_phase() -> None:
    for status in Status:
        assert House(status).live
    draining = House()
    draining.life.begin_drain("test")
    assert (draining.live, draining.ready) == (True, False)


def test_not_alive_once_no_engine_can_be_brought_back_from_within() -> None:
    house = House()
    lost = replace(state(Status.RESTARTING), is_lost=True)
    for others, live in (
        ([state(Status.READY)], True),
        ([state(Status.ASLEEP)], True),
        ([], False),
    ):
        house.states = [lost, *others]
        assert house.live is live
    assert house.checks.run()["engines"].detail == "1 of 1 died at every start"


@pytest.mark.parametrize("status", [s for s in Status if not s.takes_requests])
def test_without_an_engine_nobody_goes_in(status: Status) -> None:
    found = House(status).refusal()
    assert (found.status, found.code) == (503, "loading")
    assert found.retry_after_s is not None
    assert status.value in found.message


def test_a_load_says_when_to_come_back() -> None:
    house = House(Status.LOADING)
    house.states = [state(Status.LOADING, progress=0.25, age_s=3.0)]
    assert house.refusal().retry_after_s == pytest.approx(9.0)
    house.states = [state(Status.LOADING, progress=1e-9, age_s=3.0)]
    assert house.refusal().retry_after_s == 30.0


def test_one_engine_of_two_is_enough() -> None:
    house = House()
    house.states = [state(Status.ASLEEP), state(Status.READY)]
    house.gate.admit(Call("r", Caller(), house.now), [WORK])[0]


def test_g_23_a_drain_waits_for_what_runs_and_takes_nothing_new() -> None:
    house = House(limit_s=100.0)
    tickets = [house.gate.admit(Call(f"r{n}", Caller(), house.now), [WORK])[0] for n in range(3)]

    async def run() -> list[str]:
        house.life.begin_drain("test")
        waiting = asyncio.ensure_future(house.life.drained())
        for ticket in tickets:
            await asyncio.sleep(0.03)
            assert not waiting.done()
            assert house.refusal().code == "draining"
            ticket.close()
        await asyncio.wait_for(waiting, 1)
        return house.life.cut_ids

    assert asyncio.run(run()) == []


def test_what_is_cut_at_the_limit_is_named() -> None:
    house = House(limit_s=5.0)
    house.gate.admit(Call("slow", Caller(), house.now), [WORK])[0]

    async def run() -> list[str]:
        house.life.begin_drain("test")
        house.now += 5.0
        await asyncio.wait_for(house.life.drained(), 1)
        return house.life.cut_ids

    assert asyncio.run(run()) == ["slow"]


def test_ops_5_what_a_second_signal_cut_is_counted_once() -> None:
    """Its stream is gone from the gate by the time the drain looks again."""
    house = House(limit_s=100.0)
    ticket = house.gate.admit(Call("cut", Caller(), house.now), [WORK])[0]

    async def run() -> None:
        house.life.begin_drain("test")
        house.life.end_patience()
        ticket.close()
        await asyncio.wait_for(house.life.drained(), 1)

    asyncio.run(run())
    assert house.life.cut_ids == ["cut"]


def test_a_full_queue_is_not_ready() -> None:
    house = House()
    house.gate.set_bounds(Bounds(max_running=1, max_waiting=1, shed=False))
    for _ in range(2):
        house.gate.admit(Call("r", Caller(), house.now), [WORK])[0]
    assert not house.ready
    assert "1 of 1 wait" in house.checks.run()["queue"].detail


# The self-check


def selfcheck(answers: Sequence[Sequence[int] | Exception], clock: list[float]) -> SelfCheck:
    left = list(answers)

    async def answer(prompt: Sequence[int], num_tokens: int) -> Sequence[int]:
        assert (tuple(prompt), num_tokens) == ((1, 2), 3)
        given = left.pop(0)
        if isinstance(given, Exception):
            raise given
        return given

    return SelfCheck(((1, 2), (7, 8, 9)), answer, lambda: clock[0], 60.0, looked_up=True)


def test_ops_2_an_engine_that_computes_nothing_is_told_within_ten_seconds() -> None:
    """G13: also where it answers its watch; long before it is given up."""
    house = House()
    for stalled_s, is_ready in ((0.0, True), (7.0, True), (9.0, False), (0.0, True)):
        house.states = [replace(state(Status.READY), stalled_s=stalled_s)]
        assert (house.ready, house.live) == (is_ready, True)
    assert STALLED_S < 10


def test_ready_only_when_the_golden_tokens_are_equal() -> None:
    clock = [0.0]
    check = selfcheck([(7, 8, 9), (7, 8, 8), EngineError("gone"), (7, 8, 9)], clock)
    house = House()
    house.life.selfchecks = {"micro": check}
    assert not check.check().ok
    asyncio.run(check.run_once())
    clock[0] = 4.0
    assert (check.check().ok, check.check().age_s) == (True, 4.0)
    asyncio.run(check.run_once())
    assert (check.check().ok, check.num_wrong) == (False, 1)
    assert house.refusal().code == "degraded"
    asyncio.run(check.run_once())  # no answer says nothing
    assert not check.check().ok
    asyncio.run(check.run_once())
    assert check.check().ok
    house.gate.admit(Call("r", Caller(), 0.0), [WORK])[0]


def test_one_that_sleeps_is_let_be_and_compared_after_each_load() -> None:
    clock = [0.0]
    loads: list[int | None] = [None]
    check = selfcheck([(7, 8, 9), (7, 8, 8)], clock)
    check.loads = lambda: loads[0]
    assert (check.check().ok, check.check().detail) == (True, "not compared yet")

    async def run() -> None:
        checking = asyncio.ensure_future(check.run())
        await asyncio.sleep(0.01)
        assert check.right is None
        for number, right in ((1, True), (2, False)):
            loads[0] = number
            while check.right is not right:
                await asyncio.sleep(0.01)
        checking.cancel()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_without_a_record_nothing_is_claimed() -> None:
    check = selfcheck([], [0.0])
    check.looked_up = False
    assert not check.check().ok
    check.golden, check.looked_up = None, True
    assert check.check().ok
    assert "record-golden" in check.check().detail
    asyncio.run(check.run_once())


# Listening


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
def test_s_75_a_public_address_needs_a_key(host: str) -> None:
    with pytest.raises(InvalidRequest, match="--insecure"):
        check_exposure(Settings(host=host), KeyRing({}))
    check_exposure(Settings(host=host), KeyRing({b"x": Caller("x")}))
    check_exposure(Settings(host=host, insecure=True), KeyRing({}))
    check_exposure(Settings(host=host, uds=Path("/x")), KeyRing({}))
    check_exposure(Settings(), KeyRing({}))


def test_the_admin_socket_is_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "admin"
    listener = bind_unix(path, "admin_socket")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(InvalidRequest, match="another server"):
        listener.listen()
        bind_unix(path, "admin_socket")
    listener.close()
    bind_unix(path, "admin_socket").close()  # what a process that was killed has left


def test_a_file_is_never_taken_for_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("x")
    with pytest.raises(InvalidRequest, match="no socket"):
        bind_unix(path, "admin_socket")
    assert path.read_text() == "x"


# Logs


@pytest.fixture
def lines() -> Iterator[Callable[[], list[dict[str, object]]]]:
    before = logging.getLogger().handlers[:]
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    for handler in logging.getLogger().handlers[:]:
        logging.getLogger().removeHandler(handler)
    for handler in before:
        logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("firsthand").setLevel(logging.NOTSET)


Lines = Callable[[], list[dict[str, object]]]


def test_a_request_is_one_line(lines: Lines) -> None:
    call = Call("r1", Caller("abc"), 1.0, prompt_tokens=3, output_tokens=4, queue_ms=0.12345)
    tell_request(call, {"method": "POST", "path": "/v1/completions"}, 200, 1.5)
    (line,) = lines()
    assert line["request_id"] == "r1"
    assert (line["status"], line["e2e_ms"], line["queue_ms"]) == (200, 500.0, 0.123)
    assert (line["key_id"], line["prompt_tokens"]) == ("abc", 3)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(line["timestamp"]))
    assert {"level", "module", "message", "event"} <= set(line)
    assert "finish_reason" not in line


def test_probes_are_quiet_and_levels_change(lines: Lines) -> None:
    probe = {"method": "GET", "path": "/readyz"}
    tell_request(Call("r", Caller(), 0.0), probe, 200, 0.0)
    assert lines() == []
    set_level("debug")
    tell_request(Call("r", Caller(), 0.0), probe, 200, 0.0)
    assert len(lines()) == 1
    set_level("error")
    tell("x", "y")
    assert len(lines()) == 1


def test_obs_4_the_text_of_a_fault_is_not_logged(lines: Lines) -> None:
    """It may quote what was asked; where it happened is enough."""
    try:
        raise ValueError("zebra-9931")
    except ValueError:
        logging.getLogger("firsthand.server").exception("a fault")
    (line,) = lines()
    assert "zebra-9931" not in json.dumps(line)
    error = line["error"]
    assert isinstance(error, dict) and error["type"] == "ValueError"


def test_g_14_nobody_floods_the_log_by_going_away(lines: Lines) -> None:
    before = len(lines())
    for _ in range(100):
        logging.getLogger("asyncio").warning("socket.send() raised exception.")
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    logging.getLogger("asyncio").warning("something else")
    assert [line["message"] for line in lines()[before:]] == ["something else"]


def test_a_log_that_cannot_be_written_stops_nobody() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "no space left on device")

    before = logging.getLogger().handlers[:]
    handler = configure_logging("info", "json", Full())
    try:
        tell("x", "y")
    finally:
        logging.getLogger().removeHandler(handler)
        for old in before:
            logging.getLogger().addHandler(old)


def test_s_74_neither_key_nor_prompt_is_in_any_line(lines: Lines) -> None:
    marker = b"zebra-9931"
    bodies = [CHAT.replace(b'"hi"', b'"' + marker + b'"'), marker, b'{"' + marker + b'": 1}']
    set_level("debug")
    with guarded() as server:
        for body in bodies:
            for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/predict"):
                _, answer = server.post(path, body)
                assert KEY.encode() not in answer
                server.post(path, body, "Authorization: Bearer wrong-key-zebra-9931\r\n")
        server.service.fault = RuntimeError("zebra-9931")
        assert server.post("/v1/chat/completions", bodies[0])[0] == 500
        metrics = server.get("/metrics")[1]
    text = json.dumps(lines())
    assert len(lines()) >= 20
    assert "zebra-9931" not in text and KEY not in text
    assert marker not in metrics


# The real process


@pytest.fixture(scope="session")
def micro_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_micro_model(tmp_path_factory.mktemp("micro"))


@pytest.mark.native
def test_ops_3_ops_6_live_while_it_loads_and_gone_at_once(
    tmp_path: Path, micro_folder: Path
) -> None:
    with started(tmp_path, micro_folder) as server:
        while server.status("/livez") != 200:
            assert server.process.poll() is None, server.log.read_text()
        code, took_s = server.end(signal.SIGTERM, 10)
        assert (code, took_s < 5) == (0, True), f"{took_s} s\n{server.log.read_text()}"
    assert "Traceback" not in server.log.read_text()


@pytest.mark.native
def test_ops_6_a_signal_before_anything_is_there(tmp_path: Path, micro_folder: Path) -> None:
    for delay_s in (0.4, 0.6, 0.8):
        with started(tmp_path, micro_folder) as server:
            time.sleep(delay_s)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) in (0, -signal.SIGTERM)
        assert "Traceback" not in server.log.read_text()


SIGNAL_AT_THE_END_OF_THE_START = """
import os, signal
from firsthand.cli.main import main
from firsthand.generation.service import Service
read = Service._read_source
async def read_and_be_told(service):
    await read(service)
    os.kill(os.getpid(), signal.SIGTERM)
Service._read_source = read_and_be_told
main()
"""


@pytest.mark.native
def test_ops_6_a_signal_in_the_last_moment_of_the_start(tmp_path: Path, micro_folder: Path) -> None:
    """The loop hears of it when the start has ended already."""
    with started(tmp_path, micro_folder, program=SIGNAL_AT_THE_END_OF_THE_START) as server:
        assert server.process.wait(60) == 0, server.log.read_text()
    assert "Traceback" not in server.log.read_text()


@pytest.mark.native
def test_o_9_a_drain_finishes_what_runs(tmp_path: Path, micro_folder: Path) -> None:
    with started(tmp_path, micro_folder) as server:
        server.wait_ready()
        with stream(server, 250) as answer:
            server.process.send_signal(signal.SIGTERM)
            until = time.perf_counter() + 5
            while server.status() != 503 and server.process.poll() is None:
                assert time.perf_counter() < until
            text = answer.read().decode()
        assert text.rstrip().endswith("data: [DONE]")
        assert server.process.wait(20) == 0
    assert server.told("stopped")


@pytest.mark.native
def test_ops_4_what_is_over_the_limit_is_cut_with_an_error(
    tmp_path: Path, long_folder: Path
) -> None:
    with started(tmp_path, long_folder, "--shutdown-timeout", "0.3") as server:
        server.wait_ready()
        with streams(server, 4, 8000) as answers:
            server.process.send_signal(signal.SIGTERM)
            texts = [answer.read().decode() for answer in answers]
        assert server.process.wait(20) == 0
    cut = [text for text in texts if '"error"' in text]
    assert cut, "all were faster than the limit"
    assert all("[DONE]" not in text and '"stop"' not in text for text in cut)
    assert all('"code":"draining"' in text for text in cut)
    named = [line["request_id"] for line in server.told("request_cut")]
    assert len(named) == len(cut)


@pytest.mark.native
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_ops_5_a_second_signal_ends_at_once(
    tmp_path: Path, long_folder: Path, second: signal.Signals
) -> None:
    with started(tmp_path, long_folder) as server:
        server.wait_ready()
        with streams(server, 4, 8000) as answers:
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
            assert server.process.poll() is None
            code, took_s = server.end(second, 20)
            texts = [answer.read().decode() for answer in answers]
        cut = {line["request_id"] for line in server.told("request_cut")}
        assert {line["num_cut"] for line in server.events() if "num_cut" in line} <= {len(cut)}
        assert (code, took_s < 2) == (130, True), (took_s, server.log.read_text())
    assert all('"code":"draining"' in text and "[DONE]" not in text for text in texts)
    assert server.told("request_cut")


IGNORES_ITS_CUT = """
import time
from firsthand.cli.main import main
from firsthand.generation.registry import Registry
async def close(registry):
    time.sleep(60)
Registry.close = close
main()
"""


@pytest.mark.native
def test_ops_5_after_a_second_signal_nothing_is_waited_for_long(
    tmp_path: Path, micro_folder: Path
) -> None:
    with started(tmp_path, micro_folder, program=IGNORES_ITS_CUT) as server:
        server.wait_ready()
        with stream(server, 400):
            server.process.send_signal(signal.SIGTERM)
            # At once, so that the stream is still open; of another kind, since two of one kind
            # that wait to be taken are one.
            code, took_s = server.end(signal.SIGINT, 20)
    assert code == 130 and took_s < 10


@pytest.mark.native
def test_admin_verbs_reload_and_sockets(tmp_path: Path, micro_folder: Path) -> None:
    admin, keys, config = tmp_path / "admin", tmp_path / "keys", tmp_path / "c.toml"
    keys.write_text("first-key-0123456789\n")
    config.write_text(f'api-key-file = "{keys}"\nport = 1\n')
    flags = ("--admin-socket", str(admin), "--config", str(config))
    with started(tmp_path, micro_folder, *flags) as server:
        server.wait_ready()

        def models(key: str) -> int:
            headers = {"x-api-key": key}
            return httpx.get(server.url + "/v1/models", headers=headers).status_code

        transport = httpx.HTTPTransport(uds=str(admin))
        with httpx.Client(transport=transport, base_url="http://admin") as client:

            def verb(name: str) -> httpx.Response:
                return client.post(f"/firsthand/admin/{name}", timeout=20)

            assert stat.S_IMODE(admin.stat().st_mode) == 0o600
            assert (models("first-key-0123456789"), models("second-key-0123456789")) == (200, 401)
            keys.write_text("second-key-0123456789\n")
            config.write_text(f'api-key-file = "{keys}"\nport = 2\nlog-level = "debug"\n')
            assert verb("reload").json() == {"changed": ["log_level"], "needs_restart": []}
            assert (models("first-key-0123456789"), models("second-key-0123456789")) == (401, 200)
            keys.write_text("short\n")
            assert verb("reload").status_code == 400
            assert models("second-key-0123456789") == 200
            keys.write_text("third-key-0123456789\n")
            server.process.send_signal(signal.SIGHUP)
            until = time.perf_counter() + 5
            while models("third-key-0123456789") != 200:
                assert time.perf_counter() < until
            assert verb("loglevel?level=error").json() == {"level": "error"}
            assert verb("loglevel?level=loud").status_code == 400
            assert verb("nothing").status_code == 404
            assert client.get("/firsthand/admin/drain").status_code == 400
            assert verb("sleep").json() == {"status": "asleep"}
            assert server.status() == 503
            assert server.engine_pids() == []
            verb("wake_up")
            server.wait_ready()
            assert verb("drain").json() == {"draining": True, "open": 0}
        assert server.process.wait(20) == 0
    assert not admin.exists()
    assert "third-key" not in server.log.read_text()


@pytest.mark.native
def test_s_75_it_listens_where_it_was_asked_and_nowhere_else(
    tmp_path: Path, micro_folder: Path
) -> None:
    with started(tmp_path, micro_folder) as server:
        server.wait_ready()
        pids = [server.process.pid, *server.engine_pids()]
        assert len(pids) == 2
        assert listening(pids) == {("0100007F", f"{server.port:04X}")}


def listening(pids: Sequence[int]) -> set[tuple[str, str]]:
    """Addresses and ports on which the processes listen, as the system writes them."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(link)))
            except OSError:
                continue
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                host, _, port = words[1].partition(":")
                found.add((host, port))
    return found


@pytest.mark.native
def test_golden_tokens_are_recorded_by_others_and_compared(
    tmp_path: Path, micro_folder: Path
) -> None:
    time.sleep(0.2)  # a file that has only just changed has no hash on record
    home = {"FIRSTHAND_HOME": str(tmp_path / "home")}
    with started(tmp_path, micro_folder, "--record-golden", **home) as recording:
        assert recording.process.wait(60) == 0, recording.log.read_text()
    (record,) = (tmp_path / "home" / "golden").iterdir()

    def checks(server: Server) -> dict[str, dict[str, object]]:
        found = httpx.get(server.url + "/readyz?verbose").json()["checks"]
        assert isinstance(found, dict)
        return found

    with started(tmp_path, micro_folder, "--selfcheck-interval", "0.2", **home) as server:
        server.wait_ready()
        assert checks(server)["golden_tokens:micro"]["detail"] == "equal"
        assert server.end(signal.SIGTERM, 20)[0] == 0
    content = json.loads(record.read_text())
    content["tokens"][-1] ^= 1
    record.write_text(json.dumps(content))
    with started(tmp_path, micro_folder, "--selfcheck-interval", "0.2", **home) as server:
        server.told("selfcheck_wrong", 20)
        assert checks(server)["golden_tokens:micro"]["ok"] is False
        body = {"prompt": "a", "max_tokens": 1}
        refused = httpx.post(server.url + "/v1/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "degraded")


@pytest.mark.native
@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (("--host", "0.0.0.0"), 2, "--insecure"),
        (("--port", "99999"), 2, "--port"),
        (("--api-key", "short"), 2, "16 to 512"),
        (("--memory-limit", "1k"), 5, ""),
        (("--config", "/nonexistent/x.toml"), 2, "--config"),
    ],
)
def test_what_cannot_begin_says_why(
    tmp_path: Path, micro_folder: Path, flags: tuple[str, ...], code: int, says: str
) -> None:
    with started(tmp_path, micro_folder, *flags) as server:
        assert server.process.wait(30) == code, server.log.read_text()
    text = server.log.read_text()
    assert says in text
    assert "Traceback" not in text


@pytest.mark.native
def test_a_port_that_is_taken(tmp_path: Path, micro_folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with started(tmp_path, micro_folder, "--port", str(port)) as server:
            assert server.process.wait(30) == 2
    assert f"{port}" in server.log.read_text()
