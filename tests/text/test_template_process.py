"""Owns: what a hostile template can do (nothing). May not know: messages' rules.
Read next: `text/template_worker.py`."""

from __future__ import annotations

import _thread
import contextlib
import gc
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from firsthand.errors import CapacityExceeded, EngineError, InvalidRequest, TemplateError
from firsthand.text import template_process
from firsthand.text.template_process import (
    MORE_S,
    RENDER_S,
    TemplateProcess,
    check_jinja_version,
)

pytestmark = pytest.mark.process
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="counts children in /proc")


@pytest.fixture(scope="module")
def process() -> Iterator[TemplateProcess]:
    running = TemplateProcess()
    yield running
    running.close()


CANARY = "OPEN('CANARY','w')"
REACH = [
    "''.__class__",
    "''.__class__.__mro__[1].__subclasses__()",
    "[].__class__.__base__.__subclasses__()",
    "{}.__class__.__bases__[0]",
    "().__class__",
    "(1).__class__",
    "true.__class__",
    "messages.__class__",
    "messages.__init__.__globals__",
    "messages.__reduce_ex__(2)",
    "messages[0].__getattribute__('x')",
    "cycler.__init__.__globals__.os.system('true')",
    "cycler.__init__.__globals__['__builtins__']['open']('CANARY', 'w')",
    "joiner.__init__.__globals__.os.environ",
    "namespace.__init__.__globals__['os']",
    "lipsum.__globals__.os.popen('true').read()",
    "lipsum.__globals__['__builtins__']['open']('CANARY', 'w')",
    "range.__class__",
    "dict.__subclasses__()",
    "dict.__init__.__self__",
    "raise_exception.__globals__",
    "raise_exception.__code__",
    "raise_exception.__closure__",
    "strftime_now.__globals__['time']",
    "strftime_now.__closure__[0].cell_contents",
    "strftime_now.__code__.co_consts",
    "self.__init__.__globals__",
    "self._TemplateReference__context",
    "self.__dict__",
    "('' | attr('__class__'))",
    "('' | attr('__cl' ~ 'ass__'))",
    "('' | attr(['__class__'][0]))",
    "(cycler | attr('__init__') | attr('__globals__'))",
    "(messages | map(attribute='__class__') | list)",
    "(['x'] | map('attr', '__class__') | list)",
    "(['x'] | map(attribute='__class__.__mro__') | list)",
    "(['x'] | selectattr('__class__') | list)",
    "(['x'] | groupby('__class__') | list)",
    "(['x'] | sort(attribute='__class__') | list)",
    "(['x'] | sum(attribute='__class__'))",
    "'{0.__class__}'.format('x')",
    "'{0.__class__.__mro__}'.format(messages)",
    "'{x.__class__}'.format_map({'x': ''})",
    "('{0.__class__}' | attr('format'))('x')",
    "(['{0.__class__}'.format] | first)('x')",
    "(['{0.__class__}'.format] | map('string') | first)[999].x",
    "''['__class__']['__mro__'].x",
    "''.join.__self__.__class__",
    "''.join.__call__",
    "''.encode.__self__.x",
    "messages.append({'role': 'user'})",
    "messages.clear()",
    "messages[0].update({'role': 'x'})",
    "messages[0].pop('role')",
    "messages.sort()",
    "messages.extend([1])",
    "open('CANARY', 'w')",
    "__import__('os').system('true')",
    "import_module('os')",
    "eval('1')",
    "exec('1')",
    "getattr('', '__class__')",
    "globals()",
    "config.items()",
    "request.application.__globals__",
    "loop.__class__",
    "get_flashed_messages.__globals__",
    "url_for.__globals__",
    "caller.__class__",
    "varargs.__class__",
    "range(10).__iter__.__self__",
    "(x for x in ())",
    "messages.__class__.__init__.__globals__.__builtins__.open('CANARY', 'w')",
]
STATEMENTS = [
    "{% include 'CANARY' %}",
    "{% include ['CANARY', '/etc/hostname'] %}",
    "{% import 'os' as os %}{{ os.system('true') }}",
    "{% from 'os' import system %}",
    "{% extends 'CANARY' %}",
    "{% set f = ''.format %}{{ f.__globals__ }}",
    "{% set x = '{0.__class__}'.format %}{{ x('y') }}",
    "{% set n = namespace() %}{% set n.__class__ = 1 %}{{ n.__class__ }}",
    "{% for k, v in cycler.__init__.__globals__.items() %}{{ k }}{% endfor %}",
    "{% macro m() %}{{ caller._func }}{% endmacro %}{% call m() %}{% endcall %}",
    "{% macro m() %}{{ varargs.__class__ }}{% endmacro %}{{ m(1) }}",
    "{% macro m() %}{% endmacro %}{{ m.__call__.__func__.__globals__ }}",
    "{% for x in [1] %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{% with x = ''.__class__ %}{{ x.__mro__ }}{% endwith %}",
    "{% filter attr('__class__') %}x{% endfilter %}",
    "{% do messages.append(1) %}",
    "{% python %}import os{% endpython %}",
]


@pytest.mark.parametrize("template", [f"{{{{ {it} }}}}" for it in REACH] + STATEMENTS)
def test_s_20_escapes_are_refused(process: TemplateProcess, tmp_path: Path, template: str) -> None:
    canary = tmp_path / "canary"
    source = template.replace("CANARY", str(canary))
    before = dict(os.environ)
    with pytest.raises(TemplateError) as caught:
        process.render(source, {"messages": [{"role": "user", "content": "x"}]}, None)
    assert not canary.exists() and dict(os.environ) == before
    message = str(caught.value)
    assert "Traceback" not in message and "/" not in message and "\n" not in message


def test_s_20_there_are_at_least_sixty() -> None:
    assert len({*REACH, *STATEMENTS}) >= 60


PROOFS = {
    "CVE-2024-56326, stored format": "{% set f = '{0.__class__.__base__}'.format %}{{ f(1) }}",
    "CVE-2019-10906, format_map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "CVE-2025-27516, attr": "{{ ('{0.__class__}' | attr('format'))(1) }}",
    "CVE-2024-56201, name of a block": "{% block f'{x}' %}{% endblock %}",
}


@pytest.mark.parametrize("name", PROOFS)
def test_s_21_published_proofs(process: TemplateProcess, name: str) -> None:
    with pytest.raises(TemplateError):
        process.render(PROOFS[name], {}, None)


def test_s_21_old_jinja_is_refused() -> None:
    for version in ("3.1.6", "3.2.0", "4.0"):
        check_jinja_version(version)
    for version in ("3.1.5", "2.11.3", "3.1", "3.0.9", "x"):
        with pytest.raises(EngineError, match=r"3\.1\.6"):
            check_jinja_version(version)


LOOPS = "{% for i in range(1000) %}" * 8 + "{% endfor %}" * 8
BOMBS = {
    "range of 10^9": "{% for i in range(10**9) %}{% endfor %}",
    "eight loops": LOOPS,
    "long text": "{{ 'a' * 10**10 }}",
    "long list": "{{ [1] * 10**10 }}",
    "wide field": "{{ '%1000000000d' % 1 }}",
    "wide format": "{{ '{:1000000000d}'.format(1) }}",
    "center": "{{ 'a' | center(10**9) }}",
    "indent": "{{ ('a\\n' * 10**6) | indent(10**6) }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "power in steps": "{% set n = 9 ** 9 %}{{ n ** n }}",
    "macro that calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "macro that calls itself twice": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}"
    "{% endif %}{% endmacro %}{{ m(60) }}",
    "two megabytes": "{% for i in range(2000) %}{{ 'a' * 1000 }}{% endfor %}",
    "doubling": "{% set n = namespace(x='aa') %}{% for i in range(60) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "replace": "{{ ('a' * 10**5).replace('a', 'b' * 10**5) }}",
    "many parentheses": "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "json": "{{ ([[1] * 1000] * 1000) | tojson(indent=1000) }}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_s_22_prompt_7_bombs_end_and_the_next_render_works(
    process: TemplateProcess, name: str
) -> None:
    process.render(f"{name} is not known yet", {}, None)  # its child is up
    started = time.perf_counter()
    with pytest.raises(TemplateError):
        process.render(BOMBS[name], {}, None)
    assert time.perf_counter() - started <= RENDER_S + MORE_S + 1.0
    assert process.render("still {{ x }}", {"x": "here"}, None) == "still here"


def test_a_refusal_reaches_the_user_in_its_own_words(process: TemplateProcess) -> None:
    with pytest.raises(TemplateError, match="refused: no system role") as caught:
        process.render("{{ raise_exception('no system role') }}", {}, None)
    assert caught.value.field == "messages"


def test_what_chat_templates_use(process: TemplateProcess) -> None:
    def render(source: str, **variables: object) -> str:
        return process.render(source, variables, 0.0)

    assert render("{% for i in [1,2,3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
    assert render("{{ x | tojson }}", x={"a": "<é'>"}) == '{"a": "<é\'>"}'
    assert render("{{ x | tojson(indent=1) }}", x=[1]) == "[\n 1\n]"
    assert render("{{ strftime_now('%Y') }}") in ("1969", "1970")
    assert render("a\n  {% if true %}\nb\n  {% endif %}\nc") == "a\nb\nc"
    assert render("{% generation %}x{% endgeneration %}") == "x"
    assert render("{% set n = namespace(a=1) %}{% set n.a = 2 %}{{ n.a }}") == "2"
    assert render("{{ 'a\\tb' }}{{ x | trim }}", x=" 中🚀 ") == "a\tb中🚀"


def test_requests_that_are_no_json(process: TemplateProcess) -> None:
    loop: list[object] = []
    loop.append(loop)
    for value in (object(), float("nan"), b"x", loop, {1, 2}):
        with pytest.raises(InvalidRequest):
            process.render("x", {"x": value}, None)


def test_one_process_serves_many_threads() -> None:
    process = TemplateProcess()
    results: list[str] = []

    def render(number: int) -> None:
        results.append(process.render("{{ n }}", {"n": number}, None))

    threads = [threading.Thread(target=render, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    process.close()
    assert sorted(results) == [str(number) for number in range(8)]


def test_nothing_is_rendered_after_close() -> None:
    process = TemplateProcess()
    process.close()  # before the first child
    with pytest.raises(EngineError, match="closed"):
        process.render("x", {}, None)
    process.close()


@on_linux
def test_a_render_that_waits_for_the_processor_is_not_at_fault() -> None:
    """Its limit is of its own time: here the child is stopped for longer than that."""
    process = TemplateProcess(render_s=0.2)
    process.render("warm", {}, None)
    found: list[str] = []
    (child,) = [lane.child for lane in process._lanes if lane.child is not None]
    pid = child._process.pid
    os.kill(pid, signal.SIGSTOP)
    thread = threading.Thread(target=lambda: found.append(process.render("works", {}, None)))
    thread.start()
    time.sleep(0.6)
    assert thread.is_alive()
    os.kill(pid, signal.SIGCONT)
    thread.join(20)
    assert found == ["works"]
    with pytest.raises(TemplateError, match="stopped"):
        process.render(LOOPS, {}, None)
    process.close()


def test_close_ends_a_render_that_runs() -> None:
    process = TemplateProcess(render_s=20.0)
    errors: list[Exception] = []

    def render() -> None:
        try:
            process.render(LOOPS, {}, None)
        except EngineError as error:
            errors.append(error)

    process.render("warm", {}, None)
    thread = threading.Thread(target=render)
    thread.start()
    time.sleep(0.2)
    process.close()
    thread.join(5.0)
    assert len(errors) == 1 and "closed" in str(errors[0])
    assert all(lane.ended and lane.child is None for lane in process._lanes)


def test_a_child_that_dies_between_renders_is_replaced(process: TemplateProcess) -> None:
    process.render("x", {}, None)
    for lane in process._lanes:
        if lane.child is not None:
            lane.child._process.kill()
            lane.child._process.wait()
    assert process.render("x", {}, None) == "x"
    assert process.render("an unknown x", {}, None) == "an unknown x"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError, RuntimeError])
def test_s_20_an_interrupt_never_gives_a_reply_to_the_next_caller(
    monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    """Between the request and its reply: the reply would stay in the pipe."""
    process = TemplateProcess()
    process.render("warm", {}, None)

    def interrupted(*_: object) -> None:
        raise kind

    with monkeypatch.context() as patch:
        patch.setattr(template_process, "_read_frame", interrupted)
        with pytest.raises(kind):
            process.render("{{ x }}", {"x": "the secret of one"}, None)
    assert process.render("{{ x }}", {"x": "another"}, None) == "another"
    process.close()


def test_a_reply_of_another_number_ends_the_child() -> None:
    process = TemplateProcess()
    process.render("warm", {}, None)
    child = process._lanes[1].child
    assert child is not None
    child._num_asked += 1
    request = b'{"template": "x", "variables": {}}'
    assert child._process.stdin is not None
    child._process.stdin.write(struct.pack(">II", 1, len(request)) + request)
    with pytest.raises(TemplateError, match="stopped"):
        process.render("another", {}, None)
    assert not child.is_alive()
    process.close()


def test_s_22_bombs_do_not_hold_up_what_rendered_well() -> None:
    process = TemplateProcess()
    for _ in range(2):
        assert process.render("good", {}, None) == "good"

    def bomb(number: int) -> None:
        with pytest.raises((TemplateError, CapacityExceeded)):
            process.render(f"{number}{LOOPS}", {}, None)

    threads = [threading.Thread(target=bomb, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    started = time.perf_counter()
    for _ in range(5):
        assert process.render("good", {}, None) == "good"
    assert time.perf_counter() - started < 0.8
    for thread in threads:
        thread.join()
    process.close()


def test_s_22_suspects_come_last() -> None:
    """However many wait, an unknown template waits for no more than the one that runs."""
    process = TemplateProcess()
    process.render("warm", {}, None)
    process._pool.suspects.add(LOOPS)

    def bomb() -> None:
        with pytest.raises((TemplateError, CapacityExceeded, EngineError)):
            process.render(LOOPS, {}, None)

    threads = [threading.Thread(target=bomb) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    started = time.perf_counter()
    assert process.render("a new one", {}, None) == "a new one"
    assert time.perf_counter() - started < 1.9
    process.close()
    for thread in threads:
        thread.join()


def test_s_22_waiting_is_bounded() -> None:
    process = TemplateProcess(render_s=1.0, wait_s=0.2)
    with pytest.raises(TemplateError):
        process.render(LOOPS, {}, None)

    def bomb() -> None:
        with pytest.raises(TemplateError):
            process.render(LOOPS, {}, None)

    thread = threading.Thread(target=bomb)
    thread.start()
    time.sleep(0.1)
    with pytest.raises(CapacityExceeded, match=r"0\.2 s"):
        process.render(LOOPS, {}, None)
    thread.join()
    process.close()


@on_linux
def test_a_forgotten_pool_ends_its_children() -> None:
    before = children()
    process = TemplateProcess()
    process.render("warm", {}, None)
    assert children() - before
    del process
    gc.collect()
    until_s = time.monotonic() + 5.0
    while children() - before and time.monotonic() < until_s:
        time.sleep(0.01)
    assert children() <= before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_of_us_leaves_the_children_alone() -> None:
    process = TemplateProcess()
    process.render("warm", {}, None)
    child_id = os.fork()
    if child_id == 0:
        try:
            process.close()
            process.render("x", {}, None)
        except EngineError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child_id, 0)[1]) == 7
    assert process.render("x", {}, None) == "x"
    process.close()


@on_linux
def test_an_interrupt_at_any_moment_leaves_a_pool_that_works() -> None:
    """At every instruction of a caller, one after another: of a first render, of later ones."""
    before = children()
    for fresh in (True, False):
        process, num_done = TemplateProcess(), 0
        if not fresh:
            process.render("warm", {}, None)
        for number in range(1, 100_000):
            secret = f"secret of {number}"
            try:
                with interrupted_at(number):
                    assert process.render("{{ x }}", {"x": secret}, None) == secret
            except KeyboardInterrupt:
                continue
            num_done += 1
            if num_done == 2:
                break
        assert number > 60
        assert process.render("{{ x }}", {"x": "works"}, None) == "works"
        assert len(children() - before) <= 2
        process.close()
        assert children() <= before


@on_linux
def test_an_interrupt_of_a_start_or_a_kill_leaves_no_child() -> None:
    """A signal that arrives while the caller waits for either."""
    before = children()
    process = TemplateProcess(render_s=0.1)
    for delay_s in (0.0, 0.01, 0.05, 0.1, 0.11, 0.12, 0.2):
        timer = threading.Timer(delay_s, _thread.interrupt_main)
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            with suppress(TemplateError):
                process.render(LOOPS, {}, None)
            time.sleep(1.0)
        timer.join()
    assert process.render("works", {}, None) == "works"
    process.close()
    assert children() <= before


@on_linux
def test_an_interrupted_close_can_be_repeated() -> None:
    before = children()
    for number in range(1, 200, 20):
        process = TemplateProcess()
        process.render("warm", {}, None)
        with suppress(KeyboardInterrupt), interrupted_at(number):
            process.close()
        process.close()
        assert children() <= before


@contextmanager
def interrupted_at(number: int) -> Iterator[None]:
    """KeyboardInterrupt in this thread before its instruction of that number."""
    left = number

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename == __file__ or frame.f_code.co_filename == contextlib.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def children() -> set[int]:
    """Our child processes, those that ended and were not waited for included."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                found.add(int(path.parent.name))
    return found
