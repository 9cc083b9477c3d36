"""In which encoding a file stands: decided once, from evidence, and said.

Owns: the decision (declared, byte order mark, strict UTF-8, then GB18030, Big5, Shift-JIS with a
stated confidence) and the text of bytes under it.
May not know: what the text means, or where the bytes come from.
Read next: `lines.py`.
Seen in: `firsthand lab wrong-encoding`.

Bytes are evidence line by line, so that a file to which another tool appended in another encoding
is seen for what it is: most of its text decides, and each line that does not fit is refused later,
by itself. GB18030 stands for its subsets GBK and GB2312. A guess rests on how common the characters
would be: text of a language uses the common ones, whatever is only misread uses all alike. Where
two readings are both good, the decision is marked ambiguous; a declaration settles it. Korean and
Japanese in EUC cannot be told from GB18030 by their bytes and need a declaration.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, BinaryIO

from firsthand.errors import InvalidRequest
from firsthand.values import dataclass

CHUNK_BYTES = 1024 * 1024
EVIDENCE_BYTES = 4 * CHUNK_BYTES  # with other than ASCII in them; plain ASCII is read past
SAMPLE_BYTES = 64 * 1024
SURE, LIKELY = 0.9, 0.5  # shares of common characters
MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
SUPERSETS = {"gb2312": "gb18030", "gbk": "gb18030", "ascii": "utf-8"}
WIDE = re.compile(r"utf-(16|32)-[lb]e")
NO_LINES = re.compile(r"utf-16$|utf-32$|utf-7|hz|iso2022")  # in which an LF is no fixed bytes
CHINESE_PAIRS = re.compile(
    rb"(?:[\xb0-\xd7][\xa1-\xbf]){2,}"
)  # GB2312's common characters, in a row


@dataclass(frozen=True, slots=True)
class Encoding:
    """A decision, and what it rests on. `name` None: no reading of the bytes is good."""

    name: str | None
    how: str  # declared, mark, utf-8, guessed, unknown
    confidence: float
    ambiguous: bool = False
    mark_bytes: int = 0
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def newline(self) -> bytes:
        """The bytes of an LF."""
        name = self.name or "ascii"
        return "\n".encode(name) if WIDE.fullmatch(name) else b"\n"

    def text(self, content: bytes) -> str:
        """Raises UnicodeError: these bytes are none of the encoding (nothing is replaced)."""
        if self.name is None:
            return content.decode("ascii")
        return content.decode(self.name)


def declared(name: str) -> Encoding:
    """Raises InvalidRequest: an encoding that Python does not know."""
    try:
        known = codecs.lookup(name).name
        "".encode(known)
    except (LookupError, ValueError) as error:
        raise InvalidRequest("encoding", f"{name[:40]!r} is not known") from error
    known = SUPERSETS.get(known, known)
    return Encoding("utf-8" if known == "utf-8-sig" else known, "declared", 1.0)


def decide(stream: BinaryIO, name: str | None = None) -> Encoding:
    """The encoding of a file from its first byte on; the stream is left somewhere behind it."""
    start = stream.read(4)
    mark = next(((bom, known) for bom, known in MARKS if start.startswith(bom)), None)
    if name is not None:
        said = declared(name)
        if mark is not None and mark[1].startswith(str(said.name)):
            return Encoding(mark[1], "declared", 1.0, mark_bytes=len(mark[0]))
        return said
    if mark is not None:
        return Encoding(mark[1], "mark", 1.0, mark_bytes=len(mark[0]))
    return _Evidence.of(start, stream).decision()


def has_lines(name: str | None) -> bool:
    """Whether lines can be cut from the bytes as they are. UTF-16 without a byte order mark must
    say which of the two it is."""
    return name is None or NO_LINES.match(name) is None


@dataclass(slots=True)
class _Evidence:
    """Bytes beyond ASCII, counted by what their lines are."""

    utf8: int = 0
    other: int = 0
    utf8_in_pairs: int = 0  # of lines whose bytes are also two-byte characters of GB2312, in a row
    sample: bytes = b""

    @classmethod
    def of(cls, start: bytes, stream: BinaryIO) -> _Evidence:
        found, looked = cls(), 0
        for chunk in _chunks(start, stream):
            if chunk.isascii():
                continue
            for line in chunk.split(b"\n"):
                if not line.isascii():
                    found._add(line)
            looked += len(chunk)
            if looked >= EVIDENCE_BYTES:
                break
        return found

    def _add(self, line: bytes) -> None:
        weight = len(line) - len(line.decode("ascii", "ignore"))
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            self.other += weight
            if len(self.sample) < SAMPLE_BYTES:
                self.sample += line[:SAMPLE_BYTES] + b"\n"
            return
        self.utf8 += weight
        if sum(map(len, CHINESE_PAIRS.findall(line))) == weight:
            self.utf8_in_pairs += weight

    def decision(self) -> Encoding:
        total = self.utf8 + self.other
        if self.utf8 >= self.other:
            ambiguous = 0 < total == self.utf8_in_pairs
            if ambiguous:
                note = "the bytes are good UTF-8 and good GB18030: declare the encoding"
            else:
                note = "" if not self.other else "some lines are not UTF-8"
            return Encoding(
                "utf-8",
                "utf-8",
                0.5 if ambiguous else round(self.utf8 / total, 3) if total else 1.0,
                ambiguous,
                note=note,
            )
        scores = sorted(_scores(self.sample), reverse=True)
        best, name = scores[0] if scores else (0.0, None)
        if best < LIKELY:
            note = "not UTF-8, and no other reading is good: declare the encoding"
            return Encoding(None, "unknown", 0.0, note=note)
        rival = next((score for score, _ in scores[1:]), 0.0)
        ambiguous = best < SURE or rival > best - 0.05
        note = f"guessed from {total} bytes beyond ASCII"
        return Encoding(name, "guessed", round(best, 3), ambiguous, note=note)


def _chunks(start: bytes, stream: BinaryIO) -> Iterator[bytes]:
    """About a megabyte each, cut where a line ends, so that no character is cut."""
    rest = start
    while more := stream.read(CHUNK_BYTES):
        rest += more
        cut = rest.rfind(b"\n") + 1
        if cut == 0 and len(rest) < EVIDENCE_BYTES:
            continue  # a long line
        yield rest[: cut or len(rest)]
        rest = rest[cut:] if cut else b""
    if rest:
        yield rest


def _scores(sample: bytes) -> Iterator[tuple[float, str]]:
    """For each candidate that reads nearly every line: the share of characters that are common."""
    lines = sample.split(b"\n")
    for name, is_common in CANDIDATES.items():
        common, found, misread = 0, 0, 0
        for line in lines:
            try:
                text = line.decode(name)
            except UnicodeDecodeError:
                misread += len(line)
                continue
            codes = [char.encode(name) for char in text if not char.isascii()]
            found += len(codes)
            common += sum(map(is_common, codes))
        if found and misread <= len(sample) / 100:
            yield common / found, name


def _in_gb2312(code: bytes) -> bool:
    return len(code) == 4 or (
        code[1] >= 0xA1 and (0xA1 <= code[0] <= 0xA9 or 0xB0 <= code[0] <= 0xF7)
    )


def _in_big5_level_1(code: bytes) -> bool:
    return len(code) == 2 and 0xA140 <= int.from_bytes(code, "big") <= 0xC67E


def _in_jis_level_1(code: bytes) -> bool:
    return len(code) == 2 and 0x8140 <= int.from_bytes(code, "big") <= 0x9872


CANDIDATES: dict[str, Callable[[bytes], bool]] = {
    "gb18030": _in_gb2312,
    "big5": _in_big5_level_1,
    "shift_jis": _in_jis_level_1,
}
