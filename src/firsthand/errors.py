"""The tree of exceptions that a user of Firsthand can meet.

Owns: which kinds of failure exist and whose fault each one is.
May not know: HTTP status codes, exit codes (`server` and `cli` map the tree), any other module.
Read next: `request.py`.

    FirsthandError
    ├── InvalidRequest          the caller's input; `field` names what to change
    │   ├── ContextLengthExceeded
    │   └── TemplateError       the chat template refused, or ran past its limits
    ├── CapacityExceeded        ours: no room in a queue, in memory, on a disk
    ├── ModelNotFound           no such name, folder, file or cached hub id
    ├── DownloadFailed          a fetch that did not complete, or whose hash is wrong
    ├── CheckpointError         a file that is not what it claims; `file` and `tensor` say where
    │   └── BadHash             its content is not what the model's manifest says
    ├── SourceRefused           data that cannot be read as what it should be, as a whole
    ├── BooksUnbalanced         a run read more or fewer records than it accounts for
    ├── ReleaseRefused          a release that may not be put in place as things are
    ├── UnsupportedModel        well-formed, but an architecture, option or format we do not compute
    └── EngineError             our own fault; the request it names has ended
        ├── DeviceLost          the card failed, and this process cannot use it any more
        └── EngineUnavailable   no engine runs now, or it was lost; a later try may find one
            ├── EngineLost      it ended by itself
            ├── EngineSlept     it was ended so that its memory is free
            └── EngineClosed    it was ended for good; elsewhere there may be one
"""

from __future__ import annotations

MAX_NAME_CHARS = 200  # of a tensor, which its file names as it likes


class FirsthandError(Exception):
    """Base of everything raised on purpose; its text is fit to be shown to a user."""


class InvalidRequest(FirsthandError):
    """The caller's input breaks a rule. `field` is the name as the caller wrote it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message

    def __reduce__(self) -> tuple[type[InvalidRequest], tuple[str, str]]:
        return type(self), (self.field, self.message)  # from a worker to who asked it


class ContextLengthExceeded(InvalidRequest):
    """Prompt and asked-for tokens do not fit the model's context."""


class TemplateError(InvalidRequest):
    """The chat template raised, or was stopped at its limit of time or size."""


class CapacityExceeded(FirsthandError):
    """No room: in a queue now (later there may be), in memory or on a disk for what was asked."""


class ModelNotFound(FirsthandError):
    """Nothing on this machine answers to that name."""


class DownloadFailed(FirsthandError):
    """A download did not complete, or what arrived has the wrong hash."""


class CheckpointError(FirsthandError):
    """A model file is damaged, hostile or incomplete. Nothing of it has been used."""

    def __init__(self, file: str, message: str, tensor: str | None = None) -> None:
        where = f"{file}: tensor {tensor[:MAX_NAME_CHARS]!r}" if tensor is not None else file
        super().__init__(f"{where}: {message}")
        self.file, self.message, self.tensor = file, message, tensor

    def __reduce__(self) -> tuple[type[CheckpointError], tuple[str, str, str | None]]:
        return type(self), (self.file, self.message, self.tensor)


class BadHash(CheckpointError):
    """A model's file is not what its manifest says: changed, missing, or not named there."""


class BadSignature(CheckpointError):
    """A model's manifest is not signed by a key that is trusted."""


class SourceRefused(FirsthandError):
    """Data that cannot be read as what it should be, as a whole; `part` says what of it."""

    def __init__(self, part: str, message: str) -> None:
        super().__init__(f"{part}: {message}")
        self.part = part


class BooksUnbalanced(FirsthandError):
    """A run cannot account for each record that it read. A fault of ours; its output is suspect."""


class ReleaseRefused(FirsthandError):
    """A release may not be served, or left, as things are; the text says what is to be done."""


class UnsupportedModel(FirsthandError):
    """The model is well formed, but asks for something that we do not compute."""


class AnswerCancelled(FirsthandError):
    """An answer ended before its time, because somebody interrupted it."""


class EngineError(FirsthandError):
    """A fault of our own. The request has ended; others go on, unless the engine was lost."""


class DeviceLost(EngineError):
    """The device failed for good, as far as this process goes; another process may use it."""


class EngineUnavailable(EngineError):
    """The engine's process is not there: it loads, or is restarted."""


class EngineLost(EngineUnavailable):
    """The engine's process ended while it had this request."""


class EngineSlept(EngineUnavailable):
    """The engine was put to sleep, with what still ran; a later request wakes it."""


class EngineClosed(EngineUnavailable):
    """The engine was ended on purpose, with what still ran, and no other one follows here."""
