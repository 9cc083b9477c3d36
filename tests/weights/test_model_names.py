"""The grammar of names, and the pinned list.

Owns: proof of `weights/names.py`, and the list of hostile names that other tests use.
Read next: `test_catalogue.py`.
"""

from __future__ import annotations

import os.path
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.errors import InvalidRequest
from firsthand.weights.model_names import (
    KNOWN_MODELS,
    HubId,
    check_model,
    is_commit,
    is_safe_file,
    is_sha256,
    parse_hub_id,
    shown,
)

# S-90: nothing of these is an id, and none leads out of a cache wherever a name enters.
HOSTILE_NAMES = [
    "..",
    "../..",
    "../../etc/passwd",
    "..\\..\\etc",
    "../smollm2-135m",
    "smollm2-135m/../../x",
    "./../x",
    "org/..",
    "../name",
    "org/../name",
    "org/../../name",
    "org/name/../..",
    "org/name/x",
    "org/./name",
    "org//name",
    "/org/name",
    "//org/name",
    "org/name/",
    "/",
    ".",
    "~",
    "~/x",
    "~root/x",
    "org/.name",
    ".org/name",
    "-org/name",
    "org/-name",
    "--org/name",
    "or--g/name",
    "org/na--me",
    "org/name.",
    "org/name-",
    "org/na..me",
    "org%2fname",
    "org/%2e%2e",
    "%2e%2e/%2e%2e",
    "..%2f..%2fetc",
    "%252e%252e/x",
    "org/name%00",
    "org\\name",
    "C:\\models\\x",
    "C:/models/x",
    "C:x",
    "\\\\host\\share",
    "file:///etc/passwd",
    "http://127.0.0.1/x",
    "//127.0.0.1/x",
    "org/name#x",
    "org/name?x=1",
    "org/name;x",
    "org/name x",
    " org/name",
    "org/name\u200b",
    "．．/．．",
    "org/nаme",  # a Cyrillic а
    "org/na\u0301me",
    "٣/٣",
    "org/name@",
    "org/name@..",
    "org/name@../../main",
    "org/name@refs/../../x",
    "org/name@/main",
    "org/name@.hidden",
    "org/name@main.lock",
    "org/name@ma in",
    "org/name@a@b",
    "org/name:",
    "org/name:../x.gguf",
    "org/name:/etc/x.gguf",
    "org/name:a/../../x.gguf",
    "org/name:x.bin",
    "org/name:C:x.gguf",
    "org/name:x.gguf:y.gguf",
    "org/name:..\\x.gguf",
    "o" * 300 + "/name",
    "org/" + "n" * 300,
    "n" * 300,
    "org/name@" + "r" * 300,
    "org/name:" + "f" * 300 + ".gguf",
    "$(touch x)/y",
    "`x`/y",
    "org/name|x",
    "*/*",
    "models--org--name",
    "CON/name:",
]
CONTROL_NAMES = ["", "org/na\0me", "\0", "../x\0.gguf", "org/name\n", "\x1b[2J", "x" * 5000]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_s_90_no_hostile_name_is_an_id(name: str) -> None:
    assert parse_hub_id(name) is None


@pytest.mark.parametrize("name", CONTROL_NAMES)
def test_s_90_what_is_neither_name_nor_path(name: str) -> None:
    assert parse_hub_id(name) is None
    with pytest.raises(InvalidRequest, match="model: ") as caught:
        check_model(name)
    assert str(caught.value).isprintable()


@given(st.text(alphabet="ab0._-/@:\\%~ ABF٣．", max_size=40))
@settings(max_examples=500, deadline=None)
def test_an_id_never_leaves_the_cache(name: str) -> None:
    hub_id = parse_hub_id(name)
    if hub_id is None:
        return
    assert re.fullmatch(r"models--[\w.-]+--[\w.-]+", hub_id.folder, re.ASCII)
    for part in (hub_id.folder, hub_id.revision, hub_id.file or "x"):
        assert os.path.normpath(os.path.join("/cache", part)) == f"/cache/{part}"
    assert parse_hub_id(str(hub_id)) == hub_id


def test_ids() -> None:
    assert parse_hub_id("org/name") == HubId("org", "name", "main", None)
    assert parse_hub_id("Org-1/na.me_2@v1.0") == HubId("Org-1", "na.me_2", "v1.0", None)
    full = HubId("org", "name", "refs/pr/1", "q4/x.Q4_K_M.gguf")
    assert parse_hub_id("org/name@refs/pr/1:q4/x.Q4_K_M.gguf") == full
    assert full.folder == "models--org--name"
    assert parse_hub_id("smollm2-135m") is None


def test_digests() -> None:
    assert is_sha256("0" * 64) and is_commit("f" * 40)
    for text in ("0" * 63, "0" * 65, "G" * 64, "A" * 64, "0" * 64 + "\n", "٣" * 64, ""):
        assert not is_sha256(text)
    assert not is_commit("0" * 40 + "\n")


def test_the_pinned_list_is_well_formed() -> None:
    assert set(KNOWN_MODELS) == {"smollm2-135m", "gemma3-270m"}
    for name, known in KNOWN_MODELS.items():
        assert known.name == name and parse_hub_id(name) is None
        assert is_sha256(known.sha256) and is_safe_file(known.file)
        for part in known.parts:
            assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+", part.requirement)
            assert is_safe_file(part.member)
    assert KNOWN_MODELS["smollm2-135m"].num_bytes == 98_362_432
    assert KNOWN_MODELS["gemma3-270m"].num_bytes == 253_113_024


def test_shown_is_short_and_printable() -> None:
    assert shown("a\x1b\u202e\ud800") == r"'a\x1b\u202e\ud800'"
    assert len(shown("x" * 5000)) < 110
