"""`firsthand top`: what a running server does, in a terminal.

Owns: what of the feed is kept, and how it is laid out.
May not know: HTTP.
Read next: `client.py`, which reads the feed; `../observe/live.py`, which makes it; the page's own
reader is `../server/page/feed.js`.

What comes is not trusted: a field that is missing or of another kind is shown as a dash, and no
text reaches the terminal with control characters in it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from firsthand.cli.output import in_bytes
from firsthand.errors import EngineUnavailable
from firsthand.observe.recording import read
from firsthand.values import dataclass

CLASSES = ("urgent", "normal", "background")
PHASES = ("plan", "prepare", "forward", "sample", "commit")
COLOURS = ("yellow", "magenta", "cyan", "red", "blue")
SHOWN_STEPS = 200
SHOWN_REQUESTS = 12
AGAIN_S = 1.0
BAR = 30


@dataclass(slots=True)
class Seen:
    """Everything that was told of the server so far."""

    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    steps: dict[str, deque[dict[str, Any]]] = field(default_factory=dict)
    around: dict[str, Any] = field(default_factory=dict)
    lost: str | None = None  # why there is no connection
    lock: threading.Lock = field(default_factory=threading.Lock)  # it is drawn by another thread

    def take(self, news: Mapping[str, Any]) -> None:
        with self.lock:
            for model in _objects(news.get("models")):
                name = str(model.get("name"))
                kept = self.steps.setdefault(name, deque(maxlen=SHOWN_STEPS))
                kept.extend(_objects(model.get("steps")))
                self.models.setdefault(name, {}).update(model)
            self.around.update({name: value for name, value in news.items() if name != "models"})


class Server(Protocol):
    """A `Client`."""

    def own(self, path: str) -> dict[str, Any]: ...
    def engine_news(self) -> Generator[dict[str, Any]]: ...


def watch(client: Server) -> None:
    """On a terminal until Ctrl-C, with whatever size it has; elsewhere once, in plain text."""
    seen = Seen()
    # A wrong address is told before the screen is taken.
    seen.take(client.own("/firsthand/engine/state"))
    with _shown(seen) as is_live:
        if is_live:
            follow(client, seen)


def play(recording: Path) -> None:
    """The same of a recording, at its own pace; elsewhere its end. Raises InvalidRequest."""
    seen, news = Seen(), read(recording)
    for _, first in news:
        seen.take(first)
        break
    with _shown(seen) as is_live:
        for gap_s, one in news:
            if is_live:
                time.sleep(gap_s)
            seen.take(one)


@contextmanager
def _shown(seen: Seen) -> Iterator[bool]:
    """What has been seen, on the screen meanwhile; where there is none (False), once at the end."""
    console = Console(highlight=False)
    if not console.is_terminal:
        yield False
        console.print(drawn(seen))
        return
    screen = Live(console=console, screen=True, get_renderable=lambda: drawn(seen))
    with suppress(KeyboardInterrupt), screen:  # Ctrl-C is the way out
        yield True


def follow(client: Server, seen: Seen) -> None:
    """What the server tells, for ever; while it is away, tried again and again."""
    while True:
        try:
            with closing(client.engine_news()) as events:
                for news in events:
                    seen.lost = None
                    seen.take(news)
            seen.lost = "the server has closed"
        except EngineUnavailable as error:
            seen.lost = str(error)
        time.sleep(AGAIN_S)


def drawn(seen: Seen) -> RenderableType:
    """The whole picture, for any width."""
    with seen.lock:
        return _drawn(seen)


def _drawn(seen: Seen) -> RenderableType:
    parts: list[RenderableType] = []
    if seen.lost is not None:
        parts.append(Text(f"not connected, trying again: {_clean(seen.lost)}", style="red"))
    for name, model in seen.models.items():
        parts += [_head(name, model), _loads(model), _steps(seen.steps.get(name, ()))]
        requests = _requests(_object(model.get("picture")), _object(model.get("names")))
        if requests.row_count:
            parts.append(requests)
        parts.append(Text())
    parts += [_gpu(one) for one in _objects(seen.around.get("gpus"))]
    parts.append(_health(seen.around))
    return Group(*parts)


def _head(name: str, model: Mapping[str, Any]) -> Text:
    state, about = _object(model.get("state")), _object(model.get("model"))
    status, sha256 = _clean(state.get("status", "-")), about.get("sha256")
    colour = "green" if status == "ready" else "yellow"
    head = Text.assemble((_clean(name), "bold"), "  ", (status, colour))
    if _object(model.get("pace")).get("paused") is True:
        head.append("  paused", "yellow")
    if isinstance(sha256, str):
        head.append(f"  sha256 {_clean(sha256)[:12]}", "dim")
    head.append(f"  context {_number(about.get('context_length'))}", "dim")
    return head


def _loads(model: Mapping[str, Any]) -> RenderableType:
    load, memory = _object(model.get("load")), _object(model.get("memory"))
    about = _object(model.get("model"))
    used, blocks = _count(load.get("num_used_blocks")), _count(load.get("num_blocks"))
    waits = zip(CLASSES, _list(load.get("waiting_by_class")), strict=False)
    rate = _float(load.get("drawn_tokens_per_s"))
    told = [
        f"running {_number(load.get('num_running'))} of {_number(about.get('max_sequences'))}",
        f"waiting {_number(load.get('num_waiting'))}"
        f" ({', '.join(f'{name} {_number(count)}' for name, count in waits)})",
        f"tokens/s {rate:.1f}",
        f"cache {bar(used / blocks if blocks else 0.0)} {used} of {blocks} blocks",
        f"memory {in_bytes(_count(memory.get('peak_rss_bytes')))} at its peak",
    ]
    return Columns(told, padding=(0, 3))


def bar(share: float, width: int = BAR) -> str:
    full = round(min(max(share, 0.0), 1.0) * width)
    return "█" * full + "░" * (width - full)


def _gpu(one: Mapping[str, Any]) -> RenderableType:
    busy, whole = _float(one.get("busy")), _count(one.get("num_bytes"))
    told = [
        f"GPU {_number(one.get('gpu'))} {bar(busy)} {busy:.0%}",
        f"memory {in_bytes(_count(one.get('used_bytes')))} of {in_bytes(whole)}",
        f"{_number(one.get('watts'))} W",
    ]
    return Columns(told, padding=(0, 3))


def _steps(steps: Iterable[Mapping[str, Any]]) -> RenderableType:
    """The phases of the last steps, as one bar of their shares."""
    times = [[_float(one) for one in _list(step.get("ms"))] for step in steps]
    times = [one for one in times if len(one) == len(PHASES)]
    if not times:
        return Text("no step since this was opened", style="dim")
    means = [sum(column) / len(times) for column in zip(*times, strict=True)]
    whole = sum(means) or 1.0
    shown = Text(f"step {whole:.2f} ms  ")
    for mean, colour in zip(means, COLOURS, strict=True):
        shown.append("█" * round(mean / whole * BAR), colour)
    for phase, mean, colour in zip(PHASES, means, COLOURS, strict=True):
        shown.append(f"  {phase} ", colour)
        shown.append(f"{mean / whole:.0%}")
    return shown


def _requests(picture: Mapping[str, Any], names: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("REQUEST", "STATE", "CLASS", "PROMPT", "TOKENS", "BLOCKS", "AGE", "EVICTED"):
        table.add_column(head, justify="left" if head in ("REQUEST", "STATE", "CLASS") else "right")
    now_s = _float(picture.get("at_s"))
    rows = [(row, "running") for row in _objects(picture.get("running"))]
    rows += [(row, "waiting") for row in _objects(picture.get("waiting"))]
    for row, state in rows[:SHOWN_REQUESTS]:
        prompt, known = _count(row.get("num_prompt_tokens")), _count(row.get("num_known"))
        index, request_id = _count(row.get("class_index")), row.get("request_id")
        table.add_row(
            Text(_clean(names.get(str(request_id)) or request_id)),
            Text("reading" if _count(row.get("num_computed")) < prompt - 1 else state),
            CLASSES[index] if index < len(CLASSES) else "-",
            str(prompt),
            str(max(0, known - prompt)),
            str(sum(_count(run[1]) for run in _runs(row.get("blocks")))),
            f"{max(0.0, now_s - _float(row.get('arrival_s'))):.1f} s",
            str(_count(row.get("num_preemptions"))),
        )
    if len(rows) > SHOWN_REQUESTS:
        table.add_row(f"and {len(rows) - SHOWN_REQUESTS} more")
    return table


def _health(around: Mapping[str, Any]) -> RenderableType:
    failed = [one for one in _objects(around.get("checks")) if one.get("ok") is not True]
    lines = [
        Text(f"check fails: {_clean(one.get('name'))} ({_clean(one.get('detail'))})", style="red")
        for one in failed
    ]
    lines += [
        Text(f"{_clean(one.get('severity'))} {_clean(one.get('alert'))}: fires", style="red")
        for one in _objects(around.get("alerts"))
        if one.get("ended_s") is None
    ]
    levels = _object(around.get("degradation"))
    lines += [
        Text(f"{_clean(name)}: optional work is refused, level {_number(level)} of 4", "yellow")
        for name, level in levels.items()
        if level
    ]
    return Group(*lines) if lines else Text("every check holds, no alert fires", style="green")


def _clean(value: Any) -> str:
    text = value if isinstance(value, str) else "-"
    return "".join(one if one.isprintable() else "·" for one in text)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in _list(value) if isinstance(one, dict)]


def _runs(value: Any) -> list[Sequence[Any]]:
    return [run for run in _list(value) if isinstance(run, list) and len(run) == 2]


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _float(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _number(value: Any) -> str:
    return str(value) if isinstance(value, int | float) else "-"
