"""Which encoding a file is taken for, and how sure that is."""

import io

import pytest

from firsthand.data.encoding import decide, declared
from firsthand.errors import InvalidRequest

SIMPLIFIED = "今天的天气很好,我们一起去公园散步。你想知道什么?请告诉我。\n" * 3
TRADITIONAL = "今天的天氣很好,我們一起去公園散步。你想知道什麼?請告訴我。\n" * 3
JAPANESE = "今日はとても天気がいいので、公園まで歩いて行きました。\n" * 3


@pytest.mark.parametrize(
    ("text", "name"),
    [(SIMPLIFIED, "gb18030"), (TRADITIONAL, "big5"), (JAPANESE, "shift_jis")],
)
def test_texts_of_a_language_are_known_by_their_common_characters(text: str, name: str) -> None:
    found = decide(io.BytesIO(text.encode(name)))
    assert (found.name, found.how) == (name, "guessed")
    assert found.confidence >= 0.9
    assert found.text(text.encode(name)) == text


@pytest.mark.parametrize("text", [SIMPLIFIED, TRADITIONAL, JAPANESE, "naïve café\n", "плохо\n", ""])
def test_utf_8_is_utf_8_and_sure(text: str) -> None:
    found = decide(io.BytesIO(text.encode()))
    assert (found.name, found.confidence, found.ambiguous) == ("utf-8", 1.0, False)


def test_data_1_short_gbk_and_a_page_with_one_bad_byte() -> None:
    found = decide(io.BytesIO(bytes.fromhex("CAFDBEDD")))
    assert found.name == "gb18030" and found.text(bytes.fromhex("CAFDBEDD")) == "数据"
    page = ("数据和模型\n" * 20).encode() + b"\xff\n"
    found = decide(io.BytesIO(page))
    assert found.name == "utf-8" and 0.99 < found.confidence < 1 and found.note


def test_data_2_bytes_that_are_good_in_two_encodings_are_flagged() -> None:
    content = "木头铜瓶".encode("gbk")
    found = decide(io.BytesIO(content))
    assert found.name == "utf-8" and found.ambiguous and found.confidence == 0.5
    assert decide(io.BytesIO(content), "gbk").text(content) == "木头铜瓶"


def test_data_3_gb18030_stands_for_its_subsets() -> None:
    content = (SIMPLIFIED + "𠮷€").encode("gb18030")
    for name in ("gb2312", "GBK", "gb18030", None):
        assert decide(io.BytesIO(content), name).text(content) == SIMPLIFIED + "𠮷€"


@pytest.mark.parametrize("name", ["utf-8", "utf-16-le", "utf-16-be"])
def test_a_byte_order_mark_decides(name: str) -> None:
    found = decide(io.BytesIO("\ufeffabc".encode(name)))
    assert (found.name, found.how) == (name, "mark")


def test_bytes_that_are_nothing() -> None:
    found = decide(io.BytesIO(b"\xfe\xfd\x80\x81 \xff\n" * 4))
    assert found.name is None and found.how == "unknown"


@pytest.mark.parametrize("name", ["latin-99", "rot13", "\0"])
def test_an_encoding_that_is_none(name: str) -> None:
    with pytest.raises(InvalidRequest, match="encoding"):
        declared(name)
