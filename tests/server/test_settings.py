"""Settings: sources and their order, forms of values, refusals that name the place.

Owns: proof of `settings.py` and `setting_kinds.py`, and that vLLM's names stay. Read next:
`test_lifecycle.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from firsthand.errors import InvalidRequest
from firsthand.server.configured import Configured, changed
from firsthand.server.profiles import PROFILES
from firsthand.server.rules import load_options, registry_entries
from firsthand.server.setting_sources import read_settings
from firsthand.server.settings import SETTINGS, Settings

VLLM = {
    "--host", "--port", "--uds", "--api-key", "--served-model-name", "--quantization",
    "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--block-size",
    "--kv-cache-dtype", "--chat-template", "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs",
    "--allowed-origins", "--root-path", "--shutdown-timeout", "--max-num-queued-reqs",
    "--speculative-config", "--enable-prefix-caching",
}  # fmt: skip


def read(
    flags: dict[str, Any] | None = None,
    variables: dict[str, str] | None = None,
    file: Path | None = None,
) -> Configured:
    return read_settings(flags or {}, variables or {}, file)


def write(folder: Path, text: str) -> Path:
    file = folder / "settings.toml"
    file.write_text(text)
    return file


def test_the_defaults_are_their_own_source() -> None:
    assert read().settings == Settings()
    assert {origin for _, _, origin in read().rows()} == {"default"}


def test_a_flag_goes_before_a_variable_before_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, 'port = 1\nhost = "localhost"\nmax-num-seqs = 3\n')
    got = read({"port": "3"}, {"FIRSTHAND_PORT": "2", "FIRSTHAND_HOST": "::1"}, file)
    assert (got.settings.port, got.settings.host, got.settings.max_num_seqs) == (3, "::1", 3)
    origins = {name: origin for name, _, origin in got.rows()}
    assert origins["port"] == "flag --port"
    assert origins["host"] == "environment FIRSTHAND_HOST"
    assert origins["max_num_seqs"] == f"file {file}"
    assert origins["uds"] == "default"


@pytest.mark.parametrize(
    ("profile", "wait_ms", "batch"),
    [
        ("latency", (10, 20), (8, 16)),
        ("balanced", (50, 50), (16, 64)),
        ("throughput", (100, 1000), (64, 128)),
    ],
)
def test_a_profile_says_what_nothing_else_does(
    tmp_path: Path, profile: str, wait_ms: tuple[int, int], batch: tuple[int, int]
) -> None:
    """S40: the figures of each, and where `config show` says they are from."""
    got = read({"profile": profile, "max_num_seqs": "7"}, file=write(tmp_path, "block-size = 32\n"))
    assert wait_ms[0] <= got.settings.max_batch_wait * 1e3 <= wait_ms[1]
    assert batch[0] <= got.settings.max_batch_size <= batch[1]
    origins = {name: origin for name, _, origin in got.rows()}
    for name in PROFILES[profile]:
        flag = name == "max_num_seqs"
        assert origins[name] == ("flag --max-num-seqs" if flag else f"profile {profile}")
    assert got.settings.max_num_seqs == 7
    options = load_options(got.settings)
    assert options.max_step_tokens == PROFILES[profile]["max_num_batched_tokens"]
    assert options.max_batch_wait_s == got.settings.max_batch_wait


def test_every_profile_can_be_run() -> None:
    for profile, values in PROFILES.items():
        settings = read({"profile": profile}).settings
        assert {name: getattr(settings, name) for name in values} == dict(values)
        assert load_options(settings).max_sequences == values["max_num_seqs"]


def test_vllms_names_are_there() -> None:
    assert {setting.flag for setting in SETTINGS} >= VLLM


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: str(setting.name))
def test_every_setting_has_its_three_sources_and_is_shown(setting: Any, tmp_path: Path) -> None:
    """What `show` prints of a value is read back as that value."""
    about, default = setting.about, setting.default
    shown = about.kind.show(default)
    assert about.help.endswith(".")
    if shown:
        assert about.kind.read(setting.flag, shown) == default
        from_variable = read(variables={setting.variable: shown})
        assert from_variable.origins == {setting.name: f"environment {setting.variable}"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2k", 2000), ("1K", 1024), ("4KiB", 4096), ("8kB", 8000), ("2m", 2_000_000),
        ("1M", 1 << 20), ("2048", 2048), ("1G", 1 << 30), ("4096B", 4096),
    ],
)  # fmt: skip
def test_sizes_have_suffixes(text: str, value: int) -> None:
    assert read({"max_body_size": text}).settings.max_body_size == value


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"port": "65536"}, "--port: must be at least 0 and at most 65535"),
        ({"port": "-1"}, "--port"),
        ({"port": "1.5"}, "--port"),
        ({"port": "٣"}, "--port"),
        ({"max_num_seqs": "0"}, "--max-num-seqs"),
        ({"block_size": "24"}, "block_size: must be a multiple of 16"),
        ({"receive_timeout": "nan"}, "--receive-timeout"),
        ({"receive_timeout": "inf"}, "--receive-timeout"),
        ({"receive_timeout": "soon"}, "--receive-timeout: must be a number"),
        ({"shed": "perhaps"}, "--shed: takes true or false"),
        ({"log_level": "loud"}, "--log-level: must be one of debug, info, warning, error"),
        ({"host": ""}, "--host"),
        ({"host": "a\nb"}, "--host"),
        ({"ssl_keyfile": "k"}, "ssl_certfile"),
        ({"ssl_ca_certs": "k"}, "ssl_ca_certs"),
        ({"root_path": "x"}, "root_path"),
        ({"root_path": "/x/"}, "root_path"),
        ({"max_body_size": "9" * 30}, "--max-body-size"),
        ({"model": "deploy/server.toml"}, "settings: --config deploy/server.toml"),
    ],
)
def test_a_bad_value_is_named(flags: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequest) as found:
        read(flags)
    assert says in str(found.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot = 1", "no such setting; did you mean port?"),
        ("max_num_seq = 1", "did you mean max-num-seqs?"),
        ("zzz = 1", "no such setting"),
        ("port = 'x'", "port: must be an integer"),
        ("port = true", "port"),
        ("max-num-seqs = 1\nmax_num_seqs = 2", "twice"),
        ("[server]\nport = 1", "no such setting"),
        ("port = ", "no TOML"),
        ("port = " + "9" * 5000, "no TOML"),
        ("shed = 1", "true or false"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, says: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(InvalidRequest) as found:
        read(file=file)
    assert says in str(found.value)
    assert str(file) in str(found.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--config"):
        read(file=tmp_path / "none.toml")


def test_a_misspelt_variable_is_named() -> None:
    with pytest.raises(InvalidRequest, match="did you mean FIRSTHAND_API_KEY_FILE"):
        read(variables={"FIRSTHAND_API_KEY_FILES": "x"})


@pytest.mark.parametrize(
    ("slip", "meant"),
    [("PROT", "PORT"), ("UDS_", "UDS"), ("USD", "UDS"), ("MAX_NUM_SEQ", "MAX_NUM_SEQS")],
)
def test_a_slip_in_a_variable_is_as_near_as_one_in_a_key(slip: str, meant: str) -> None:
    with pytest.raises(InvalidRequest, match=f"did you mean FIRSTHAND_{meant}"):
        read(variables={f"FIRSTHAND_{slip}": "1"})


def test_variables_of_others_are_left_alone() -> None:
    """A service that is called `firsthand` gives each container these."""
    injected = {
        "FIRSTHAND_PORT": "tcp://10.0.0.1:8000",
        "FIRSTHAND_SERVICE_HOST": "10.0.0.1",
        "FIRSTHAND_SERVICE_PORT": "8000",
        "FIRSTHAND_SERVICE_PORT_HTTP": "8000",
        "FIRSTHAND_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "FIRSTHAND_PORT_8000_TCP_ADDR": "10.0.0.1",
        "FIRSTHAND_PORT_8000_TCP_PORT": "8000",
        "FIRSTHAND_PORT_8000_TCP_PROTO": "tcp",
        "FIRSTHAND_HOME": "/x",
        "FIRSTHAND_TEST_MODEL": "/x",
        "PATH": "/bin",
    }
    assert read(variables=injected).settings == Settings()


def test_secrets_are_never_shown() -> None:
    got = read({"api_key": "secret-secret-secret"})
    assert "secret-secret" not in repr(got) + str(list(got.rows()))
    assert {name: value for name, value, _ in got.rows()}["api_key"] == "(hidden)"


def test_a_drain_is_longer_than_the_longest_request() -> None:
    assert Settings(request_timeout=10).drain_limit_s == 30
    assert Settings(request_timeout=60).drain_limit_s == 90
    assert Settings(shutdown_timeout=3).drain_limit_s == 3


def test_what_a_reload_changes() -> None:
    after = replace(Settings(), log_level="debug", port=1)
    assert changed(Settings(), after) == (["log_level"], ["port"])


def test_several_models_and_what_each_has_of_its_own(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        'load = "lazy"\nmax-num-seqs = 4\n'
        '[[model]]\npath = "a"\nload = "whole"\npinned = true\n'
        '[[model]]\npath = "b"\nname = "other"\nmax_num_seqs = 8\nmemory-limit = "1GiB"\n',
    )
    settings = read(file=file).settings
    a, b = registry_entries(settings)
    assert (a.service.name, a.at_start, a.pinned, a.memory_limit) == ("a", True, True, None)
    assert (b.service.name, b.at_start, b.pinned, b.memory_limit) == ("other", False, False, "1GiB")
    assert (a.service.load.max_sequences, b.service.load.max_sequences) == (4, 8)
    assert ("model", "a,b", f"file {file}") in read(file=file).rows()
    flags = read({"model": ["a", "b"]}).settings
    assert [one.service.name for one in registry_entries(flags)] == ["a", "b"]
    assert read(variables={"FIRSTHAND_MODEL": "a, b"}).settings.model == flags.model


def test_what_computes_is_of_all_or_of_one_model(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        'executor = "torch"\ncompile = true\nenable-prefix-caching = false\n'
        '[[model]]\npath = "a"\n'
        '[[model]]\npath = "b"\nfamily = "f.py:F"\ncompile = false\ndeterministic = true\n',
    )
    a, b = (one.service.load for one in registry_entries(read(file=file).settings))
    assert (a.compile, a.deterministic, a.family, a.prefix_cache) == (True, False, None, False)
    assert (b.compile, b.deterministic, b.family, b.prefix_cache) == (False, True, "f.py:F", False)


def test_how_to_guess_is_json_or_a_table_of_all_or_of_one_model(tmp_path: Path) -> None:
    given = {"method": "ngram", "num_speculative_tokens": 4}
    text = '{"method": "ngram", "num_speculative_tokens": 4}'
    file = write(
        tmp_path,
        'speculative-config = { method = "ngram", num_speculative_tokens = 4 }\n'
        '[[model]]\npath = "a"\n'
        '[[model]]\npath = "b"\nspeculative-config = { model = "small" }\n',
    )
    a, b = registry_entries(read(file=file).settings)
    assert (a.service.load.speculative_config, b.service.load.speculative_config) == (
        given,
        {"model": "small"},
    )
    for found in (
        read({"speculative_config": text}),
        read(variables={"FIRSTHAND_SPECULATIVE_CONFIG": text}),
    ):
        assert found.settings.speculative_config == given
        assert text in [value for _, value, _ in found.rows()]
    for wrong, says in (("{", "is no JSON"), ("[]", "a JSON object or a table")):
        with pytest.raises(InvalidRequest, match=rf"--speculative-config: .*{says}"):
            read({"speculative_config": wrong})
    with pytest.raises(InvalidRequest, match=r"speculative_config\.method"):
        load_options(read({"speculative_config": '{"method": "x"}'}).settings)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[model]]\nname = "x"\n', "needs a path"),
        ('[[model]]\npath = "x"\nmax-model-length = 4\n', "max-model-len"),
        ('[[model]]\npath = "x"\nport = 1\n', "no such setting"),
        ('[[model]]\npath = "x"\nload = "later"\n', "load"),
        ('[[model]]\npath = "x"\nmax-num-seqs = 0\n', "model x: max-num-seqs"),
        ('[[model]]\npath = "x"\n[[model]]\npath = "x"\n', "two are called 'x'"),
        ("model = 3\n", "1 to 64 models"),
        ("model = []\n", "1 to 64 models"),
    ],
)
def test_a_model_table_that_is_wrong_says_where(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        read(file=write(tmp_path, text))
    assert says in str(error.value)
