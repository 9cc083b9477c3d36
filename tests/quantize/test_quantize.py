"""A model made smaller: what is written, who else loads it, and what is not published.

Owns: the folder as a whole. The libraries that own the form, transformers with compressed-tensors,
load it and give our logits. May not know: how codes are chosen. Read next: `docs/quantize.md`.
"""

from __future__ import annotations

import inspect
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firsthand.cli.main import run_command
from firsthand.cli.quantize import Wanted
from firsthand.cli.quantize import quantize as command
from firsthand.errors import InvalidRequest
from firsthand.evaluate.perplexity import load_for_scoring, perplexity
from firsthand.generation.load_options import LoadOptions
from firsthand.quantize.calibration import DEFAULT_TOKENS
from firsthand.quantize.quantize import Plan, Report, quantize
from firsthand.quantize.scheme import Scheme

pytestmark = pytest.mark.native
TOKENS = 2_048


def made(folder: Path, dst: Path, text: str, **options: Any) -> Report:
    scheme = Scheme(**({"force": True} | options))
    calibration = text if scheme.needs_calibration else None
    judged = text[-600:]
    return quantize(
        folder, dst, scheme, calibration=calibration, judged_on=judged, num_tokens=TOKENS
    )


CASES: list[dict[str, Any]] = [
    {"kind": "int8", "method": "nearest"},
    {"kind": "int8", "group": 32, "method": "searched"},
    {"kind": "int8", "zeros": True, "method": "nearest"},
    {"kind": "int4", "method": "compensated"},
    {"kind": "int4", "zeros": True, "method": "scaled"},
    {"kind": "int3", "group": 16, "method": "nearest"},
    {"kind": "int4", "mixed": True, "budget": 5.6, "method": "nearest"},
    {"kind": "w8a8", "method": "nearest"},
]


@pytest.mark.oracle
@pytest.mark.parametrize("options", CASES, ids=lambda o: " ".join(map(str, o.values())))
def test_transformers_loads_it_and_gives_our_scores(
    micro_folder: Path, tmp_path: Path, passages: str, options: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("compressed_tensors")
    folder = tmp_path / "small"
    report = made(micro_folder, folder, passages, **options)
    assert report.published
    text = passages[:64]
    if options.get("zeros"):
        model = library_model(folder)
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([list(text.encode())])
    with torch.no_grad():
        logprobs = model(ids).logits[0].log_softmax(-1)
    theirs = -logprobs[torch.arange(len(ids[0]) - 1), ids[0, 1:]].numpy()
    load = LoadOptions(quantization="none", kv_dtype="float32", threads=1)
    ours = perplexity(load_for_scoring(folder, load), text, window=64).nlls
    # w8a8: they round activations to 8 bits as well.
    bound = 0.3 if options["kind"] == "w8a8" else 2e-3
    assert np.allclose(ours, theirs, atol=bound)


def library_model(folder: Path) -> Any:
    """A plain model with the weights that compressed-tensors itself unpacks.

    Its release 0.20.1 under transformers expects zero points as many as it unpacks, and refuses
    every checkpoint that has them packed, as it packs them itself.
    """
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    groups = config.quantization_config["config_groups"]
    scheme = QuantizationScheme.model_validate(groups["group_0"])
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = load_file(folder / "model.safetensors")
    state = {name: value for name, value in tensors.items() if ".weight_" not in name}
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    for name in tensors:
        if name.endswith(".weight_packed"):
            stem = name.removesuffix("_packed")
            parts = {k.removeprefix(stem): v for k, v in tensors.items() if k.startswith(stem)}
            held = {f"weight{part}": value for part, value in parts.items()}
            held["weight_scale"] = held["weight_scale"].float()
            state[stem] = compressor.decompress(held, scheme)["weight"]
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model


def test_what_was_rounded_is_loaded_as_it_is(
    micro_folder: Path, tmp_path: Path, passages: str
) -> None:
    """`auto` keeps the codes; against the same values as floats only the embedding differs."""
    report = made(micro_folder, tmp_path / "small", passages, kind="int4", method="searched")
    loaded = load_for_scoring(tmp_path / "small", LoadOptions(threads=1))
    formats = {tensor.name: tensor.format for tensor in loaded.weights.tensors}
    assert formats["model.layers.0.mlp.up_proj.weight"] == "int4/32"
    assert report.bits_per_weight == 4.5
    assert report.num_bytes < 0.4 * report.source_bytes


@pytest.mark.parametrize("options", CASES, ids=lambda o: " ".join(map(str, o.values())))
def test_the_size_is_known_before_the_work(
    micro_folder: Path, tmp_path: Path, passages: str, options: dict[str, Any]
) -> None:
    plans: list[Plan] = []
    scheme = Scheme(**({"force": True} | options))
    text = passages if scheme.needs_calibration else None
    report = quantize(
        micro_folder,
        tmp_path / "small",
        scheme,
        calibration=text,
        judged_on=passages[-600:],
        num_tokens=TOKENS,
        planned=plans.append,
    )
    (plan,) = plans
    assert plan.source_bytes == report.source_bytes
    assert plan.num_bytes == pytest.approx(report.num_bytes, rel=0.03)
    assert not plan.rounded_twice


def test_the_options_of_the_command_are_those_of_the_scheme() -> None:
    """Written twice, because help is shown without numpy."""
    assert Scheme(**asdict(Wanted())) == Scheme()
    asked = inspect.signature(command).parameters["calibration_tokens"].default
    assert asked == DEFAULT_TOKENS


def test_the_command_tells_before_the_work_what_there_is_to_tell(
    micro_folder: Path, tmp_path: Path, passages: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made(micro_folder, tmp_path / "small", passages, kind="int4", method="nearest")
    (tmp_path / "text").write_text(passages[-600:])
    arguments = ["quantize", str(tmp_path / "small"), str(tmp_path / "again"), "--scheme", "int8"]
    arguments += ["--method", "nearest", "--text", str(tmp_path / "text"), "--force"]
    assert run_command(arguments) == 0
    said = capsys.readouterr().err
    for early in ("rounds a second time", "no smaller"):
        assert -1 < said.find(early) < said.find("rounding: ")


def test_compensation_loses_less(micro_folder: Path, tmp_path: Path, passages: str) -> None:
    errors = {}
    options: dict[str, Any] = {"kind": "int4", "group": 16, "mixed": True, "budget": 5.01}
    for method in ("nearest", "compensated", "scaled"):
        report = made(micro_folder, tmp_path / method, passages, method=method, **options)
        errors[method] = {layer.name: layer.error for layer in report.layers}
    names = errors["compensated"]
    assert len(names) == 14
    assert sum(errors["compensated"].values()) < sum(errors["nearest"].values())
    for name in names:
        assert errors["scaled"][name] <= errors["nearest"][name] * 1.05


def test_the_budget_goes_to_the_sensitive(
    micro_folder: Path, tmp_path: Path, passages: str
) -> None:
    report = made(
        micro_folder,
        tmp_path / "m",
        passages,
        kind="int4",
        mixed=True,
        budget=5.5,
        method="nearest",
    )
    wide = [layer.name for layer in report.layers if layer.bits == 8]
    assert 0 < len(wide) < 14
    assert 4.5 < report.bits_per_weight <= 5.5


def test_the_loss_decides(micro_folder: Path, tmp_path: Path, passages: str) -> None:
    options: dict[str, Any] = {"kind": "int3", "method": "nearest", "force": False, "max_loss": 0.0}
    report = made(micro_folder, tmp_path / "small", passages, **options)
    assert report.judgement is not None
    assert report.published == (report.judgement.loss_percent <= 0)
    assert not report.published
    assert os.listdir(tmp_path) == []
    forced = made(micro_folder, tmp_path / "small", passages, **(options | {"force": True}))
    assert forced.published
    content = json.loads((tmp_path / "small" / "quantization.json").read_text())
    assert content["loss_percent"] == pytest.approx(report.judgement.loss_percent)
    assert content["destination"] == "small"


def test_the_calibration_set_stands_in_the_folder(
    micro_folder: Path, tmp_path: Path, passages: str
) -> None:
    report = made(micro_folder, tmp_path / "small", passages, kind="w8a8", method="nearest")
    content = json.loads((tmp_path / "small" / "quantization.json").read_text())
    assert content["calibration_sha256"] == report.calibration_sha256
    assert content["calibration"]["num_tokens"] == TOKENS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"kind": "int4", "group": 48},
            "has 64 columns, no multiple of 48; these fit every layer: 16, 32, and 0",
        ),
        ({"kind": "int4", "group": 24}, "a multiple of 16"),
        ({"kind": "int2"}, "scheme: must be one of"),
        ({"kind": "w8a8", "group": 32}, "w8a8 has one scale per row"),
        ({"kind": "int4", "mixed": True}, "budget: goes with auto-mixed"),
        ({"kind": "int4", "mixed": True, "budget": 3.0}, "budget: must be above 4"),
    ],
)
def test_quant_3_what_does_not_fit_is_refused(
    micro_folder: Path, tmp_path: Path, passages: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        made(micro_folder, tmp_path / "small", passages, **options)
    assert os.listdir(tmp_path) == []


def test_without_a_text_nothing_is_known(micro_folder: Path, tmp_path: Path) -> None:
    for scheme, message in (
        (Scheme("int4"), "calibration: a text is needed"),
        (Scheme("int4", method="nearest"), "text: nothing tells what the rounding costs"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            quantize(micro_folder, tmp_path / "x", scheme, num_tokens=TOKENS)
    (tmp_path / "there").mkdir()
    with pytest.raises(InvalidRequest, match="exists already"):
        quantize(micro_folder, tmp_path / "there", Scheme("int4"), num_tokens=TOKENS)


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["int8", "w8a8"])
def test_gains_that_a_load_adds_one_to_are_written_without_it(
    micro_folder: Path, tmp_path: Path, passages: str, kind: str
) -> None:
    """Gemma's norms: a gain of 1 + what the file has, smoothed or not."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        vocab_size=257, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
        query_pre_attn_scalar=16, sliding_window=32, eos_token_id=256, bos_token_id=None,
        pad_token_id=None,
    )  # fmt: skip
    folder = tmp_path / "gemma"
    transformers.Gemma2ForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((micro_folder / name).read_bytes())
    report = made(folder, tmp_path / "small", passages, kind=kind, method="nearest")
    assert report.judgement is not None
    assert abs(report.judgement.loss_percent) < 1


@pytest.mark.model
def test_a_gguf_files_words_become_files_that_say_the_same(
    smollm2_path: Path, tmp_path: Path, passages: str
) -> None:
    from contextlib import closing

    from firsthand.generation.reading import read_spec, read_tokenizer
    from firsthand.quantize.source import config_of, open_source_model, write_companions
    from firsthand.text.tokenizer import Tokenizer
    from firsthand.weights.open import open_checkpoint

    with closing(open_checkpoint(smollm2_path)) as checkpoint:
        source = open_source_model(checkpoint)
        assert source.was_rounded
        write_companions(source, tmp_path)
        (tmp_path / "config.json").write_text(json.dumps(config_of(source)))
        from firsthand.models.families import read_config

        assert read_config(config_of(source)) == read_spec(checkpoint)
        ours, again = read_tokenizer(checkpoint), Tokenizer.from_folder(tmp_path)
    probe = passages[:3_000] + "混合文字 <|im_end|> 🙂  x\n\n\n"
    assert again.encode(probe) == ours.encode(probe)
    assert again.encode(probe, special=True) == ours.encode(probe, special=True)
    assert again.end_ids == ours.end_ids
    assert again.chat_template == ours.chat_template
