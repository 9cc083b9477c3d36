"""How each figure of the book looks, in both languages.

Owns: headings, the order of rows, how a number is rounded.
May not know: how anything was measured.
Read next: `book_forms.py`, how any table looks; `book.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bench.book_forms import Line, Lines, lab, table, words
from bench.quantization_table import newest as newest_schemes
from bench.table import newest as newest_rivals

MIB = 1 << 20
SENTENCES = (
    "The cat sleeps on the warm stone.",
    "猫在温暖的石头上睡觉。",
    "🐱💤🪨🌞",
)
# Labs that run on no clock: what they show is the same everywhere.
LABS = (
    "half-characters",
    "fragmentation",
    "continuous-batching",
    "starvation",
    "unbounded-queue",
    "slow-upstream",
    "crying-wolf",
    "wrong-encoding",
    "dirty-record",
)
# The rows of the rounding figure: one way to round after another, from 8 bits to 3.
SCHEMES = (
    "int8 per row, nearest",
    "int8 per row, compensated",
    "llama.cpp Q8_0",
    "llama.cpp Q4_K",
    "llama.cpp Q4_0",
    "int4 in 32s, nearest",
    "int4 in 32s, compensated",
    "int3 in 32s, nearest",
    "int3 in 32s, compensated",
)
# What `firsthand verify` promises by each name.
PROPERTIES = {
    "again": ("one run = the next", "一次运行 = 再一次"),
    "company": ("alone = with any others", "单独 = 与任何请求同批"),
    "chunks": ("a prompt whole = in pieces", "提示整段 = 分段"),
    "rows": ("every row of a prompt, whole = in pieces", "提示的每一行，整段 = 分段"),
    "prefix": ("cache cold = warm", "缓存冷 = 缓存热"),
    "preemption": ("undisturbed = evicted, computed again", "未受打扰 = 被驱逐后重算"),
    "choices": ("one answer = one of many", "一个回答 = 多个回答之一"),
    "threads": ("any number of threads", "任意线程数"),
    "fusion": ("plan before fusion = after", "融合前的计划 = 融合后"),
    "store": ("cache paged = contiguous", "分页缓存 = 连续缓存"),
    "static": ("continuous batching = static", "连续批处理 = 静态批处理"),
    "guesses": ("plain decoding = with guessed tokens", "普通解码 = 投机解码"),
    "streamed": ("streamed = at once", "流式 = 一次返回"),
}
NO_LOGITS = ("tokens, logprobs", "token、对数概率")
SCHEME_WORDS = (
    (" per row", " 逐行"),
    (" in 32s", " 每 32 个一组"),
    (", nearest", "，取最近"),
    (", compensated", "，误差补偿"),
)


def file(lines: Lines, language: str) -> str:
    found = lines.found("inspect")
    heads = ("type | tensors | MiB", "类型 | 张量数 | MiB")
    rows = [
        (row["kind"], row["num_tensors"], f"{row['num_bytes'] / MIB:.2f}") for row in found["kinds"]
    ]
    total = words(language, "all", "合计")
    rows.append((total, found["num_tensors"], f"{found['tensor_bytes'] / MIB:.2f}"))
    return table(heads, rows, language, lines.of("inspect"))


def load(lines: Lines, language: str) -> str:
    heads = (
        "way | load, ms | to the first token, ms | peak memory, MiB",
        "方式 | 加载，毫秒 | 到首 token，毫秒 | 内存峰值，MiB",
    )
    names = {
        "packing": ("from the model's own file, packed anew", "从模型自己的文件重新打包"),
        "whole": ("the packed form, mapped whole", "映射打包文件，整体加载"),
        "shards": ("in shards", "分片加载"),
    }
    rows = []
    for way in lines.found("load")["ways"]:
        rows.append(
            (
                words(language, *names[way["way"]]),
                f"{way['load_ms']['median']:.0f}",
                f"{way['first_token_ms']['median']:.0f}",
                f"{way['peak_rss_bytes'] / MIB:.0f}",
            )
        )
    return table(heads, rows, language, lines.of("load"))


def formats(lines: Lines, language: str) -> str:
    english = "reader | opened, s | every value read, s | peak, MiB"
    heads = (english, "读法 | 打开，秒 | 每个值都读过，秒 | 峰值，MiB")
    rows = [
        (one["reader"], f"{one['open_s']:.3f}", f"{one['read_s']:.3f}", one["peak_mib"])
        for one in lines.found("formats")["readers"]
    ]
    return table(heads, rows, language, lines.of("formats"))


def tokens(lines: Lines, language: str) -> str:
    heads = ("text | characters | bytes | tokens", "文本 | 字符 | 字节 | token")
    rows = [
        (text, len(text), one["bytes"], one["tokens"])
        for text, one in lines.found("tokens").items()
    ]
    return table(heads, rows, language, lines.of("tokens"))


def stages(lines: Lines, language: str) -> str:
    found = lines.found("stages")
    heads = ("stage | ms | share, %", "环节 | 毫秒 | 占比，%")
    named = (
        ("tokenize_ms", "text to ids", "文本变成 id"),
        ("prompt_ms", "the prompt, to the first token", "提示，到首 token"),
        ("predicted_ms", "the other tokens", "其余 token"),
        ("detokenize_ms", "ids to text", "id 变成文本"),
    )
    whole = sum(found[name] for name, *_ in named)
    rows = [
        (words(language, *said), f"{found[name]:.2f}", f"{100 * found[name] / whole:.1f}")
        for name, *said in named
    ]
    return table(heads, rows, language, lines.of("stages"))


def plan(lines: Lines, language: str) -> str:
    sides = lines.found("inspect")["plan"]
    heads = ("operator | before | after", "算子 | 融合前 | 融合后")
    rows: list[Sequence[object]] = [
        (f"`{name}`", count, sides["after"].get(name, 0)) for name, count in sides["before"].items()
    ]
    totals = [sum(side.values()) for side in (sides["before"], sides["after"])]
    rows.append((words(language, "all", "合计"), *totals))
    return table(heads, rows, language, lines.of("inspect"))


def rules(lines: Lines, language: str) -> str:
    heads = (
        "the plan without | prompt: base ÷ this | one token: base ÷ this",
        "去掉 | 提示：基准 ÷ 它 | 单个 token：基准 ÷ 它",
    )
    again = words(language, "nothing (the base again)", "什么也不去掉（基准再来一次）")
    every = words(language, "all rules", "全部规则")
    rows = []
    for one in lines.found("rules")["outcomes"]:
        named = {"base": again, "none": every}.get(one["value"], f"`{one['value'][3:]}`")
        if one["variable"] == "base":
            named = again
        ratios = [1 / one[name] for name in ("prompt_ratio", "decode_ratio")]
        rows.append((named, *(f"{ratio:.2f}" for ratio in ratios)))
    return table(heads, rows, language, lines.of("rules"))


def rounding(lines: Lines, language: str) -> str:
    heads = (
        "weights | bits per weight | perplexity, +% | divergence, 10⁻⁶ nats | same top token, %",
        "权重 | 每权重位数 | 困惑度增加，% | 散度，10⁻⁶ 奈特 | 首选相同，%",
    )
    found = newest_schemes(lines.others["quantization"])["small"]
    rows = []
    for name in SCHEMES:
        one = found[name]
        more = 100 * (one["perplexity"] / one["reference_perplexity"] - 1)
        in_chinese = name
        for english, chinese in SCHEME_WORDS:
            in_chinese = in_chinese.replace(english, chinese)
        rows.append(
            (
                words(language, name, in_chinese),
                f"{one['bits_per_weight']:.2f}",
                f"{more:.3f}",
                f"{1e6 * one['divergence']:.0f}",
                f"{100 * one['same_top_share']:.2f}",
            )
        )
    return table(heads, rows, language, found[SCHEMES[0]])


def judge(lines: Lines, language: str) -> str:
    heads = (
        "weights | right endings, % | perplexity of a word | bits of a byte",
        "权重 | 结尾选对，% | 每词困惑度 | 每字节位数",
    )
    judged = lines.others["judge"]
    found = {line["weights"]: line for line in judged if line["model"] == judged[-1]["model"]}
    rows = [
        (
            words(language, "floats", "浮点") if name == "none" else name,
            f"{100 * one['accuracy']:.1f} ± {100 * one['accuracy_standard_error']:.1f}",
            f"{one['word_perplexity']:.2f}",
            f"{one['bits_per_byte']:.4f}",
        )
        for name, one in found.items()
    ]
    return table(heads, rows, language, found["none"])


def ours(lines: Lines, workload: str) -> dict[str, Line]:
    """The newest lines of our formats for one of the comparison's workloads."""
    found = newest_rivals(lines.others["rivals"])[workload]
    return {weights: line for (engine, weights), line in found.items() if engine == "firsthand"}


def speed(lines: Lines, language: str) -> str:
    english = "work | file's own blocks, tokens/s | int8, tokens/s"
    heads = (english, "工作 | 文件自己的块，token/秒 | int8，token/秒")
    named = (
        ("decode", "one sequence", "单序列"),
        ("concurrent16", "16 at once", "16 路同时"),
        ("prompt512", "a prompt of 512", "512 token 的提示"),
        ("prompt1900", "a prompt of 1,900", "1,900 token 的提示"),
    )
    rows: list[Sequence[object]] = []
    for workload, *said in named:
        found = ours(lines, workload)
        medians = [f"{found[name]['median']:.0f}" for name in ("auto", "int8")]
        rows.append((words(language, *said), *medians))
    first = ours(lines, "decode")["auto"]
    (limits,) = [
        one
        for one in lines.others["rivals"]
        if one["engine"] == "machine" and one["commit"] == first["commit"]
    ]
    read, multiply = limits["read_gb_per_second"], limits["int8_gmac_per_second"]
    machine = words(
        language,
        f"\nThe machine in the same run: {read:.0f} GB/s read, {multiply:.0f} GMAC/s in 8 bits.\n",
        f"\n同一次运行中的机器：每秒读 {read:.0f} GB，8 位乘加每秒 {multiply:.0f} G 次。\n",
    )
    return table(heads, rows, language, first) + machine


def profile(lines: Lines, language: str) -> str:
    heads = (
        "step | operator | times | ms | of the step, % | of its limit, %",
        "步 | 算子 | 次数 | 毫秒 | 占一步，% | 达到极限，%",
    )
    names = {"prompt": ("prompt of 512", "512 token 的提示"), "token": ("one token", "单个 token")}
    rows = []
    for step, said in names.items():
        found = lines.found("profile")[step]
        for one in sorted(found["groups"], key=lambda one: -one["ms"])[:6]:
            share = one["limit_share"]
            rows.append(
                (
                    words(language, *said),
                    f"`{one['label']}`",
                    one["count"],
                    f"{one['ms']:.2f}",
                    f"{100 * one['ms'] / found['total_ms']:.0f}",
                    "" if share is None else f"{100 * share:.0f}",
                )
            )
    return table(heads, rows, language, lines.of("profile"))


def kv(lines: Lines, language: str) -> str:
    heads = (
        "type | bytes of a token | tokens in 1 GiB",
        "类型 | 每 token 字节数 | 1 GiB 可放 token 数",
    )
    rows = [
        (f"`{kind}`", f"{count:,}", f"{2**30 // count:,}")
        for kind, count in lines.found("kv").items()
    ]
    return table(heads, rows, language, lines.of("kv"))


def compared(lines: Lines, language: str, names: Sequence[str]) -> str:
    heads = ("what | plain | ours | ratio", "比较什么 | 朴素 | 我们 | 比值")
    rows = []
    for one in lines.found("compare")["outcomes"]:
        if one["name"] in names:
            sides = [
                f"{one[side]['name']}: {one[side]['value']['median']:.0f} {one['unit']}"
                for side in ("plain", "ours")
            ]
            rows.append((f"`{one['name']}`", *sides, f"{one['advantage']:.2f}"))
    return table(heads, rows, language, lines.of("compare"))


def store(lines: Lines, language: str) -> str:
    return compared(lines, language, ("store", "prefix"))


def batching(lines: Lines, language: str) -> str:
    (one,) = [x for x in lines.found("compare")["outcomes"] if x["name"] == "batching"]
    heads = ("batch | tokens/s | steps | sequences in a step", "批 | token/秒 | 步数 | 每步序列数")
    rows = [
        (
            one[side]["name"],
            f"{one[side]['value']['median']:.0f}",
            f"{one[side]['facts']['steps']:.0f}",
            f"{one[side]['facts']['at_once_mean']:.1f}",
        )
        for side in ("plain", "ours")
    ]
    return table(heads, rows, language, lines.of("compare"))


def verify(lines: Lines, language: str) -> str:
    found = lines.found("verify")
    english = "property | the same bits | logits compared | different"
    heads = (english, "性质 | 哪两者逐位相同 | 比较的 logit 数 | 不同的")
    rows = []
    for one in found["properties"]:
        named = PROPERTIES[one["name"]]
        compared = f"{one['num_logits']:,}" if one["num_logits"] else words(language, *NO_LOGITS)
        different = 0 if one["difference"] is None else 1
        rows.append((f"`{one['name']}`", words(language, *named), compared, different))
    return table(heads, rows, language, lines.of("verify"))


def serving(lines: Lines, language: str) -> str:
    english = "16 sequences | file's own blocks, tokens/s | int8, tokens/s"
    heads = (english, "16 个序列 | 文件自己的块，token/秒 | int8，token/秒")
    named = (
        ("concurrent16", "in one process", "同一进程内"),
        ("serving16", "over HTTP", "经过 HTTP"),
    )
    rows = []
    for workload, *said in named:
        found = ours(lines, workload)
        medians = [f"{found[name]['median']:.0f}" for name in ("auto", "int8")]
        rows.append((words(language, *said), *medians))
    return table(heads, rows, language, ours(lines, "serving16")["auto"])


def batch(lines: Lines, language: str) -> str:
    heads = ("weights | one | sixteen | ratio", "权重 | 单个 | 十六个 | 比值")
    rows = []
    for name in ("auto", "int8"):
        one, many = (
            ours(lines, workload)[name]["median"] for workload in ("decode", "concurrent16")
        )
        rows.append((name, f"{one:.0f}", f"{many:.0f}", f"{many / one:.2f}"))
    return table(heads, rows, language, ours(lines, "concurrent16")["auto"])


def witnesses(lines: Lines, language: str) -> str:
    found = lines.found("witnesses")
    heads = ("what | how many", "什么 | 多少")
    named = [
        (words(language, "metrics", "指标"), found["metrics"]),
        *(
            (words(language, f"alert rules, {tier}", f"告警规则，{tier}"), count)
            for tier, count in found["rules"].items()
        ),
        (
            words(language, "causes that the doctor tells apart", "doctor 能区分的原因"),
            found["causes"],
        ),
        (words(language, "entries of the handbook", "手册条目"), found["entries"]),
    ]
    return table(heads, named, language, lines.of("witnesses"))


def books(lines: Lines, language: str) -> str:
    found = lines.found("books")
    heads = ("read | accepted | in quarantine | duplicates", "读入 | 接受 | 隔离 | 重复")
    names = ("read", "accepted", "quarantined", "duplicates")
    return table(heads, [[found[name] for name in names]], language, lines.of("books"))


def capacity(lines: Lines, language: str) -> str:
    found = lines.found("capacity")
    heads = ("10 requests a second are | replicas", "每秒 10 个请求是 | 副本数")
    named = (
        ("peak", "the peak", "峰值"),
        ("mean_low", "the mean; peak 3, redundancy 1.5", "平均值；峰值系数 3，冗余 1.5"),
        ("mean_high", "the mean; peak 5, redundancy 2", "平均值；峰值系数 5，冗余 2"),
    )
    rows = [(words(language, *said), found[name]) for name, *said in named]
    return table(heads, rows, language, lines.of("capacity"))


def autoscale(lines: Lines, language: str) -> str:
    heads = (
        "load | with patience: changes | flaps | machine hours | without: changes | flaps | hours",
        "负载 | 有耐心：变更 | 抖动 | 机器小时 | 没有：变更 | 抖动 | 小时",
    )
    rows = []
    for load, sides in lines.found("autoscale").items():
        cells: list[object] = [f"`{load}`"]
        for side in ("ours", "naive"):
            one = sides[side]
            cells += [f"{one['changes']:,}", f"{one['flaps']:,}", f"{one['machine_hours']:.1f}"]
        rows.append(cells)
    return table(heads, rows, language, lines.of("autoscale"))


TABLES: Mapping[str, Callable[[Lines, str], str]] = {
    "file": file,
    "load": load,
    "formats": formats,
    "tokens": tokens,
    "stages": stages,
    "plan": plan,
    "rules": rules,
    "rounding": rounding,
    "judge": judge,
    "speed": speed,
    "profile": profile,
    "kv": kv,
    "store": store,
    "batching": batching,
    "verify": verify,
    "serving": serving,
    "batch": batch,
    "witnesses": witnesses,
    "books": books,
    "capacity": capacity,
    "autoscale": autoscale,
    **{f"lab_{name.replace('-', '_')}": partial(lab, name) for name in LABS},
}
