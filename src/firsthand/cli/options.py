"""The options that several commands share, each declared once.

Owns: names, help texts and defaults of shared options; how a group of them becomes one value.
May not know: what an option does; ranges are checked where the value is used.
Read next: `generate.py`.

`Loading` and `Sampling` are groups. A command takes a whole group as one parameter, whose default
has the defaults of that command; `flat` shows typer its fields. A field has the name that
`generation` has for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

from firsthand.checks import shown
from firsthand.engine.guessing.config import read_guess_config
from firsthand.errors import InvalidRequest
from firsthand.values import dataclass

Model = Annotated[
    str, typer.Argument(help="A known name, a folder, a .gguf file, or a hub id.", metavar="MODEL")
]
FROM_STANDARD_INPUT = "Without one, standard input is read if it is a pipe; with -, in any case."
Text = Annotated[str | None, typer.Argument(metavar="TEXT", help=FROM_STANDARD_INPUT)]
System = Annotated[
    str | None, typer.Option(help="The system message of the conversation; default: none.")
]
Sequences = Annotated[
    int | None, typer.Option(help="Sequences at once; default: as many as fit, up to 16.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print exactly one line of JSON.")]
Report = Annotated[
    bool, typer.Option("--report", help="Print where time and memory went, to standard error.")
]
MaxContext = Annotated[
    int | None, typer.Option(help="Tokens that a sequence may have; default: the model's own.")
]
DisableRule = Annotated[
    list[str] | None,
    typer.Option(
        "--disable-rule",
        metavar="RULE",
        help="Leave out a fusion rule of the plan; repeatable; default: none.",
    ),
]


@dataclass(frozen=True, slots=True)
class Loading:
    """How to hold the model and what to run it with."""

    executor: Annotated[str, typer.Option(help="native, torch or triton (extras).")] = "native"
    device: Annotated[str, typer.Option(help="cpu; cuda with torch or triton.")] = "cpu"
    quantization: Annotated[
        str, typer.Option(help="auto (the file's own blocks, else int8), none, int8 or int4.")
    ] = "auto"
    family: Annotated[
        str | None,
        typer.Option(
            metavar="FILE:NAME", help="A family of your own, for a folder; default: those built in."
        ),
    ] = None
    threads: Annotated[
        int | None, typer.Option(help="Threads to compute with; default: one per core.")
    ] = None
    max_context: MaxContext = None
    kv_dtype: Annotated[
        str, typer.Option(help="Type of the KV cache: int16, float16, float32 or int8.")
    ] = "int16"
    kv_layout: Annotated[str, typer.Option(help="How keys lie in the KV cache: tiles or rows.")] = (
        "tiles"
    )
    kv_store: Annotated[
        str, typer.Option(help="paged, or contiguous: one run of memory per sequence.")
    ] = "paged"
    block_size: Annotated[
        int, typer.Option(help="Tokens per block of the paged cache; a multiple of 16.")
    ] = 16
    prefix_cache: Annotated[
        bool,
        typer.Option(
            "--prefix-cache/--no-prefix-cache",
            help="Keep blocks of ended sequences for prompts that begin alike.",
        ),
    ] = True
    scheduler: Annotated[
        str, typer.Option(help="fair, or static: a batch that nobody joins before it has ended.")
    ] = "fair"
    memory_limit: Annotated[
        str,
        typer.Option(
            metavar="BYTES|SHARE%",
            help="What the process may take: bytes (2GiB), or a share of what is free (80%).",
        ),
    ] = "80%"
    disabled_rules: DisableRule = None
    pack_cache: Annotated[
        bool,
        typer.Option(
            "--pack-cache/--no-pack-cache", help="Use and keep the packed form of the model."
        ),
    ] = True
    load: Annotated[
        str,
        typer.Option(
            help="whole, or shards: what is over the limit is read while a step computes."
        ),
    ] = "whole"
    attention: Annotated[
        str | None,
        typer.Option(help="Of the torch executor: formula, tiled or fast; default: fast."),
    ] = None
    compile: Annotated[
        bool,
        typer.Option("--compile", help="Of torch: compile the steps; of triton: capture them."),
    ] = False
    compile_buckets: Annotated[
        list[int] | None,
        typer.Option(
            "--compile-bucket",
            metavar="ROWS",
            help="Pad steps to so many rows; repeatable; default: 128 … 1024, triton 1 … 64.",
        ),
    ] = None
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Of torch and triton: equal bits in every run."),
    ] = False
    lora: Annotated[
        list[str] | None,
        typer.Option(
            "--lora",
            metavar="NAME=FOLDER",
            help="Load an adapter as peft saves it; repeatable; default: none.",
        ),
    ] = None
    speculative_config: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            envvar="FIRSTHAND_SPECULATIVE_CONFIG",
            help='Guess tokens, keep the right ones: {"method": "ngram"}; default: none.',
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to go on from a prompt, and when to end."""

    max_tokens: Annotated[int, typer.Option(help="New tokens at most.")] = 256
    min_tokens: Annotated[int, typer.Option(help="New tokens before an end token counts.")] = 0
    temperature: Annotated[float, typer.Option(help="Scale of the randomness; 0 is greedy.")] = 1.0
    top_k: Annotated[int, typer.Option(help="Keep the K likeliest tokens; 0 is off.")] = 0
    top_p: Annotated[
        float, typer.Option(help="Keep the likeliest tokens up to this mass; 1 is off.")
    ] = 1.0
    min_p: Annotated[
        float,
        typer.Option(help="Keep tokens of at least this part of the best one's probability."),
    ] = 0.0
    repetition_penalty: Annotated[
        float, typer.Option(help="Weaken every token seen so far; 1 is off.")
    ] = 1.0
    presence_penalty: Annotated[
        float, typer.Option(help="Weaken tokens that were generated, once; 0 is off.")
    ] = 0.0
    frequency_penalty: Annotated[
        float, typer.Option(help="Weaken them for each time they were; 0 is off.")
    ] = 0.0
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=BIAS", help="Add to one token's logit; repeatable; default: none."
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End before this text; repeatable; default: none."),
    ] = None
    stop_token_ids: Annotated[
        list[int] | None,
        typer.Option(
            "--stop-id", metavar="ID", help="End with this token; repeatable; default: none."
        ),
    ] = None
    ignore_end: Annotated[
        bool, typer.Option("--ignore-end", help="Take the model's end tokens for ordinary ones.")
    ] = False
    repetition_guard: Annotated[
        bool,
        typer.Option(
            "--repetition-guard/--no-repetition-guard",
            help="End when the same run of tokens repeats.",
        ),
    ] = False
    adapter: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Of several --lora, the one that answers; default: none."
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(help="Repeats an answer; default: a new one, which --report and --json show."),
    ] = None


LOADING = Loading()
SAMPLING = Sampling()


def flat(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer needs it: in place of each group of options, its fields."""
    hints = get_type_hints(command, include_extras=True)
    groups = {
        name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)
    }
    parameters: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        own = {parameter.name: (hints[parameter.name], parameter.default)}
        if parameter.name in groups:
            members = get_type_hints(groups[parameter.name], include_extras=True)
            own = {name: (members[name], getattr(parameter.default, name)) for name in members}
        parameters += [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
            for name, (hint, default) in own.items()
        ]

    def call(**given: object) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    call.__doc__ = command.__doc__
    vars(call)["__signature__"] = Signature(parameters)
    return call


def load_keywords(loading: Loading, *, with_adapters: bool = False) -> dict[str, Any]:
    """The group as `LoadOptions` takes it. Raises InvalidRequest, also for adapters of a command
    that computes the model itself."""
    adapters: dict[str, str] = {}
    if loading.lora and not with_adapters:
        raise InvalidRequest("lora", "goes with run and chat; for the rest, `firsthand merge`")
    for pair in loading.lora or ():
        name, _, folder = pair.partition("=")
        if not name or not folder:
            raise InvalidRequest("lora", f"must be NAME=FOLDER, not {shown(pair)}")
        if name in adapters:
            raise InvalidRequest("lora", f"two are called {shown(name)}")
        adapters[name] = folder
    rules = tuple(loading.disabled_rules or ())
    guesses = read_guess_config(loading.speculative_config)
    set_here = {"disabled_rules": rules, "lora": adapters or None, "speculative_config": guesses}
    return asdict(loading) | set_here


def logit_bias(pairs: list[str] | None) -> dict[int, float]:
    """`["15=-2.5"]` → {15: −2.5}. Raises InvalidRequest on any other form."""
    bias: dict[int, float] = {}
    for pair in pairs or []:
        token, _, value = pair.partition("=")
        try:
            token_id, amount = int(token), float(value)
        except ValueError:
            raise InvalidRequest("logit_bias", f"must be ID=BIAS, not {shown(pair)}") from None
        if token_id in bias:
            raise InvalidRequest("logit_bias", f"token {shown(token_id)} is given twice")
        bias[token_id] = amount
    return bias
