"""The environment's variables: defaults, precedence, bad values.

Owns: proof of `config.py`. Read next: `test_request.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from firsthand.config import child_environment, read_environment
from firsthand.errors import InvalidRequest

HOME = {"HOME": "/users/me"}


def test_defaults() -> None:
    env = read_environment(HOME)
    assert env.home == Path("/users/me/.cache/firsthand")
    assert env.hf_cache == Path("/users/me/.cache/huggingface/hub")
    assert env.modelscope_cache == Path("/users/me/.cache/modelscope")
    assert env.hf_endpoint == "https://huggingface.co"
    assert (env.hf_offline, env.hf_token, env.isa, env.threads) == (False, None, None, None)


@pytest.mark.parametrize(
    ("variables", "home", "hf_cache"),
    [
        ({"XDG_CACHE_HOME": "/x"}, "/x/firsthand", "/x/huggingface/hub"),
        ({"XDG_CACHE_HOME": "x"}, None, None),  # relative: to be ignored
        ({"XDG_CACHE_HOME": "/x", "FIRSTHAND_HOME": "/f"}, "/f", "/x/huggingface/hub"),
        ({"FIRSTHAND_HOME": "~/f"}, "/users/me/f", None),
        ({"FIRSTHAND_HOME": ""}, None, None),
        ({"HF_HOME": "/h"}, None, "/h/hub"),
        ({"HF_HOME": "/h", "HF_HUB_CACHE": "/c"}, None, "/c"),
    ],
)
def test_folders(variables: dict[str, str], home: str | None, hf_cache: str | None) -> None:
    env = read_environment(HOME | variables)
    assert str(env.home) == (home or "/users/me/.cache/firsthand")
    assert str(env.hf_cache) == (hf_cache or "/users/me/.cache/huggingface/hub")


def test_values() -> None:
    env = read_environment(
        HOME
        | {
            "HF_ENDPOINT": "https://mirror.example:8443/hf/",
            "HF_HUB_OFFLINE": "YES",
            "HF_TOKEN": " hf_secret\n",
            "FIRSTHAND_ISA": "AVX2",
            "FIRSTHAND_THREADS": "2",
            "FIRSTHAND_PACK_CACHE": "0",
        }
    )
    assert env.hf_endpoint == "https://mirror.example:8443/hf"
    assert (env.hf_offline, env.hf_token, env.isa) == (True, "hf_secret", "avx2")
    assert (env.threads, env.pack_cache) == (2, False)
    assert read_environment(HOME).pack_cache
    assert "hf_secret" not in repr(env)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FIRSTHAND_THREADS", "0"),
        ("FIRSTHAND_THREADS", "-1"),
        ("FIRSTHAND_THREADS", "many"),
        ("FIRSTHAND_THREADS", "257"),
        ("FIRSTHAND_THREADS", "٣"),
        ("FIRSTHAND_THREADS", "9" * 5000),
        ("HF_HUB_OFFLINE", "maybe"),
        ("HF_ENDPOINT", "huggingface.co"),
        ("HF_ENDPOINT", "file:///etc"),
        ("HF_ENDPOINT", "https://"),
        ("HF_ENDPOINT", "https://host:port"),
        ("HF_ENDPOINT", "https://[::"),
        ("HF_ENDPOINT", "https://me:secret@host"),
        ("HF_ENDPOINT", "https://host/?x"),
        ("HF_ENDPOINT", "https://host /x"),
        ("HF_TOKEN", "a\r\nHost: b"),
        ("HF_TOKEN", "a b"),
        ("HF_TOKEN", "ключ"),
        ("FIRSTHAND_HOME", "a\0b"),
    ],
)
def test_bad_value_is_named_and_a_secret_is_not_repeated(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_environment(HOME | {name: value})
    assert caught.value.field == name
    assert len(str(caught.value)) < 200
    assert "secret" not in str(caught.value)


def test_a_misspelt_variable_gets_a_suggestion() -> None:
    with pytest.raises(InvalidRequest, match=r"FIRSTHAND_THREDS: .*did you mean FIRSTHAND_THREADS"):
        read_environment(HOME | {"FIRSTHAND_THREDS": "2"})


@pytest.mark.parametrize("name", ["PORT", "SERVICE_HOST", "PORT_80_TCP", "TEST_MODEL"])
def test_a_variable_that_an_orchestrator_injects_is_left_alone(name: str) -> None:
    assert read_environment(HOME | {f"FIRSTHAND_{name}": "x"}) == read_environment(HOME)


def test_child_gets_everything_and_the_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "x")
    changed = child_environment({"TMPDIR": "/t"})
    assert (changed["PIP_INDEX_URL"], changed["TMPDIR"]) == ("x", "/t")
