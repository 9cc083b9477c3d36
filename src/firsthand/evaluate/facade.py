"""The same requests by way of the façade: the engine's thread, its streams, their text.

Owns: how a request becomes the façade's words, and its answer tokens to compare.
May not know: what is compared.
Read next: `generation/llm.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from firsthand.errors import AnswerCancelled
from firsthand.evaluate.transcript import Token
from firsthand.generation.completion import TokenLogprob
from firsthand.generation.llm import LLM
from firsthand.generation.loading import LoadedModel
from firsthand.generation.options import Options
from firsthand.request import FinishReason, Request


def told(loaded: LoadedModel, requests: Sequence[Request]) -> Iterator[tuple[Request, list[Token]]]:
    """What each request is answered, streams of all read in turn; and then each at once.

    Raises AnswerCancelled: an interrupt while an answer is waited for is no difference.
    """
    with LLM(loaded) as llm:
        streams = [llm.stream(list(one.prompt_token_ids), **_options(one)) for one in requests]
        for request, stream in zip(requests, streams, strict=True):
            chunks = list(stream)
            if chunks[-1].completion is not None:
                _check_ended(chunks[-1].completion.finish.reason)
            yield request, _tokens(entry for chunk in chunks for entry in chunk.logprobs or ())
        for request in requests:
            done = llm.generate(list(request.prompt_token_ids), **_options(request))
            _check_ended(done.finish.reason)
            yield request, _tokens(done.logprobs or ())


def _check_ended(reason: FinishReason) -> None:
    if reason is FinishReason.CANCELLED:
        raise AnswerCancelled("interrupted while an answer was waited for")


def _options(request: Request) -> Options:
    sampling, stop = request.sampling, request.stop
    return {
        "max_tokens": stop.max_tokens,
        "ignore_end": True,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logprobs": sampling.logprobs,
        "seed": request.seed,
    }


def _tokens(entries: Iterable[TokenLogprob]) -> list[Token]:
    return [
        Token(
            entry.token_id,
            entry.logprob,
            tuple((token_id, logprob) for token_id, _, logprob in entry.top),
        )
        for entry in entries
    ]
