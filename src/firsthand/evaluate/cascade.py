"""Both models of a cascade answer the same set: what it is calibrated with, and judged by.

Owns: how the set is answered, what an answer's quality is.
May not know: the fit, the curve (`cascade/`), terminals.
Read next: `cascade/calibration.py`, `cascade/tradeoff.py`; `pairs.py`, the set.

Answers are greedy, and one after another, so that the times are those of one request. The quality
of an answer is ROUGE-L against the reference; where there is none, against the large one's answer.
One model is loaded at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from firsthand.cascade.calibration import CHAT, TEXT, Calibration, Side, fitted
from firsthand.cascade.confidence import MEASURES, Rule, score_of
from firsthand.cascade.tradeoff import Sample
from firsthand.checks import check_choice, check_number, shown
from firsthand.errors import AnswerCancelled, ContextLengthExceeded, InvalidRequest
from firsthand.evaluate.candidates import split_name
from firsthand.evaluate.pairs import Question
from firsthand.evaluate.text_scores import rouge
from firsthand.generation.calibrated import as_calibrated, calibrated_keywords, check_sides, side_of
from firsthand.generation.completion import Completion
from firsthand.generation.inspection import inspect_model
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadKeywords, LoadOptions
from firsthand.request import FinishReason
from firsthand.values import dataclass

DEFAULT_WINDOW = 16
DEFAULT_MAX_TOKENS = 64
DEFAULT_CONFIDENCE = 0.8
Progress = Callable[[str, int, int], None]  # model, answers so far, of so many


@dataclass(frozen=True, slots=True)
class Fit:
    """What is chosen before anything is measured. `measure` "": the one that tells most."""

    form: str = CHAT
    measure: str = ""
    window: int = DEFAULT_WINDOW
    confidence: float = DEFAULT_CONFIDENCE
    max_tokens: int = DEFAULT_MAX_TOKENS

    def __post_init__(self) -> None:
        check_choice("form", self.form, (CHAT, TEXT))
        check_choice("measure", self.measure or MEASURES[0], MEASURES)
        check_number("confidence", self.confidence, 0, 1)
        Rule(MEASURES[0], self.window, 0.0)


def calibrated(
    small: str,
    large: str,
    questions: Sequence[Question],
    fit: Fit,
    options: LoadKeywords,
    progress: Progress = lambda model, done, total: None,
) -> tuple[Calibration, list[Sample]]:
    """`small` and `large` may be MODEL@FORMAT. Raises as `LLM` does; InvalidRequest where both are
    one model, or one has no template and is asked by it."""
    sides = (_side(small, options), _side(large, options))
    if sides[0].identity == sides[1].identity:
        raise InvalidRequest("large", "is the small model itself")
    if fit.form == CHAT:
        _check_templates(sides)
    found = samples_of(sides, questions, fit, options, progress)
    measures = (fit.measure,) if fit.measure else MEASURES
    scores = {
        name: [score_of(name, fit.window, one.logprobs) for one in found] for name in measures
    }
    worths = [one.worth for one in found]
    made = fitted(sides, fit.form, scores, worths, fit.window, fit.confidence, fit.max_tokens)
    return made, found


def _check_templates(sides: Iterable[Side]) -> None:
    """Before either is asked: a set takes a while."""
    for one in sides:
        facts = inspect_model(one.model).tokenizer
        if facts is not None and not facts.has_chat_template:
            text = f"{one.model} has no chat template; ask both with plain prompts, --form text"
            raise InvalidRequest("form", text)


def _side(name: str, options: LoadKeywords) -> Side:
    model, format = split_name(name)
    own: LoadKeywords = {**options}
    if format != "auto":
        own["quantization"] = format
    return side_of(model, LoadOptions(**own))


def samples_by(
    calibration: Calibration,
    questions: Sequence[Question],
    options: LoadKeywords,
    progress: Progress = lambda model, done, total: None,
) -> list[Sample]:
    """For another set than it was made with. Raises as `LLM` does; InvalidRequest where a model is
    not the one that was measured."""
    sides = (calibration.small, calibration.large)
    check_sides(calibration, *(side_of(one.model, as_calibrated(one, options)) for one in sides))
    fit = Fit(
        calibration.form,
        calibration.measure,
        calibration.window,
        calibration.confidence,
        calibration.max_tokens,
    )
    return samples_of(sides, questions, fit, options, progress)


def samples_of(
    sides: tuple[Side, Side],
    questions: Sequence[Question],
    fit: Fit,
    options: LoadKeywords,
    progress: Progress,
) -> list[Sample]:
    small, large = (_answers(side, questions, fit, options, progress) for side in sides)
    return [
        _sample(question, one, other)
        for question, one, other in zip(questions, small, large, strict=True)
    ]


def _answers(
    side: Side, questions: Sequence[Question], fit: Fit, options: LoadKeywords, progress: Progress
) -> list[Completion]:
    found = []
    with LLM(side.model, **calibrated_keywords(side, options)) as llm:
        for number, question in enumerate(questions, 1):
            try:
                answer = _answer(llm, question.prompt, fit)
            except ContextLengthExceeded as error:
                where = f"number {number}, {shown(question.prompt)}, of {side.model}"
                raise InvalidRequest("prompts", f"{where}: {error.message}") from None
            if answer.finish.reason is FinishReason.CANCELLED:
                raise AnswerCancelled("interrupted while an answer was waited for")
            found.append(answer)
            progress(side.model, number, len(questions))
    return found


def _answer(llm: LLM, prompt: str, fit: Fit) -> Completion:
    if fit.form == TEXT:
        return llm.generate(prompt, max_tokens=fit.max_tokens, temperature=0, logprobs=0)
    messages = [{"role": "user", "content": prompt}]
    answer = llm.stream_chat(messages, max_tokens=fit.max_tokens, temperature=0, logprobs=0)
    return answer.completion()


def _sample(question: Question, small: Completion, large: Completion) -> Sample:
    reference = large.text if question.reference is None else question.reference
    one, other = small.report, large.report
    times = accumulate((one.prompt_ms, *one.token_ms))
    return Sample(
        logprobs=tuple(entry.logprob for entry in small.logprobs or ()),
        small_ms=tuple(times),
        small_prompt_tokens=one.num_prompt_tokens,
        large_prompt_tokens=other.num_prompt_tokens,
        large_tokens=other.num_tokens,
        large_ms=other.prompt_ms + other.predicted_ms,
        small_quality=quality(small.text, reference),
        large_quality=quality(large.text, reference),
    )


def quality(answer: str, reference: str) -> float:
    return 1.0 if answer == reference else rouge([answer], [reference]).rouge_l
