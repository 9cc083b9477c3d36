"""Lab of layouts: a square matrix that is turned and still fits, keys in rows and in tiles.

Owns: the turned matrices.
May not know: how a file's layout is told.
Read next: `weights/checkpoint.py`; `kvcache/arrays.py`.
"""

from __future__ import annotations

import numpy as np

from firsthand.labs.attention_labs import HEADINGS, MEASURE, RIGHT_FORMULA, read_by, read_by_engine
from firsthand.labs.charts import Bars
from firsthand.labs.forward import RIGHT, Forward, exchanged
from firsthand.labs.lab import Evidence, Lab, Passage
from firsthand.labs.passages import PROSE
from firsthand.labs.speed_labs import in_turns
from firsthand.labs.words import Words
from firsthand.labs.workbench import Workbench

TURNED = Words("square matrices turned", "方阵被转置")
ONE_TURNED = Words("one of them turned, in layer 0", "只转置第 0 层的一个")
PIECES = 4  # of the passage: a context of some hundred tokens


def layouts(bench: Workbench) -> Evidence:
    forward = bench.forward()
    square = [name for name in forward.weights.sources if _is_square(forward, name)]
    readings = []
    for what, names in ((TURNED, square), (ONE_TURNED, square[:1])):
        turned = {name: np.ascontiguousarray(forward.matrix(name).T) for name in names}
        with exchanged(forward, turned):
            readings.append(read_by(forward, what, RIGHT))
    right = read_by(forward, RIGHT_FORMULA, RIGHT)
    with (
        bench.engine(max_context=512, kv_layout="rows") as rows,
        bench.engine(max_context=512, kv_layout="tiles") as tiles,
    ):
        ours = read_by_engine(tiles)
        prompt = tiles.tokenize(" ".join([PROSE] * PIECES))
        times = in_turns((rows, tiles), prompt, 8)
    return Evidence(
        measure=MEASURE,
        fault_shows=readings[0].nll - right.nll,
        ours_does_not=abs(ours.nll - right.nll),
        limit=0.2,
        headings=HEADINGS,
        rows=tuple(one.row for one in (*readings, right, ours)),
        charts=(
            Bars(
                Words(
                    f"The keys' layout in the engine: a token after {len(prompt)}",
                    f"引擎中键的布局：{len(prompt)} 个 token 之后的一个 token",
                ),
                Words("ms", "毫秒"),
                (
                    (Words("rows", "行"), times[0]),
                    (Words("tiles of 16 positions", "16 个位置一块"), times[1]),
                ),
            ),
        ),
        passages=tuple(Passage(one.what, one.text) for one in (*readings, ours)),
    )


def _is_square(forward: Forward, name: str) -> bool:
    n, k = forward.weights.shape(name)
    return n == k


LABS = (
    Lab(
        name="layouts",
        title=Words("Layouts turned", "布局转了方向"),
        question=Words(
            "(out, in) or (in, out)? A square matrix fits either way. What does a model say with "
            "it?",
            "(out, in) 还是 (in, out)？方阵两种都放得下。这样的模型会说什么？",
        ),
        run=layouts,
        cause=Words(
            "Shapes are all that is compared, and a square has the same both ways. The model runs "
            "at full speed and speaks nonsense.",
            "只比较形状，而方阵两种方向形状相同。模型全速运行，说的却是胡话。",
        ),
        cure=Words(
            "A layout is told by the format, once, where a file is read; inside there is one. "
            "Whatever turns it for speed (keys in tiles, packed weights) must give the same bits, "
            "and is measured alone.",
            "布局由文件格式决定，只在读取处转换一次；内部只有一种。为速度而改变布局（键分块、"
            "权重打包）"
            "必须得到相同的比特，并单独测量。",
        ),
        places=(
            "firsthand.weights.checkpoint.Slot",
            "firsthand.kvcache.arrays.KVArrays",
            "firsthand.models.llama.GGUF_LAYOUT",
        ),
        sources=("A §5.2",),
        seconds=8,
        needs_model=True,
    ),
)
