"""What is done to records on their way, by the built-in ways and the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firsthand.cli.micro_model import write_micro_model
from firsthand.data.record import START, Accepted, Record, Rejected
from firsthand.data.running import How, run_job
from firsthand.data.stages import transformed
from firsthand.data.transforms import make_transform
from firsthand.errors import InvalidRequest
from tests.data.jobs import ask, job_in, lines, outputs


def through(values: dict[str, Any], *transforms: dict[str, Any]) -> dict[str, Any] | Rejected:
    made = [make_transform(one, Path()) for one in transforms]
    (found,) = transformed([Accepted(Record(START, b"", {}), None, values)], made)
    return found if isinstance(found, Rejected) else found.values


@pytest.mark.parametrize(
    ("options", "text", "wanted"),
    [
        ({"use": "clean"}, " a\u200b \t b\r\n\r\n\r\n\r\nc\x07\u3000 ", "a b\n\nc"),
        ({"use": "clean"}, "今天 天气\ufeff", "今天 天气"),
        ({"use": "normalise"}, "e\u0301ﬁ", "éﬁ"),
        ({"use": "normalise", "form": "NFKC"}, "ﬁ１", "fi1"),
        ({"use": "redact"}, "a.b+c@example.org or +86 138 0013 8000", "[EMAIL] or [PHONE]"),
        ({"use": "redact"}, "4111 1111 1111 1111 from 10.0.0.1", "[CARD] from [IP]"),
        ({"use": "redact", "kinds": ["IP"]}, "a@b.cd 10.0.0.1", "a@b.cd [IP]"),
        ({"use": "redact"}, "11010519491231002X", "[ID]"),
        ({"use": "redact"}, "sk-abcdefghijklmnop1234", "[KEY]"),
    ],
)  # fmt: skip
def test_texts_are_changed(options: dict[str, Any], text: str, wanted: str) -> None:
    assert through({"text": text}, {**options, "fields": ["text"]}) == {"text": wanted}


def test_a_template_fills_a_field() -> None:
    options = {"use": "template", "text": "Say {{{text}}} {n} times"}
    assert through({"text": "a{n}", "n": 2}, options) == {
        "text": "a{n}",
        "n": 2,
        "prompt": "Say {a{n}} 2 times",
    }
    found = through({}, options)
    assert isinstance(found, Rejected) and (found.stage, found.field) == ("template", "text")


def test_ids_of_a_models_tokenizer(tmp_path: Path) -> None:
    options = {"use": "tokenise", "model": str(write_micro_model(tmp_path)), "max_tokens": 4}
    found = through({"text": "abcd"}, options)
    assert isinstance(found, dict) and len(found["token_ids"]) == 4
    found = through({"text": "abcde"}, options)
    assert isinstance(found, Rejected) and found.reason == "out_of_range"


def test_what_is_blank_after_cleaning_is_refused() -> None:
    found = through({"text": "\u200b"}, {"use": "clean", "fields": ["text"]})
    assert isinstance(found, Rejected) and (found.stage, found.reason) == ("clean", "blank")


def test_a_function_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "def shout(values, mark='!'):\n"
        "    if values['text'] == 'text 2':\n"
        "        raise KeyError('no')\n"
        "    return {**values, 'text': values['text'].upper() + mark}\n"
    )
    table = {"transform": [{"use": "own.py:shout", "mark": "?"}]}
    outcome = run_job(job_in(tmp_path, lines(*map(ask, range(4))), **table), None, How())
    assert [one["text"] for one in outputs(tmp_path)] == ["TEXT 0?", "TEXT 1?", "TEXT 3?"]
    assert dict(outcome.books.reasons) == {"failed": 1}
    with pytest.raises(InvalidRequest, match="unexpected"):
        job_in(tmp_path, transform=[{"use": "own.py:shout", "loud": 1}])


def test_the_same_text_twice_is_a_duplicate(tmp_path: Path) -> None:
    records = lines(ask(1, "a  b"), ask(2, "a b"), ask(3, "c"))
    table = {
        "transform": [
            {"use": "clean", "fields": ["text"]},
            {"use": "deduplicate", "fields": ["text"]},
        ]
    }
    outcome = run_job(job_in(tmp_path, records, **table), None, How())
    assert outcome.books.duplicates == 1
    assert [one["request_id"] for one in outputs(tmp_path)] == ["r1", "r3"]
