"""The tables of the pages are what the committed lines give.

Owns: the comparison. May not know: how anything is measured.
Read next: `bench/quantization_table.py`.
"""

from __future__ import annotations

from bench.quantization_table import name_of, newest, pages, read_lines

MIXED = ("mixed with int8", "the least sensitive in int8")


def test_the_pages_say_what_the_lines_give() -> None:
    for page, text in pages().items():
        assert page.read_text(encoding="utf-8") == text, (
            "run `python bench/quantization_table.py --write`"
        )


def test_four_bits_lose_less_than_llamacpps_and_compensation_takes_half_away() -> None:
    """The promises of docs/quantize.md, on the model that nobody had rounded."""
    rows = newest(read_lines("quantization"))["small"]
    assert all(name_of(line) == name for name, line in rows.items())

    def lost(name: str) -> float:
        return float(rows[name]["perplexity"] / rows[name]["reference_perplexity"] - 1)

    for theirs in ("llama.cpp Q4_0", "llama.cpp Q4_K"):
        ours = rows["int4 in 64s with zeros, compensated"]
        assert ours["bits_per_weight"] <= rows[theirs]["bits_per_weight"]
        assert ours["divergence"] < rows[theirs]["divergence"]
        assert lost("int4 in 64s with zeros, compensated") < lost(theirs)
    for theirs in ("llama.cpp Q4_0", "llama.cpp Q4_K"):
        assert lost("int4 in 32s, compensated") < lost(theirs)
    for kind in ("int4 in 128s", "int3 in 128s", "int3 in 32s"):
        assert lost(f"{kind}, compensated") < 0.5 * lost(f"{kind}, nearest")
    sensitive, control = (f"int4 in 128s, nearest, {of}" for of in MIXED)
    assert rows[sensitive]["divergence"] < rows[control]["divergence"]
    assert lost("int8 per row, compensated") < 0.0025
    assert lost("int8 in 32s, nearest") < 0.001


def test_int8_keeps_its_promise_on_the_real_model() -> None:
    """As `firsthand quantize --scheme int8` makes it: with one scale per row, and in groups."""
    rows = newest(read_lines("quantization"))["SmolLM2-135M-Instruct"]
    for name, most in (("int8 per row, compensated", 0.0025), ("int8 in 32s, nearest", 0.001)):
        assert rows[name]["perplexity"] < (1 + most) * rows[name]["reference_perplexity"]


def test_n_5_each_format_costs_no_more_than_it_is_known_to() -> None:
    """What llama.cpp publishes of its own rounding for a model of 8 billion weights, and a fifth
    more; read by our decoders, on the small model."""
    rows = newest(read_lines("quantization"))["small"]
    published = {"Q8_0": 0.04, "Q6_K": 0.35, "Q5_K": 0.91, "Q4_K": 2.82, "Q4_0": 7.52, "Q3_K": 10.5}
    for name, percent in published.items():
        line = rows[f"llama.cpp {name}"]
        change = 100 * (line["perplexity"] / line["reference_perplexity"] - 1)
        assert change <= 1.2 * percent, name
