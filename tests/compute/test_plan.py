"""Recording and layout: pure, no arrays."""

from __future__ import annotations

from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.compute.plan import Op, Recorder, Value, lay_out, record
from firsthand.models import llama
from firsthand.models.spec import ModelSpec, RopeSpec

SPEC = ModelSpec(
    architecture="llama",
    vocab_size=50,
    num_layers=2,
    width=12,
    num_heads=4,
    num_kv_heads=2,
    head_size=4,
    ffn_width=20,
    norm_eps=1e-5,
    rope=RopeSpec("default", (1.0, 0.5)),
    context_length=32,
    tied_head=True,
)
SHAPES = {slot.name: slot.shape for slot in llama.slots(SPEC)}


def shape_of(name: str) -> tuple[int, int]:
    n, k = SHAPES[name]
    return n, k


def recorded() -> list[Op]:
    return record(partial(llama.forward, spec=SPEC), shape_of)


def test_a_model_is_recorded_in_the_order_of_its_text() -> None:
    ops = recorded()
    assert [op.name for op in ops[:9]] == [
        *("embed", "norm", "linear", "rope", "linear", "rope", "linear", "store", "attend")
    ]
    assert ops[-1].name == "head"
    assert ops[-1].outputs[0].is_logits
    written = [value for op in ops for value in op.outputs]
    assert len(written) == len(set(written)), "every value is written once"


def test_steps_read_only_what_was_written_before() -> None:
    known: set[Value] = set()
    for op in recorded():
        assert set(op.reads) <= known
        known.update(op.outputs)


def test_widths_follow_the_weights() -> None:
    recorder = Recorder(shape_of)
    x = recorder.embed(llama.EMBEDDING)
    assert x.width == 12
    assert recorder.linear(x, "model.layers.0.mlp.gate_proj.weight").width == 20
    assert recorder.head(x, llama.HEAD).width == 50


def test_a_step_prints_what_it_does() -> None:
    lines = [str(op) for op in recorded()]
    assert lines[0] == "v0 = embed(model.embed_tokens)"
    assert "store = store(v5, v6)  [layer 0]" in lines


@st.composite
def plans(draw: st.DrawFn) -> list[Op]:
    ops: list[Op] = []
    for index in range(draw(st.integers(1, 25))):
        count = draw(st.integers(0, min(3, index)))
        inputs = tuple(Value(draw(st.integers(0, index - 1)), 0) for _ in range(count))
        known = {value.index: value for op in ops for value in op.outputs}
        reads = tuple(known[value.index] for value in inputs)
        ops.append(Op("add", reads, (Value(index, draw(st.integers(1, 40))),)))
    return ops


@given(plans(), st.integers(1, 9))
@settings(deadline=None, max_examples=150)
def test_values_alive_together_never_overlap(ops: list[Op], max_rows: int) -> None:
    layout = lay_out(ops, max_rows)
    life: dict[Value, tuple[int, int]] = {}
    for index, op in enumerate(ops):
        for value in (*op.outputs, *op.reads):
            begin, _ = life.get(value, (index, index))
            life[value] = (begin, index)
    for a, (a_begin, a_end) in life.items():
        size = a.width * max_rows
        assert layout.offsets[a] % 16 == 0
        assert layout.offsets[a] + size <= layout.total
        for b, (b_begin, b_end) in life.items():
            if a == b or a_end < b_begin or b_end < a_begin:
                continue
            apart = (
                layout.offsets[a] + size <= layout.offsets[b]
                or layout.offsets[b] + b.width * max_rows <= layout.offsets[a]
            )
            assert apart, (a, b)


def test_scratch_is_shared_between_layers() -> None:
    """A longer model needs no more scratch: a layer's values are dead when the next begins."""
    deep = ModelSpec(**{**{f: getattr(SPEC, f) for f in SPEC.__slots__}, "num_layers": 9})
    shapes = {slot.name: slot.shape for slot in llama.slots(deep)}

    def shape(name: str) -> tuple[int, int]:
        n, k = shapes[name]
        return n, k

    two = lay_out(recorded(), 8).total
    assert lay_out(record(partial(llama.forward, spec=deep), shape), 8).total == two
