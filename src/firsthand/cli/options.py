"""The options that several commands share, each declared once.

Owns: names, help texts and defaults of shared options, and how the texts become typed values.
May not know: what an option does; ranges are checked where the value is used.
Read next: `generate.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from firsthand.errors import InvalidRequest

Model = Annotated[
    str, typer.Argument(help="A known name, a folder, a .gguf file, or a hub id.", metavar="MODEL")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print exactly one line of JSON.")]

Executor = Annotated[str, typer.Option(help="native, or torch (the extra).")]
Device = Annotated[str, typer.Option(help="cpu; cuda with the torch executor.")]
Quantization = Annotated[
    str, typer.Option(help="auto (the file's own blocks, else int8), none, int8 or int4.")
]
Threads = Annotated[
    int | None, typer.Option(help="Threads to compute with; default: one per core.")
]
MaxContext = Annotated[
    int | None, typer.Option(help="Tokens that a sequence may have; default: the model's own.")
]
KvDtype = Annotated[str, typer.Option(help="Type of the KV cache: float16 or float32.")]
DisableRule = Annotated[
    list[str] | None,
    typer.Option(
        "--disable-rule", metavar="RULE", help="Leave out a fusion rule of the plan; repeatable."
    ),
]
Attention = Annotated[
    str | None, typer.Option(help="With the torch executor: formula, tiled or fast.")
]

MaxTokens = Annotated[int | None, typer.Option(help="New tokens at most; default: 256.")]
MinTokens = Annotated[int | None, typer.Option(help="New tokens before an end token counts.")]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy; default: 1.")]
TopK = Annotated[int | None, typer.Option(help="Keep the K likeliest tokens; 0 is off.")]
TopP = Annotated[
    float | None, typer.Option(help="Keep the likeliest tokens up to this mass; 1 is off.")
]
MinP = Annotated[
    float | None,
    typer.Option(help="Keep tokens of at least this part of the best one's probability."),
]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="Weaken every token seen so far; 1 is off.")
]
PresencePenalty = Annotated[
    float | None, typer.Option(help="Weaken tokens that were generated, once; 0 is off.")
]
FrequencyPenalty = Annotated[
    float | None, typer.Option(help="Weaken them for each time they were; 0 is off.")
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(metavar="ID=BIAS", help="Add to one token's logit; repeatable."),
]
Stop = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="End before this text; repeatable.")
]
StopTokenIds = Annotated[
    list[int] | None,
    typer.Option("--stop-id", metavar="ID", help="End with this token; repeatable."),
]
IgnoreEnd = Annotated[
    bool, typer.Option("--ignore-end", help="Take the model's end tokens for ordinary ones.")
]
RepetitionGuard = Annotated[
    bool, typer.Option("--repetition-guard", help="End when the same run of tokens repeats.")
]
Seed = Annotated[
    int | None, typer.Option(help="Repeats an answer; default: a new one, which is reported.")
]
Logprobs = Annotated[
    int | None,
    typer.Option(help="With --json: log-probabilities, with this many alternatives."),
]
System = Annotated[str | None, typer.Option(help="The system message of the conversation.")]
Report = Annotated[
    bool, typer.Option("--report", help="Print where time and memory went, to standard error.")
]

# A command's parameters carry the names that `generation` has for them; these are whose is whose.
LOADING = (
    *("executor", "device", "quantization", "threads", "max_context", "kv_dtype"),
    *("disabled_rules", "attention"),
)
SAMPLING = (
    *("max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "stop"),
    *("stop_token_ids", "ignore_end", "repetition_guard", "seed", "logprobs"),
)


def loading(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """How to hold the model, out of a command's parameters."""
    chosen = {name: parameters[name] for name in LOADING}
    return chosen | {"disabled_rules": tuple(parameters["disabled_rules"] or ())}


def sampling(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """How to generate, out of a command's parameters."""
    chosen = {name: parameters[name] for name in SAMPLING}
    return chosen | {"logit_bias": logit_bias(parameters["logit_bias"])}


def logit_bias(pairs: list[str] | None) -> dict[int, float]:
    """`["15=-2.5"]` → {15: −2.5}. Raises InvalidRequest on any other form."""
    bias: dict[int, float] = {}
    for pair in pairs or []:
        token, _, value = pair.partition("=")
        try:
            token_id, amount = int(token), float(value)
        except ValueError:
            raise InvalidRequest("logit_bias", f"must be ID=BIAS, not {pair!r}") from None
        if token_id in bias:
            raise InvalidRequest("logit_bias", f"token {token_id} is given twice")
        bias[token_id] = amount
    return bias
