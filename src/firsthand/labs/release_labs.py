"""Labs of operation: a rollback whose target is gone, a server that is killed.

Owns: the clean-up by age, the kill.
May not know: how a release is switched.
Read next: `release/store.py`; `server/lifecycle.py`.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from firsthand.errors import FirsthandError
from firsthand.labs.charts import Lanes, Span
from firsthand.labs.lab import Evidence, Lab
from firsthand.labs.words import OURS, Words
from firsthand.labs.workbench import Workbench, another_model
from firsthand.preflight.server import Server, started
from firsthand.release.staging import Staged, stage
from firsthand.release.store import Store
from firsthand.release.switching import Switch
from firsthand.values import dataclass
from firsthand.weights.sums import Sums

# ---- the way back -------------------------------------------------------------------------------

NUM_RELEASES, KEPT = 5, 2
SERVED = (1, 5)  # the releases between were staged and tried, and never served


def by_age(store: Store) -> None:
    """A script that keeps the newest."""
    for number in store.numbers()[:-KEPT]:
        shutil.rmtree(store.folder(number))


def by_use(store: Store) -> None:
    store.collect(KEPT)


def _way_back(bench: Workbench, clean: Callable[[Store], None]) -> tuple[list[int], str, float]:
    """What is left after the clean-up; what the rollback says, and how long it takes (ms)."""
    store = Store(bench.new_folder() / "store")
    sums = Sums(None)
    for number in range(NUM_RELEASES):
        model = another_model(bench.small_model(), bench.new_folder() / "model", number)
        stage(store, model, Staged("answers", {}, None, None), sums)
    switch = Switch(store, None, None, sums)
    for number in SERVED:
        switch.promote(str(number), force=True)
    clean(store)
    left = store.numbers()
    began_s = time.perf_counter()
    try:
        switch.rollback()
    except FirsthandError as error:
        said = f"{type(error).__name__}: {error}".replace(str(store.root), "the store")
    else:
        said = f"release {store.current()} is served"
    return left, said, (time.perf_counter() - began_s) * 1e3


def rollback_target(bench: Workbench) -> Evidence:
    ways = (
        (Words(f"keep the newest {KEPT}", f"保留最新的 {KEPT} 个"), _way_back(bench, by_age)),
        (OURS, _way_back(bench, by_use)),
    )
    back = f"release {SERVED[0]} is served"
    return Evidence(
        measure=Words("rollbacks that fail", "失败的回滚数"),
        fault_shows=float(ways[0][1][1] != back),
        ours_does_not=float(ways[1][1][1] != back),
        limit=1.0,
        headings=(
            Words("clean-up", "清理方式"),
            Words("releases left", "剩下的版本"),
            Words("the rollback", "回滚"),
            Words("ms", "毫秒"),
        ),
        rows=tuple((what, ", ".join(map(str, left)), said, ms) for what, (left, said, ms) in ways),
        charts=(
            Lanes(
                Words(
                    "Releases: # served, + staged and never served, . gone",
                    "版本：# 曾上线，+ 只暂存未上线，. 已删除",
                ),
                Words("release", "版本号"),
                tuple((what, tuple(_marks(left))) for what, (left, _, _) in ways),
            ),
        ),
    )


def _marks(left: list[int]) -> Iterator[Span]:
    for number in range(1, NUM_RELEASES + 1):
        mark = "." if number not in left else "#" if number in SERVED else "+"
        yield Span(number - 1, number, mark)


# ---- drained, or killed -------------------------------------------------------------------------

CONTEXT = 8192
NUM_TOKENS = 4000


@dataclass(frozen=True, slots=True)
class Ended:
    """What a client of a stream got; `refused` is what a new one was told meanwhile."""

    num_tokens: int
    has_end: bool
    refused: str
    seconds: float


def _ended(bench: Workbench, end: Callable[[Server], None]) -> Ended:
    model = _with_long_context(bench)
    body = {
        "model": "preflight",
        "prompt": "It was",
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    with started(str(model), (), bench.new_folder()) as server:
        server.wait_listening()
        server.wait_status("/readyz", 200)
        connection = server.open("/v1/completions", body)
        response = connection.getresponse()
        seen: list[str] = []
        began_s, refused = 0.0, ""
        try:
            for line in iter(response.readline, b""):
                if line.startswith(b"data:"):
                    seen.append(line[5:].decode().strip())
                if seen and not began_s:
                    began_s = time.perf_counter()
                    end(server)
                    refused = _told(server)
        except OSError:  # the connection is cut
            pass
        connection.close()
        if not began_s:
            end(server)
        server.process.wait()
        pieces = [json.loads(one) for one in seen if one != "[DONE]"]
        tokens = sum(bool(one["choices"] and one["choices"][0]["text"]) for one in pieces)
        has_end = any(one["choices"] and one["choices"][0]["finish_reason"] for one in pieces)
        return Ended(tokens, has_end, refused, time.perf_counter() - began_s)


def _with_long_context(bench: Workbench) -> Path:
    """The small model, which can talk for seconds."""
    model = another_model(bench.small_model(), bench.new_folder() / "model", 0)
    path = model / "config.json"
    config = json.loads(path.read_text("utf-8")) | {"max_position_embeddings": CONTEXT}
    path.write_text(json.dumps(config), "utf-8")
    return model


def _told(server: Server) -> str:
    status = server.status("/readyz")
    return str(status) if status else "no connection"


def drain(bench: Workbench) -> Evidence:
    ways = (
        (Words("killed", "强行终止"), _ended(bench, lambda server: server.process.kill())),
        (Words("ours, asked to stop", "本系统，请求停止"), _ended(bench, Server.terminate)),
    )
    return Evidence(
        measure=Words("answers cut in the middle", "被拦腰截断的回答数"),
        fault_shows=float(not ways[0][1].has_end),
        ours_does_not=float(not ways[1][1].has_end),
        limit=1.0,
        headings=(
            Words("way", "做法"),
            Words("pieces the client got", "客户端收到的片段"),
            Words("an end with a reason", "带原因的结束"),
            Words("readiness meanwhile", "期间的就绪状态"),
            Words("gone after, s", "多久退出（秒）"),
        ),
        rows=tuple(
            (
                what,
                found.num_tokens,
                Words("yes", "有") if found.has_end else Words("no", "无"),
                found.refused,
                found.seconds,
            )
            for what, found in ways
        ),
        charts=(
            Lanes(
                Words(
                    "What the client of a stream got: # pieces", "流的客户端收到的内容：# 为片段"
                ),
                Words("pieces", "片段"),
                tuple((what, (Span(0, found.num_tokens, "#"),)) for what, found in ways),
            ),
        ),
    )


LABS = (
    Lab(
        name="drain",
        title=Words("Killed, or asked to stop", "强行终止，还是请求停止"),
        question=Words(
            "A server is replaced while somebody reads an answer. What does he see?",
            "服务被替换时正有人在读回答。他会看到什么？",
        ),
        run=drain,
        cause=Words(
            "A killed process takes its streams with it: the connection ends in the middle of a "
            "sentence, without a reason.",
            "被杀掉的进程带走它的流：连接在句子中间断开，没有原因。",
        ),
        cure=Words(
            "On SIGTERM readiness turns red, nobody new is taken, what runs is finished, within a "
            "limit that is longer than the longest answer; what is cut then is logged by its id.",
            "收到 SIGTERM 后就绪变红，不再接新请求，把正在进行的做完，期限长于最长的回答；"
            "到期被截断的按编号记录。",
        ),
        places=(
            "firsthand.server.lifecycle",
            "firsthand.server.until_end",
        ),
        sources=("A §6.2", "B §6.3"),
        seconds=8,
    ),
    Lab(
        name="rollback-target",
        title=Words("A rollback whose target was cleaned up", "回滚目标已被清理"),
        question=Words(
            "A script keeps the two newest releases. Is one of them the one to go back to?",
            "脚本只保留最新的两个版本。其中有要回去的那个吗？",
        ),
        run=rollback_target,
        cause=Words(
            "What is new is not what was served. Between two releases that were served others were "
            "staged and tried, and the clean-up counted them.",
            "新的不等于上线过的。两个上线版本之间还有暂存、试过的版本，清理把它们也算了进去。",
        ),
        cure=Words(
            "The store knows what was served: a clean-up leaves the current release and the one "
            "before it, whatever their age; and a drill goes back for practice before each "
            "promotion.",
            "仓库知道哪些上线过：清理时无论新旧都保留当前版本与前一个；"
            "每次上线前还要演练一次回滚。",
        ),
        places=(
            "firsthand.release.store.Store.kept",
            "firsthand.release.store.Store.previous",
            "firsthand.release.drill.Drill",
        ),
        sources=("B §6.4",),
        seconds=2,
    ),
)
