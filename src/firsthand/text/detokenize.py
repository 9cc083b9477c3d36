"""From token ids to text, one token at a time, never half a character.

Owns: what of a token's bytes is certain to be text now, and what must wait.
May not know: vocabularies and files (a `TokenSource` gives the bytes), stop strings, requests.
Read next: `stops.py`, which sees the text that leaves here.
Seen in: `firsthand lab half-characters`.

Everything is bytes until a character is complete. A byte that can never become a character is
U+FFFD, one for each maximal run that began like a character (the Unicode Standard, section 3.9,
"Substitution of Maximal Subparts"). So for every sequence of ids the pieces, joined, are the
text of the whole sequence, whichever way the bytes were cut.
"""

from __future__ import annotations

import codecs
from typing import Protocol


class TokenSource(Protocol):
    """Whoever knows the bytes of a token."""

    @property
    def strip_first_space(self) -> bool: ...

    def token_bytes(self, token_id: int, *, skip_special: bool = False) -> bytes: ...


class Detokenizer:
    """The text of one sequence. One owner; not for several threads.

    `skip_special` leaves control tokens out. A SentencePiece vocabulary puts a space before the
    first word; it is dropped from the beginning of the text, unless `continues` says that the
    text continues another one.
    """

    def __init__(
        self, tokens: TokenSource, *, skip_special: bool = True, continues: bool = False
    ) -> None:
        self._tokens = tokens
        self._skip_special = skip_special
        self._drop_space = tokens.strip_first_space and not continues
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_id: int) -> str:
        """The text that has become certain with this token; often empty."""
        data = self._tokens.token_bytes(token_id, skip_special=self._skip_special)
        if self._drop_space and data:
            self._drop_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What is left: U+FFFD for a character that was begun, else nothing."""
        return self._decoder.decode(b"", final=True)
