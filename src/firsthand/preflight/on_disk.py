"""The items that load nothing: files, words, room, the machine, the settings.

Owns: these questions.
May not know: how a file is read or a budget made; engines.
Read next: `loaded.py`.
"""

from __future__ import annotations

import ctypes
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from firsthand.config import read_environment
from firsthand.errors import CapacityExceeded
from firsthand.generation.inspection import inspect_model
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import plan_model
from firsthand.generation.reading import read_tokenizer
from firsthand.memory.budget import mib
from firsthand.observe.alert_settings import AlertSettings
from firsthand.observe.proving import PROMTOOL, prove
from firsthand.preflight.items import Item, LeftOut, Wrong
from firsthand.server.listening import check_exposure, tls_context
from firsthand.server.rules import keys_of
from firsthand.server.settings import Settings
from firsthand.text.detokenize import Detokenizer
from firsthand.text.template_process import TemplateProcess
from firsthand.text.templates import ChatTemplate
from firsthand.text.tokenizer import Tokenizer
from firsthand.values import dataclass
from firsthand.weights.catalogue import describe, resolve
from firsthand.weights.gguf_parts import parts_of
from firsthand.weights.manifest import read_manifest
from firsthand.weights.open import open_checkpoint

TEXTS = (
    "The quick brown fox",
    "世界你好，混合 text",
    "naïve café — “quotes”",
    "🙂👩‍👩‍👧‍👦🇨🇳",
    "a\n\tb  c",
)
SPARE_DISK = 0.02  # of the disk, that stays free
_TIME_ERROR = 5
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class OnDisk:
    """`settings` are those that the server will have, None: none were given."""

    model: str
    options: LoadOptions
    settings: Settings | None
    alerts: AlertSettings

    def of_model(self) -> Iterator[Item]:
        """What can be asked of any model that is on this disk."""
        yield Item("files have their hashes", "firsthand pull MODEL fetches it again", self._hashes)
        yield Item(
            "tensors are those of the architecture",
            "firsthand inspect MODEL says what is missing; fetch or convert it again",
            self._tensors,
        )
        yield Item(
            "template renders a conversation",
            "give one with --chat-template FILE, or serve completions only",
            self._template,
        )
        yield Item(
            "tokenizer gives text back",
            "compare tokenizer.json with the model's own release",
            self._round_trip,
        )
        yield Item(
            "characters are never cut",
            "the vocabulary's bytes are wrong: fetch the tokenizer again",
            self._whole_characters,
        )
        yield Item(
            "memory is enough",
            "firsthand plan MODEL shows the sum; lower --max-model-len, or quantize",
            self._memory,
        )
        yield Item("disk has room", "make room, or move FIRSTHAND_HOME to another disk", self._disk)

    def identity(self) -> str | None:
        """The hash under which a server serves it: of its manifest, or of its only file; None: it
        has neither."""
        manifest = read_manifest(resolve(self.model, read_environment()).path)
        if manifest is not None:
            return manifest.sha256
        found = describe(self.model, read_environment(), lambda _: None)
        return found.files[0].sha256 if len(found.files) == 1 else None

    def of_machine(self) -> Iterator[Item]:
        yield Item(
            "port is free", "end what listens there, or take another with --port", self._port
        )
        yield Item(
            "address, key and certificate fit together",
            "set --api-key-file for an address that others reach; check the certificate's files",
            self._exposure,
        )
        yield Item(
            "alert rules pass promtool",
            "firsthand alerts test says which; on Debian: apt-get install prometheus",
            self._rules,
        )
        yield Item("clock is synchronised", "start systemd-timesyncd or chrony", self._clock)

    def _hashes(self) -> str:
        found = describe(self.model, read_environment(), lambda _: None)
        broken = [file.name for file in found.files if not file.is_intact]
        if broken:
            raise Wrong(f"{', '.join(broken)}: not what was published")
        known = sum(file.expected_sha256 is not None for file in found.files)
        return f"{len(found.files)} files, {known} with a published hash"

    def _tensors(self) -> str:
        found = inspect_model(self.model)
        if found.problem is not None:
            raise Wrong(found.problem)
        with suppress(CapacityExceeded):  # another item's business
            plan_model(self.model, self.options)  # which needs each tensor, of its shape
        return f"{found.architecture}, {len(found.tensors)} tensors"

    def _template(self) -> str:
        tokenizer = self._tokenizer()
        if tokenizer.chat_template is None:
            raise LeftOut("the model has no chat template")
        with closing(TemplateProcess()) as process:
            template = ChatTemplate(tokenizer, process)
            rendered = template.render([{"role": "user", "content": TEXTS[1]}])
        if TEXTS[1] not in rendered.text:
            raise Wrong("the message is not in what was rendered")
        return f"{len(tokenizer.encode_rendered(rendered))} tokens for one message"

    def _round_trip(self) -> str:
        tokenizer = self._tokenizer()
        for text in TEXTS:
            again = tokenizer.decode(tokenizer.encode(text, add_bos=False))
            if again.strip() != text:
                raise Wrong(f"{text!r} comes back as {again!r}")
        return f"{len(TEXTS)} texts, Chinese and emoji among them"

    def _whole_characters(self) -> str:
        tokenizer = self._tokenizer()
        num_held = 0
        for text in TEXTS:
            stream, told = Detokenizer(tokenizer), ""
            for token_id in tokenizer.encode(text, add_bos=False):
                piece = stream.add(token_id)
                if _REPLACEMENT in piece:
                    raise Wrong(f"{text!r}: half a character was given out")
                num_held += not piece
                told += piece
            told += stream.finish()
            if told.strip() != text:
                raise Wrong(f"{text!r} streams as {told!r}")
        return f"{num_held} pieces were held back until their character was whole"

    def _memory(self) -> str:
        _, budget = plan_model(self.model, self.options)
        asked = budget.context_length, budget.max_sequences
        return f"{mib(budget.fixed.num_bytes)} and {asked[0]} tokens for {asked[1]} sequences"

    def _disk(self) -> str:
        home = read_environment().home
        there = next(one for one in (home, *home.parents) if one.is_dir())
        room = shutil.disk_usage(there)
        size = _size(resolve(self.model, read_environment()).path)
        if room.free - size < SPARE_DISK * room.total:
            raise Wrong(f"{mib(room.free)} free, {mib(size)} for the packed form")
        return f"{mib(room.free)} free below {there}"

    def _port(self) -> str:
        if self.settings is None or self.settings.uds is not None:
            raise LeftOut("no --config names one")
        host, port = self.settings.host, self.settings.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise Wrong(f"{host}:{port}: {error.strerror}") from None
        return f"{host}:{port}"

    def _exposure(self) -> str:
        if self.settings is None:
            raise LeftOut("give the server's settings with --config")
        keys = keys_of(self.settings)
        check_exposure(self.settings, keys)
        tls_context(self.settings)
        tls = "TLS" if self.settings.ssl_certfile else "no TLS"
        return f"{self.settings.host}, {len(keys.callers)} keys, {tls}"

    def _rules(self) -> str:
        if shutil.which(PROMTOOL) is None:
            raise LeftOut("promtool is not on PATH")
        outcomes = list(prove(self.alerts))
        failed = [one for one in outcomes if one.passed is False]
        if failed:
            raise Wrong(f"{failed[0].check}: {failed[0].said.splitlines()[-1]}")
        return ", ".join(one.check for one in outcomes if one.passed)

    def _clock(self) -> str:
        if sys.platform != "linux":
            raise LeftOut("the system does not say")
        timex = ctypes.create_string_buffer(512)  # larger than the struct; modes 0: only read
        state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
        if state < 0 or state == _TIME_ERROR:
            raise LeftOut("the kernel does not say that it is")
        return "the kernel says so"

    def _tokenizer(self) -> Tokenizer:
        with closing(open_checkpoint(resolve(self.model, read_environment()).path)) as checkpoint:
            return read_tokenizer(checkpoint)


def _size(path: Path) -> int:
    if path.is_file():
        return sum(one.stat().st_size for one in parts_of(path))
    return sum(one.stat().st_size for one in path.iterdir() if one.is_file())
