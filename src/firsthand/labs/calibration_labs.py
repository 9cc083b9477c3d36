"""Lab of calibration: what rounding learns from random data.

Owns: the random text, and 3 bits for a part of the model.
May not know: files.
Read next: `quantize/calibration.py`; `quant/compensate.py`.
"""

from __future__ import annotations

import random
from contextlib import suppress
from importlib import import_module

from firsthand.errors import InvalidRequest
from firsthand.labs.charts import Bars
from firsthand.labs.forward import Floats, Forward, Parts, exchanged
from firsthand.labs.lab import Evidence, Lab, Passage
from firsthand.labs.passages import PROSE
from firsthand.labs.words import Words
from firsthand.labs.workbench import Workbench
from firsthand.quant.compensate import compensated
from firsthand.quant.grid import Grid, nearest
from firsthand.quantize.calibration import check_is_text

CALIBRATION_TOKENS = 1024
GRID = Grid(3, 64, symmetric=True)


def calibration(bench: Workbench) -> Evidence:
    forward = bench.forward()
    encode = forward.tokenizer.encode
    text = _manual()
    source = random.Random(0)
    noise = "".join(chr(source.randrange(32, 127)) for _ in range(len(text)))
    right = forward.nll(encode(PROSE))
    sets = (
        (Words("rounded to the nearest, no data", "就近舍入，不用数据"), None),
        (
            Words("calibrated on random characters", "用随机字符校准"),
            encode(noise)[:CALIBRATION_TOKENS],
        ),
        (
            Words("ours: calibrated on text", "本系统：用真实文本校准"),
            encode(text)[:CALIBRATION_TOKENS],
        ),
    )
    losses = [_rounded_nll(forward, ids) - right for _, ids in sets]
    refusal = ""
    with suppress(AssertionError):
        refusal = _refused(noise)
    return Evidence(
        measure=Words(
            "what 3 bits cost on a text that nobody has seen, nats a token",
            "3 位量化在未见过的文本上的代价（奈特/token）",
        ),
        fault_shows=losses[1],
        ours_does_not=losses[2],
        limit=(losses[1] + losses[2]) / 2,
        headings=(
            Words("calibration", "校准"),
            Words("surprise more than exact", "比精确值多出的意外程度"),
        ),
        rows=tuple((what, loss) for (what, _), loss in zip(sets, losses, strict=True)),
        charts=(
            Bars(
                Words("What rounding costs", "舍入的代价"),
                Words("nats a token", "奈特/token"),
                tuple((what, loss) for (what, _), loss in zip(sets, losses, strict=True)),
            ),
        ),
        passages=(
            Passage(Words("what ours says to the random text", "本系统对随机文本的答复"), refusal),
        ),
    )


def _manual() -> str:
    """Some thousand words of prose that every Python has."""
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    return "\n".join(topics[name] for name in sorted(topics))[: 8 * CALIBRATION_TOKENS]


def _refused(noise: str) -> str:
    try:
        check_is_text(noise)
    except InvalidRequest as error:
        return str(error)
    raise AssertionError("random text was taken for calibration")


def _rounded_nll(forward: Forward, calibration_ids: list[int] | None) -> float:
    """With the first layers rounded to 3 bits, by what the calibration says of their inputs."""
    names = [name for name in forward.weights.sources if _is_rounded(name)]
    hessians: dict[str, Floats] = {}
    if calibration_ids is not None:

        def watched(x: Floats, weight: str) -> Floats:
            if weight in names:
                hessians[weight] = x.T @ x
            return x

        for start in range(0, len(calibration_ids), 512):
            forward.start(Parts(inputs=watched)).feed(calibration_ids[start : start + 512])
    rounded = {}
    for name in names:
        matrix, hessian = forward.matrix(name), hessians.get(name)
        found = nearest(matrix, GRID) if hessian is None else compensated(matrix, hessian, GRID)
        rounded[name] = found.decode()
    with exchanged(forward, rounded):
        return forward.nll(forward.tokenizer.encode(PROSE))


def _is_rounded(name: str) -> bool:
    return any(f"layers.{layer}.self_attn" in name for layer in range(8))


LABS = (
    Lab(
        name="calibration",
        title=Words("Calibrated on random data", "用随机数据校准"),
        question=Words(
            "A quantisation learns from data how large inputs are. Does it matter which data?",
            "量化从数据中学习输入有多大。用什么数据有关系吗？",
        ),
        run=calibration,
        cause=Words(
            "Random characters reach other columns than text does. What rounding takes away is "
            "then made up for where nobody looks, at the cost of where everybody does.",
            "随机字符激活的列与真实文本不同。舍入的损失于是在没人用的地方得到补偿，"
            "代价落在人人都用的地方。",
        ),
        cure=Words(
            "A calibration set is text such as the model will meet, is named by its hash, and is "
            "refused if it compresses no better than its own characters shuffled. The result is "
            "judged on text that was kept back.",
            "校准集应是模型将要遇到的文本，以哈希命名；若压缩率不比打乱自身字符更好，就拒绝。"
            "结果在留出的文本上评判。",
        ),
        places=(
            "firsthand.quantize.calibration.check_is_text",
            "firsthand.quant.compensate.compensated",
        ),
        sources=("A §5.3",),
        seconds=20,
        needs_model=True,
    ),
)
