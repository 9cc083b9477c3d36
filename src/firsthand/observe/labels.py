"""The labels that several metrics have, and the words that a label can have.

Owns: these words; each is a name of ours, never what a caller wrote.
May not know: any metric.
Read next: `catalogue.py`.
"""

from __future__ import annotations

from firsthand.observe.entry import Label
from firsthand.request import FinishReason

CLASSES = ("urgent", "normal", "background")
STEP_PHASES = ("plan", "run", "forward", "sample", "commit")
REQUEST_PHASES = ("tokenize", "queue", "prefill", "decode", "inference", "total")
# What can come between a request and its answer.
OUTCOMES = (
    *("cancelled", "client_closed", "deadline", "engine_lost", "failed", "memory", "refused"),
    *("shutdown", "sleep", "stalled"),
)
OTHER_EVENT = "other"
LOG_LEVELS = ("warning", "error")
# Those of the log that can be a warning or an error.
LOG_EVENTS = (
    *(
        "batches_wait",
        "canary_returned",
        "canary_unwritten",
        "chaos",
        "context_lowered",
        "degradation",
        "engine_lost",
        "golden_unknown",
        "model_failed",
        "near_names",
    ),
    *("no_tls", "no_traces", "release_left", "reload_refused"),
    *("request", "request_cut", "request_ended", "selfcheck_unanswered", "selfcheck_wrong"),
    *("stopped", OTHER_EVENT),
)
REASONS = tuple(reason.value for reason in FinishReason)

MODEL = Label("model", "the service's own name of a model that is served")
CLASS = Label("class", "of priority", CLASSES)
REPLICA = Label("replica", "a small number; of one that has gone, the next one's")
GPU = Label("gpu", "its number, as the driver counts")
CASCADE = Label("cascade", "the name of a virtual model")
SIZE = Label("size", "of the two models", ("small", "large"))
CANARY_REASON = Label("reason", "why by itself", ("engine", "errors", "latency"))
