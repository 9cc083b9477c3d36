"""A plan's layers that differ in numbers alone are shown by the first of them."""

from __future__ import annotations

from firsthand.cli.facts import collapsed


def layer(number: int, kind: str = "linear") -> list[str]:
    first = 1 + 3 * number
    return [
        f"v{first} = {kind}(v{first - 1}, model.layers.{number}.q)",
        f"v{first + 1} = attend(v{first})  [rope, layer {number}]",
        f"v{first + 2} = add(v{first - 1}, v{first + 1})",
    ]


def plan(*layers: list[str]) -> list[str]:
    last = 3 * len(layers)
    inside = [line for each in layers for line in each]
    return ["v0 = embed(table)", *inside, f"v{last + 1} = norm(v{last})", "logits = head(table)"]


def test_equal_layers() -> None:
    lines = plan(*map(layer, range(12)))
    assert list(collapsed(lines)) == [*lines[:4], "layers 1 … 11 alike", *lines[-2:]]


def test_two_kinds_of_layer() -> None:
    lines = plan(layer(0), layer(1, "other"), layer(2, "other"), layer(3))
    shown = [*lines[:7], "layer 2 alike", *lines[10:]]
    assert list(collapsed(lines)) == shown


def test_another_input_is_another_layer() -> None:
    lines = plan(*map(layer, range(3)))
    lines[6] = lines[6].replace("add(v3,", "add(v0,")
    assert list(collapsed(lines)) == lines


def test_one_layer_and_none() -> None:
    for lines in (plan(layer(0)), ["v0 = embed(table)"], []):
        assert list(collapsed(lines)) == lines
