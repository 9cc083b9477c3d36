"""The child process in which a grammar is compiled first: one that may be killed.

Owns: how a grammar's text is read, the limits of the library, those of the process.
May not know: anything of Firsthand: it is run as a script in isolated mode. (`grammar.py` imports
it for the reading and the limits, which are the same there.)
Read next: `grammar_process.py`, its parent.

A line of JSON comes in, one goes out: {"kind": …, "text": …, "lead": …} → {"error": null or text}.
Each compilation has its processor time, after which the default action of a signal ends the
process; most of what is too much is found by the library's own count of its work before.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, Protocol

CPU_S = 0.8
NICE = 5
MAX_MEMORY_BYTES = 1 << 30
MAX_REASON_CHARS = 300
COMPILE_FUEL = 1_000_000  # the library's units: some 50,000 per ms
STEP_FUEL = 200_000
STEP_ITEMS = 50_000
ROW_ITEMS = 20_000  # an object takes four for each property that may come next
LOOK_AHEAD = 8  # bytes of a text, on the way to which no limit may be met
MAX_LEXER_STATES = 20_000  # of one or two kB
MAX_SYMBOLS = 100_000
# JSON may have white space almost everywhere, and a model that has begun with it may never stop. So
# there are spaces, or one new line with what indents it.
JSON_SPACE = r"\x20{1,2}|\r?\n[\x20\t]{0,32}"


class Text(Protocol):
    """A grammar's parts; `request.Grammar` has them."""

    @property
    def kind(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def lead(self) -> str: ...


class Given:
    """A grammar as it came in a line."""

    def __init__(self, kind: str, text: str, lead: str) -> None:
        self.kind, self.text, self.lead = kind, text, lead


class ByteVocabulary:
    """A token for each byte, and the end: what a text may be does not depend on its tokens."""

    is_tokenizer_wrapper = True
    tokens = (*(bytes((byte,)) for byte in range(256)), b"<end>")
    special_token_ids = (256,)
    eos_token_id = 256
    bos_token_id = None

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


def library_source(grammar: Text) -> str:
    """The text in the library's own form. Raises ValueError."""
    source = _library_form(grammar.kind, grammar.text)
    if not grammar.lead:
        return source
    # Rules stay as they are; a schema comes wrapped.
    body = json.loads(source)["grammars"][0] if source[0] == "{" else {"lark_grammar": source}
    body["name"] = "body"
    lead = {"name": "whole", "lark_grammar": f"start: lead @body\n{grammar.lead}"}
    return json.dumps({"grammars": [lead, body]})


def _library_form(kind: str, text: str) -> str:
    from llguidance import LLMatcher

    if kind == "json_schema":
        space = {"whitespace_pattern": JSON_SPACE}
        return LLMatcher.grammar_from_json_schema(text, defaults=space)  # type: ignore[arg-type]
    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    if kind == "gbnf":
        text = _lark_of(text)
    return LLMatcher.grammar_from_lark(text)


def _lark_of(text: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(text)
    except Exception as error:  # a small parser of its own, which raises what comes
        raise ValueError(f"no grammar: {error}") from None


def library_limits() -> Any:
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=COMPILE_FUEL,
        step_lexer_fuel=STEP_FUEL,
        step_max_items=STEP_ITEMS,
        max_items_in_row=ROW_ITEMS,
        max_lexer_states=MAX_LEXER_STATES,
        max_grammar_size=MAX_SYMBOLS,
        verbose_errors=False,  # the others quote the grammar
    )


def compiled(tokens: Any, grammar: Text) -> Any:
    """A matcher at the beginning of a text. Raises ValueError, with a reason in one line."""
    from llguidance import LLMatcher

    try:
        source = library_source(grammar)
    except ValueError as error:
        raise ValueError(shortened(str(error))) from None
    matcher = LLMatcher(tokens, source, log_level=0, limits=library_limits())
    if matcher.is_error():
        raise ValueError(shortened(matcher.get_error()))
    return matcher


def check_begins(matcher: Any) -> None:
    """Some token begins a text, and the first bytes of one meet no limit. Raises ValueError where
    none does, or a limit was met looking."""
    for num_taken in range(LOOK_AHEAD):
        mask = matcher.compute_bitmask()
        reason = str(matcher.get_error()) if matcher.is_error() else ""
        nothing = reason.startswith("NoExtension") or not any(mask)
        if nothing and not num_taken:
            raise ValueError("no text has this form")
        if reason:
            raise ValueError(shortened(reason))
        byte = next(
            (8 * at + (one & -one).bit_length() - 1 for at, one in enumerate(mask) if one), 256
        )
        if byte >= 256:  # the text may end here, and nothing else
            return
        if not matcher.consume_token(byte):
            raise ValueError(shortened(matcher.get_error()))


def shortened(text: str) -> str:
    return " ".join(text.replace("<non-verbose/>", "").split())[:MAX_REASON_CHARS]


def main() -> None:
    from llguidance import LLTokenizer

    tokens = LLTokenizer(ByteVocabulary(), eos_token=256)  # type: ignore[arg-type]
    limit_process()
    print("ready", flush=True)
    for line in sys.stdin:
        given = Given(**json.loads(line))
        error = None
        set_timer(CPU_S)
        try:
            check_begins(compiled(tokens, given))
        except ValueError as fault:
            error = str(fault)
        set_timer(0.0)
        print(json.dumps({"error": error}), flush=True)


def limit_process() -> None:
    """Bound the memory; nothing can be written, or left as a core; answers in progress go first."""
    if hasattr(os, "nice"):
        os.nice(NICE)
    try:
        import resource
    except ImportError:  # no such limits on this system
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))


def set_timer(cpu_s: float) -> None:
    """End the process after so much processor time of all its threads. 0: never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, cpu_s)


if __name__ == "__main__":
    main()
