"""Grammars: what is taken and refused, the limits, what is kept; masks by a sequence's own tokens.

Owns: the check of `engine/grammar.py` and `engine/constraints.py`, over one token per byte.
May not know: models, the scheduler. Read next: `tests/generation/test_structured.py`.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace

import numpy as np
import pytest

from firsthand.engine import grammar as compiling
from firsthand.engine.constraints import SPARE_STATES, Constrained, Constraints
from firsthand.engine.grammar import Grammars
from firsthand.engine.grammar_process import GrammarProcess
from firsthand.errors import EngineError, InvalidRequest
from firsthand.request import MAX_GRAMMAR_CHARS, Grammar, GrammarKind, SamplingParams
from firsthand.scheduling.plan import Draw

END = 256
WIDTH = 300  # more logits than tokens


class Bytes:
    """A token per byte, and the end; 257 is a second spelling of "ab"."""

    vocab_size = 258
    end_ids = frozenset((END,))
    special_ids = frozenset((END,))

    def token_bytes(self, token_id: int, *, skip_special: bool = False) -> bytes:
        if token_id < 256:
            return bytes((token_id,))
        return {END: b"<|end|>", 257: b"ab"}.get(token_id, b"")

    def encode(self, text: str, *, special: bool = False, add_bos: bool | None = None) -> list[int]:
        return [END, *text.encode()] if special else [0x20, *text.encode()]  # both are wrong


GREEDY = SamplingParams(temperature=0.0)
DIGITS = Grammar(GrammarKind.REGEX, "[0-9]{2}|a.*")


def grammars() -> Grammars:
    return Grammars(Bytes, WIDTH)


def draw(grammar: Grammar | None, text: bytes, prompt: bytes = b"a prompt") -> Draw:
    return Draw(GREEDY, 0, 0, list(prompt + text), len(prompt), grammar)


def allowed(found: Constrained, mask: int = 0) -> set[int]:
    bits = np.unpackbits(found.masks.words[mask].view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def after(text: bytes, grammar: Grammar = DIGITS) -> set[int]:
    found = Constraints(grammars()).masks([(1, draw(grammar, text))])
    assert not found.faults
    return allowed(found)


NUMBERS = set(b"0123456789")


def test_a_mask_allows_what_can_follow_and_an_end_only_where_the_text_is_whole() -> None:
    assert after(b"") == NUMBERS | {ord("a"), 257}
    assert after(b"4") == NUMBERS
    assert after(b"42") == {END}
    assert END in after(b"a")
    assert END in after(b"a long text") and len(after(b"a long text")) > 100


def test_text_without_a_choice_is_spelled_by_exact_bytes() -> None:
    """The vocabulary's own spelling of forced text is wrong here; it is not taken."""
    grammar = Grammar(GrammarKind.LARK, 'start: "abc" /[0-9]/')
    assert after(b"", grammar) <= {ord("a"), 257}
    assert after(b"ab", grammar) == {ord("c")}


def test_rows_without_a_grammar_have_no_mask() -> None:
    rows = [
        (1, draw(None, b"")),
        (2, draw(DIGITS, b"1")),
        (3, draw(None, b"")),
        (4, draw(DIGITS, b"")),
    ]
    found = Constraints(grammars()).masks(rows)
    assert found.masks.rows == [1, 3]
    assert found.masks.words.shape == (2, -(-WIDTH // 32))
    assert [allowed(found, i) for i in (0, 1)] == [NUMBERS, NUMBERS | {ord("a"), 257}]


def test_s_62_a_state_follows_the_tokens_whatever_was_seen_before() -> None:
    """Dropped, delayed, swapped with another's, run ahead: the mask is that of the text."""
    texts = [b"", b"4", b"a", b"ab", b"abc", b"4", b"", b"a!", b"a!?"]
    other = Grammar(GrammarKind.REGEX, "[0-9]{2}|[ax].*")
    constraints = Constraints(grammars())
    for step, text in enumerate(texts * 3):
        grammar = other if step % 4 == 3 else DIGITS
        sequence_id = (1, 2, 1)[step % 3]
        found = constraints.masks([(sequence_id, draw(grammar, text))])
        assert not found.faults
        assert allowed(found) == after(text, grammar)


def test_s_62_a_token_outside_the_grammar_ends_its_sequence_only() -> None:
    constraints = Constraints(grammars())
    found = constraints.masks([(1, draw(DIGITS, b"x")), (2, draw(DIGITS, b"1"))])
    assert found.faults.keys() == {0} and "token 120" in found.faults[0]
    assert allowed(found, 0) == set()
    assert allowed(found, 1) == NUMBERS


def test_states_of_ended_sequences_are_dropped() -> None:
    constraints = Constraints(grammars())
    for sequence_id in range(3 * SPARE_STATES):
        constraints.masks([(sequence_id, draw(DIGITS, b""))])
    assert len(constraints._states) <= SPARE_STATES + 1


def test_struct_1_a_broken_grammar_is_refused_by_its_field() -> None:
    broken = [
        (GrammarKind.JSON_SCHEMA, '{"type": "object", "properties": {"a": "text"}}'),
        (GrammarKind.JSON_SCHEMA, '{"properties": {"a": {"type": "string", "pattern": "("}}}'),
        (GrammarKind.JSON_SCHEMA, "[1]"),
        (GrammarKind.JSON_SCHEMA, "{"),
        (GrammarKind.JSON_SCHEMA, '{"$ref": "http://elsewhere/schema"}'),
        (GrammarKind.REGEX, "("),
        (GrammarKind.REGEX, "(?=a)b"),
        (GrammarKind.LARK, "start: nothing"),
        (GrammarKind.LARK, "start: <|nobody|>"),
        (GrammarKind.GBNF, 'root ::= "a'),
        (GrammarKind.GBNF, "::= ::="),
    ]
    compiler = grammars()
    for kind, text in broken:
        with pytest.raises(InvalidRequest) as refused:
            compiler.compile(Grammar(kind, text, field="the.field"))
        assert refused.value.field == "the.field"
    with pytest.raises(InvalidRequest, match="empty"):
        Grammar(GrammarKind.JSON_SCHEMA, "")
    with pytest.raises(InvalidRequest, match="over"):
        Grammar(GrammarKind.REGEX, "a" * (MAX_GRAMMAR_CHARS + 1))
    compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, '{"maximum": 20000000000, "type": "number"}'))
    compiler.compile(Grammar(GrammarKind.GBNF, 'root ::= "a" b*\nb ::= [0-9]'))


KILLED = 17
HEAVY = [
    (GrammarKind.REGEX, "(a+)+b"),
    (GrammarKind.REGEX, "(a|aa)+$"),
    (GrammarKind.REGEX, "([a-zA-Z]+)*!"),
    (GrammarKind.REGEX, "(.*a.{30})"),
    (GrammarKind.REGEX, "(.*)(.*)(.*)(.*)(.*)(.*)x"),
    (GrammarKind.REGEX, "((a{1,100}){1,100}){1,100}"),
    (GrammarKind.REGEX, "(x{1,5000}y{1,5000}){1,5000}"),
    (GrammarKind.REGEX, "(" * 5000 + "a" + ")" * 5000),
    (GrammarKind.REGEX, "|".join(f"word{i}.*end{i}" for i in range(3000))),
    (GrammarKind.REGEX, r"\p{L}{1,1000}\p{N}{1,1000}"),
    (GrammarKind.LARK, "start: a\na: a a | a a a | b\nb: a b | /x/"),
    (GrammarKind.LARK, "start: " + "(" * 2000 + '"a"' + ")?" * 2000),
    (
        GrammarKind.LARK,
        "start: r0\n" + "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(40)) + 'r40: "a"',
    ),
    (GrammarKind.LARK, "start: A\nA: ~/(.*a.{25})/ & ~/(.*b.{25})/"),
    (GrammarKind.JSON_SCHEMA, json.dumps({"enum": [f"value {i}" for i in range(10_000)]})),
    (GrammarKind.JSON_SCHEMA, json.dumps({"type": "string", "minLength": 10**6})),
    (GrammarKind.JSON_SCHEMA, json.dumps({"type": "array", "minItems": 10**6})),
    (GrammarKind.JSON_SCHEMA, json.dumps({"type": "integer", "multipleOf": 999_983})),
    (GrammarKind.JSON_SCHEMA, '{"a":' * 30_000),
    (GrammarKind.JSON_SCHEMA, '{"allOf":[' * 3000 + "{}" + "]}" * 3000),
    (
        GrammarKind.JSON_SCHEMA,
        json.dumps(
            {"allOf": [{"anyOf": [{"minimum": i * j} for j in range(6)]} for i in range(12)]}
        ),
    ),
    (
        GrammarKind.JSON_SCHEMA,
        json.dumps(
            {
                "$defs": {
                    f"d{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 9}
                    for i in range(60)
                }
                | {"d60": {"type": "string"}},
                "$ref": "#/$defs/d0",
            }
        ),
    ),
]


def test_struct_1_a_form_that_no_text_has_is_refused_before_it_runs() -> None:
    process = GrammarProcess()
    empty = [
        (GrammarKind.REGEX, r"[^\s\S]"),
        (GrammarKind.JSON_SCHEMA, '{"$ref": "#"}'),
        (GrammarKind.LARK, "start: a\na: b\nb: a"),
    ]
    for kind, text in empty:
        with pytest.raises(InvalidRequest, match="no text has this form"):
            process.check(Grammar(kind, text, field="the.field"))
    process.check(Grammar(GrammarKind.REGEX, "a*"))  # nothing at all is a text of it
    process.close()


@pytest.mark.process
def test_s_60_what_costs_too_much_is_refused_in_bounded_time() -> None:
    """Compiled first where it may be killed; what passes costs no more in this process."""
    process = GrammarProcess()
    refused = []
    for index, (kind, text) in enumerate(HEAVY):
        grammar = Grammar(kind, text, field="heavy")
        try:
            process.check(grammar)
        except InvalidRequest as error:
            assert error.field == "heavy"
            refused.append(index)
            continue
        started_s = time.process_time()
        compiled = grammars().compile(grammar).deep_copy()
        words = np.zeros(-(-WIDTH // 32), np.uint32)
        compiled.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        assert time.process_time() - started_s < 1.5, text[:80]
    assert 0 not in refused  # the pattern of the advisory is harmless here
    assert KILLED in refused
    process.check(DIGITS)  # a new child serves the next one
    with pytest.raises(InvalidRequest, match="needs more than"):
        process.check(Grammar(*HEAVY[KILLED]))
    process.close()
    with pytest.raises(EngineError):
        process.check(replace(DIGITS, text="b"))


def test_s_61_what_is_kept_is_bounded_and_the_hot_one_stays() -> None:
    compiler = grammars()
    hot = Grammar(GrammarKind.REGEX, "hot")
    first = compiler.compile(hot)
    for number in range(200):
        compiler.compile(Grammar(GrammarKind.REGEX, f"cold {number}"))
        assert compiler.compile(hot) is first
    assert len(compiler._kept) == compiling.MAX_KEPT
    long = "a" * (MAX_GRAMMAR_CHARS - 20)
    for number in range(20):
        compiler.compile(Grammar(GrammarKind.LARK, f'start: "{number}" //{long}'))
    assert sum(len(kept.text) for kept in compiler._kept) <= compiling.MAX_KEPT_CHARS
    assert compiler._num_chars == sum(len(kept.text) for kept in compiler._kept)


def test_a_lead_comes_before_the_text() -> None:
    lead = 'lead: "<" thought\nthought[suffix=">"]: /(?s:.*)/\n'
    grammar = replace(DIGITS, lead=lead)
    assert after(b"", grammar) == {ord("<")}
    assert len(after(b"<hm", grammar)) > 100 and END not in after(b"<hm", grammar)
    assert after(b"<hm>4", grammar) == NUMBERS
    assert after(b"<hm>42", grammar) == {END}


def test_a_model_without_an_end_takes_no_grammar() -> None:
    class Endless(Bytes):
        end_ids = frozenset[int]()

    with pytest.raises(InvalidRequest, match="no token that ends"):
        Grammars(Endless, WIDTH).compile(DIGITS)


def test_compiling_later_is_on_another_thread() -> None:
    compiler = grammars()
    future = compiler.compile_later(DIGITS)
    assert future.result(10) is compiler.find(DIGITS)
    broken = compiler.compile_later(Grammar(GrammarKind.REGEX, "("))
    assert isinstance(broken.exception(10), InvalidRequest)
