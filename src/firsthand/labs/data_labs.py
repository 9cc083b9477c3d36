"""Labs of data: bytes in the wrong encoding, records without a contract, two names one character
apart.

Owns: a pipeline that believes what it gets.
May not know: jobs, queues.
Read next: `data/encoding.py`; `data/contract.py`; `near_names.py`.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from firsthand.data.contract import Ask, Broken, Checker
from firsthand.data.encoding import decide
from firsthand.errors import BadHash, CheckpointError
from firsthand.generation.llm import LLM
from firsthand.labs.charts import Bars
from firsthand.labs.lab import Cell, Evidence, Lab, Passage
from firsthand.labs.words import OURS, Words
from firsthand.labs.workbench import Workbench, another_model
from firsthand.near_names import near_names
from firsthand.text.tokenizer import Tokenizer
from firsthand.weights.manifest import read_manifest
from firsthand.weights.manifest_writing import Told, make_manifest, write_manifest
from firsthand.weights.sums import Sums

BROKEN = "\N{REPLACEMENT CHARACTER}"
YES, NO = Words("yes", "是"), Words("no", "否")

# ---- the wrong encoding -------------------------------------------------------------------------

LETTER = (
    "您好，我上周在贵店买了一台电风扇。\n"
    "昨天晚上它突然不转了，请问怎么办？\n"
    "订单号是 20261130，谢谢您的帮助。\n"
)


def read_as_utf8(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def read_as_latin(content: bytes) -> str:
    """It never fails: every byte is a character."""
    return content.decode("latin-1")


def read_by_decision(content: bytes) -> str:
    return decide(io.BytesIO(content)).text(content)


def wrong_encoding(bench: Workbench) -> Evidence:
    content = LETTER.encode("gbk")
    tokenizer = Tokenizer.from_folder(bench.small_model())
    ways = (
        (Words("UTF-8 assumed, errors replaced", "假定 UTF-8，错误替换"), read_as_utf8(content)),
        (Words("Latin-1, which never fails", "Latin-1，从不报错"), read_as_latin(content)),
        (OURS, read_by_decision(content)),
    )
    found = decide(io.BytesIO(content))
    return Evidence(
        measure=Words("share of Chinese characters that are lost", "丢失的汉字份额"),
        fault_shows=min(_lost(text) for _, text in ways[:-1]),
        ours_does_not=_lost(ways[-1][1]),
        limit=0.1,
        headings=(
            Words("way", "做法"),
            Words("characters lost", "丢失的字符"),
            Words("raised an error", "是否报错"),
            Words("tokens", "token 数"),
        ),
        rows=tuple(
            (what, f"{_lost(text):.0%}", NO, len(tokenizer.encode(text))) for what, text in ways
        ),
        passages=(
            *(Passage(what, text.splitlines()[0]) for what, text in ways),
            Passage(
                Words("what ours decided", "本系统的判断"),
                f"{found.name}, {found.how}, confidence {found.confidence:g}; {found.note}",
            ),
        ),
    )


def _lost(text: str) -> float:
    wanted = [one for one in LETTER if not one.isascii()]
    kept = sum(min(text.count(one), LETTER.count(one)) for one in set(wanted))
    return 1 - kept / len(wanted)


# ---- records without a contract -----------------------------------------------------------------

RECORDS: tuple[dict[str, Any], ...] = (
    {"request_id": "good-1", "text": "What is a river?", "max_length": 5},
    {"request_id": "empty", "text": "", "max_length": 5},
    {"request_id": "blank", "text": " \t", "max_length": 5},
    {"request_id": "negative", "text": "What is a river?", "max_length": -1},
    {"request_id": "huge", "text": "What is a river?", "max_length": 99999},
    {"request_id": "a-text", "text": "What is a river?", "max_length": "5"},
    {"request_id": "renamed", "txt": "What is a river?", "max_length": 5},
    {"request_id": "nothing", "text": None, "max_length": 5},
    {"request_id": "good-2", "text": "What is a mill?", "max_length": 5},
)
GOOD = 2


def believes(tokenizer: Tokenizer) -> Callable[[dict[str, Any]], str]:
    """A step that many pipelines have: cut the text, give the mean of its tokens' vectors."""
    table = np.random.default_rng(0).normal(size=(tokenizer.vocab_size, 4)).astype(np.float32)

    def process(record: dict[str, Any]) -> str:
        ids = tokenizer.encode(str(record.get("text", "")))[: record["max_length"]]
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = table[np.array(ids, np.int64)].sum(axis=0) / np.float32(len(ids))
        return f"[{mean[0]:.3f} …] of {len(ids)} tokens"

    return process


def dirty_record(bench: Workbench) -> Evidence:
    process = believes(Tokenizer.from_folder(bench.small_model()))
    checker = Checker(Ask)
    rows: list[tuple[Cell, ...]] = []
    reached = [0, 0]
    for record in RECORDS:
        is_good = str(record["request_id"]).startswith("good")
        believed, got_in = _believed(process, record)
        checked, let_in = _checked(checker, process, record)
        reached[0] += got_in and not is_good
        reached[1] += let_in and not is_good
        rows.append((str(record["request_id"]), believed, checked))
    return Evidence(
        measure=Words("dirty records that reached the model", "到达模型的脏记录数"),
        fault_shows=float(reached[0]),
        ours_does_not=float(reached[1]),
        limit=1.0,
        headings=(
            Words("record", "记录"),
            Words("without a contract", "没有契约"),
            Words("ours", "本系统"),
        ),
        rows=tuple(rows),
        charts=(
            Bars(
                Words("Dirty records that reached the model", "到达模型的脏记录"),
                Words("records", "条"),
                (
                    (Words("without a contract", "没有契约"), float(reached[0])),
                    (OURS, float(reached[1])),
                ),
            ),
        ),
    )


def _believed(process: Callable[[dict[str, Any]], str], record: dict[str, Any]) -> tuple[str, bool]:
    try:
        return process(record), True
    except Exception as error:  # whatever the step does with what it was not made for
        return f"{type(error).__name__}, the whole run ends", True


def _checked(
    checker: Checker, process: Callable[[dict[str, Any]], str], record: dict[str, Any]
) -> tuple[str, bool]:
    try:
        checker.json(json.dumps(record))
    except Broken as broken:
        return f"refused: {broken.reason.value}, {broken.field}: {broken.detail}", False
    return process(record), True


# ---- two names one character apart --------------------------------------------------------------

NAMES = ("answers-v1.0", "answers-v1.O")
PROMPT = "Good morning"


def near_named(bench: Workbench) -> Evidence:
    right, wrong = (
        _model(bench, bench.new_folder() / name, number) for number, name in enumerate(NAMES)
    )
    wanted = read_manifest(right)
    assert wanted is not None
    mixed = bench.new_folder() / NAMES[0]  # the neighbour's weights in the folder of that name
    shutil.copytree(right, mixed)
    shutil.copyfile(wrong / "model.safetensors", mixed / "model.safetensors")
    answers = [_answer(folder) for folder in (right, wrong)]
    unchecked = mixed.with_name("unchecked")
    shutil.copytree(mixed, unchecked, ignore=shutil.ignore_patterns("manifest.json"))
    refused = _refusal(mixed)
    told = read_manifest(wrong)
    warned = near_names(NAMES)
    seen = [told is not None and told.sha256 != wanted.sha256 and bool(warned), refused is not None]
    return Evidence(
        measure=Words("wrong models that are served unnoticed", "未被发现就上线的错误模型数"),
        fault_shows=float(sum(_answer(one) != answers[0] for one in (wrong, unchecked))),
        ours_does_not=float(seen.count(False)),
        limit=1.0,
        headings=(
            Words("mistake", "失误"),
            Words("by name alone", "只凭名字"),
            Words("ours", "本系统"),
        ),
        rows=(
            (
                Words("the other name was typed", "敲成了另一个名字"),
                Words("loads, answers", "正常加载并应答"),
                Words(
                    f"warns of the pair; hash {'' if told is None else told.sha256[:12]}, "
                    f"not {wanted.sha256[:12]}",
                    f"警告这对名字；哈希 {'' if told is None else told.sha256[:12]}，"
                    f"不是 {wanted.sha256[:12]}",
                ),
            ),
            (
                Words("its weights lie in the right folder", "权重文件放错了文件夹"),
                Words("loads, answers", "正常加载并应答"),
                "" if refused is None else refused,
            ),
        ),
        passages=tuple(
            Passage(Words(name, name), PROMPT + answer)
            for name, answer in zip(NAMES, answers, strict=True)
        ),
    )


def _model(bench: Workbench, folder: Path, number: int) -> Path:
    """One with a manifest."""
    another_model(bench.small_model(), folder, number)
    write_manifest(folder, make_manifest(folder, Told(), Sums(None)))
    return folder


def _answer(folder: Path) -> str:
    with LLM(folder, max_context=64, pack_cache=False) as llm:
        return llm.generate(PROMPT, max_tokens=12, temperature=0, ignore_end=True).text


def _refusal(folder: Path) -> str | None:
    try:
        _answer(folder)
    except (BadHash, CheckpointError) as error:
        return str(error).replace(str(folder), folder.name)
    return None


LABS = (
    Lab(
        name="wrong-encoding",
        title=Words("GBK read as UTF-8", "把 GBK 当作 UTF-8 读"),
        question=Words(
            "A letter arrives in GBK, and everything assumes UTF-8. Who notices?",
            "来信是 GBK 编码，而一切都假定 UTF-8。谁会发现？",
        ),
        run=wrong_encoding,
        cause=Words(
            "Replacing what does not fit raises no error and leaves no text; Latin-1 fits every "
            "byte and means none of them. The model gets rubbish and answers politely.",
            "替换掉对不上的字节，既不报错也留不下文字；Latin-1 对得上任何字节，却哪个也不对。"
            "模型收到的是乱码，仍客气地作答。",
        ),
        cure=Words(
            "The encoding is declared, marked, strict UTF-8, or decided from evidence with a "
            "stated "
            "confidence; the decision is kept, nothing is ever replaced, and a line that does "
            "not fit "
            "is refused by itself.",
            "编码要么声明、要么有标记、要么是严格的 UTF-8、要么凭证据判定并给出置信度；判定被记录，"
            "从不替换字符，对不上的行单独拒绝。",
        ),
        places=(
            "firsthand.data.encoding.decide",
            "firsthand.data.encoding.Encoding.text",
        ),
        sources=("B §2.1",),
        seconds=1,
    ),
    Lab(
        name="dirty-record",
        title=Words("Records that nobody checks", "没人检查的记录"),
        question=Words(
            "Seven of nine records are broken, each in another way. Which of them does one notice?",
            "九条记录里七条有毛病，各不相同。哪些会被发现？",
        ),
        run=dirty_record,
        cause=Words(
            "Some stop the run at a place that is far from the fault; the worse ones do not: an "
            "empty text is NaN, a renamed field an empty text, −1 cuts off the last token, and "
            "nothing tells.",
            "有些让整个任务停在离毛病很远的地方；更糟的是不停的那些：空文本得到 NaN，"
            "字段改名等于空文本，"
            "−1 切掉最后一个 token，而且毫无提示。",
        ),
        cure=Words(
            "A contract as code at the door: fields, types, ranges. What breaks it goes to "
            "quarantine with a reason, a field and the bytes themselves; the others go on.",
            "入口处用代码写的契约：字段、类型、范围。违反者带着原因、字段与原始字节进隔离区；"
            "其余照常处理。",
        ),
        places=(
            "firsthand.data.contract.Ask",
            "firsthand.data.contract.Checker",
            "firsthand.data.quarantine",
        ),
        sources=("B §2.1",),
        seconds=1,
    ),
    Lab(
        name="near-names",
        title=Words("Two models whose names differ in one character", "名字只差一个字符的两个模型"),
        question=Words(
            "answers-v1.0 and answers-v1.O: which one is being served?",
            "answers-v1.0 与 answers-v1.O：线上跑的是哪个？",
        ),
        run=near_named,
        cause=Words(
            "A name is what somebody typed. Both models load, both answer, and neither says which "
            "data and weights it is.",
            "名字只是有人敲进去的字。两个模型都能加载、都能应答，谁也不说自己是哪份数据、"
            "哪份权重。",
        ),
        cure=Words(
            "A model is called by the hash of its manifest, in every answer and in `firsthand ps`; "
            "files that are not as the manifest says are refused at load; and two names that are "
            "one character apart are warned of.",
            "模型以清单的哈希为名，出现在每个应答与 `firsthand ps` 里；"
            "与清单不符的文件在加载时被拒绝；"
            "只差一个字符的两个名字会被警告。",
        ),
        places=(
            "firsthand.weights.manifest.Manifest.sha256",
            "firsthand.weights.verifying.verified",
            "firsthand.near_names.near_names",
        ),
        sources=("B §2.3",),
        seconds=1,
    ),
)
