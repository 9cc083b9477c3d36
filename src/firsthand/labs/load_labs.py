"""Labs of loading: a peak that is twice what stays, a file that is read whole or runs code.

Owns: two ways to load, each in a process of its own, so that its peak is its own.
May not know: formats.
Read next: `load_ways.py`, what those processes do; `weights/loading.py`.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from firsthand.config import child_environment
from firsthand.errors import FirsthandError
from firsthand.labs.charts import Bars
from firsthand.labs.lab import Evidence, Lab, Passage
from firsthand.labs.words import OURS, Words
from firsthand.labs.workbench import Workbench
from firsthand.weights.torch_bin import open_torch

MIB = 1 << 20
WHOLE_MIB = 192


def in_a_process(way: str, model: Path) -> dict[str, Any]:
    """What `load_ways` says of itself."""
    done = subprocess.run(
        [sys.executable, "-m", "firsthand.labs.load_ways", way, str(model)],
        stdout=subprocess.PIPE,
        check=True,
        env=child_environment({}),
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# ---- the peak -----------------------------------------------------------------------------------


def load_peak(bench: Workbench) -> Evidence:
    model = bench.real_model()
    ways = (
        (
            Words("load all, then convert all", "全部读入，再全部转换"),
            in_a_process("doubled", model),
        ),
        (OURS, in_a_process("ours", model)),
    )
    shares = [found["peak_bytes"] / found["held_bytes"] for _, found in ways]
    return Evidence(
        measure=Words("peak of the load, by what stays", "加载峰值与最终占用之比"),
        fault_shows=shares[0],
        ours_does_not=shares[1],
        limit=1.5,
        headings=(
            Words("way", "做法"),
            Words("weights that stay, MiB", "留下的权重（MiB）"),
            Words("peak, MiB", "峰值（MiB）"),
            Words("peak by what stays", "峰值与留下之比"),
        ),
        rows=tuple(
            (what, found["held_bytes"] / MIB, found["peak_bytes"] / MIB, share)
            for (what, found), share in zip(ways, shares, strict=True)
        ),
        charts=(
            Bars(
                Words("Memory at the peak of a load", "加载峰值时的内存"),
                Words("MiB", "MiB"),
                tuple((what, found["peak_bytes"] / MIB) for what, found in ways),
            ),
        ),
    )


# ---- the legacy file ----------------------------------------------------------------------------


def a_checkpoint(folder: Path) -> Path:
    """Safetensors of one matrix, made without holding it."""
    rows = WHOLE_MIB * MIB // 4096
    entry = {"dtype": "F32", "shape": [rows, 1024], "data_offsets": [0, rows * 4096]}
    header = json.dumps({"weight": entry}).encode()
    header += b" " * (-len(header) % 8)
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for _ in range(WHOLE_MIB):
            file.write(b"\0" * MIB)
    return path


def a_legacy_file(folder: Path) -> Path:
    """In the form of a .bin: its program calls a function of the system when it is run."""
    program = b"\x80\x02cos\nsystem\nX\x0a\x00\x00\x00echo owned\x85R."
    path = folder / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/version", "3\n")
    return path


def legacy_file(bench: Workbench) -> Evidence:
    folder = bench.new_folder()
    model = a_checkpoint(folder)
    ways = (
        (
            Words("read whole, as an object graph is", "整个读入，如同反序列化对象图"),
            in_a_process("read", model),
        ),
        (Words("ours, mapped", "本系统，映射"), in_a_process("mapped", model)),
    )
    try:
        open_torch(a_legacy_file(folder))
        refusal = ""
    except FirsthandError as error:
        refusal = str(error).replace(str(folder), "")
    return Evidence(
        measure=Words(
            "memory taken before the first weight is used, of the file's size",
            "使用首个权重之前占用的内存与文件大小之比",
        ),
        fault_shows=ways[0][1]["peak_bytes"] / (WHOLE_MIB * MIB),
        ours_does_not=ways[1][1]["peak_bytes"] / (WHOLE_MIB * MIB) + (not refusal),
        limit=0.5,
        headings=(
            Words("way", "做法"),
            Words("ms until the first row", "到首行的毫秒"),
            Words("memory, MiB", "内存（MiB）"),
        ),
        rows=tuple((what, found["ms"], found["peak_bytes"] / MIB) for what, found in ways),
        charts=(
            Bars(
                Words(
                    f"Until the first row of a file of {WHOLE_MIB} MiB",
                    f"{WHOLE_MIB} MiB 文件到首行为止",
                ),
                Words("ms", "毫秒"),
                tuple((what, found["ms"]) for what, found in ways),
            ),
        ),
        passages=(
            Passage(
                Words(
                    "what ours says to a legacy file that would run a command",
                    "对一个会执行命令的旧格式文件，本系统的答复",
                ),
                refusal,
            ),
        ),
    )


LABS = (
    Lab(
        name="load-peak",
        title=Words("A load whose peak is twice what stays", "峰值为最终占用两倍的加载"),
        question=Words(
            "The model fits in memory. Why does loading it not?",
            "模型放得进内存，加载时为什么放不下？",
        ),
        run=load_peak,
        cause=Words(
            "All weights are read, then all are converted or moved: for a moment both copies are "
            "there.",
            "先读完全部权重，再转换或搬移全部：有那么一刻两份同时存在。",
        ),
        cure=Words(
            "Block by block: read, convert, hand over, give the file's pages back.",
            "按块进行：读、转换、交付，并归还文件的内存页。",
        ),
        places=(
            "firsthand.weights.loading.load",
            "firsthand.weights.sources.ConvertedSource.release",
            "firsthand.generation.loading.load_model",
        ),
        sources=("A §2.2", "B §6.1"),
        seconds=8,
        needs_model=True,
    ),
    Lab(
        name="legacy-file",
        title=Words("A legacy file against a mapped one", "旧格式文件与映射文件"),
        question=Words(
            "How long does it take, and how much memory, until the first weight can be used? And "
            "what may a file do?",
            "到能用上首个权重要多久、占多少内存？一个文件可以做什么？",
        ),
        run=legacy_file,
        cause=Words(
            "A serialised object graph is read from beginning to end, into memory of one's own, by "
            "running the program that the file is; and that program may call anything.",
            "序列化的对象图要从头读到尾，放进自己的内存，靠运行文件里的程序来完成；"
            "而那段程序什么都能调用。",
        ),
        cure=Words(
            "A header is checked, the rest is mapped: the system brings pages when they are read, "
            "and shares them between processes. Legacy files are converted once, by a reader that "
            "knows a handful of instructions and runs nothing.",
            "校验文件头，其余用内存映射：读到哪页系统才取哪页，进程间共享。旧格式只做一次转换，"
            "读取器只认识少数几条指令，什么也不执行。",
        ),
        places=(
            "firsthand.weights.mapped.MappedFile",
            "firsthand.weights.safetensors.open_safetensors",
            "firsthand.weights.torch_opcodes.read_program",
        ),
        sources=("B §3.1",),
        seconds=3,
    ),
)
