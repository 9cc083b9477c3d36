"""The official client asks a real server for vectors."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from firsthand.generation import LLM
from tests.server.conftest import Live

pytestmark = pytest.mark.native

TEXTS = ["Hello there", "a", "the quick brown fox"]


def embed(live: Live, given: Any, **more: Any) -> Any:
    return live.client.embeddings.create(model="micro", input=given, **more)


def post(live: Live, **body: Any) -> Any:
    return httpx.post(f"{live.running.url}/v1/embeddings", json=body, timeout=30).json()


def test_vectors_are_the_librarys(live: Live, micro_folder: Any) -> None:
    """The client asks for base64 by itself, and decodes it."""
    answer = embed(live, TEXTS)
    assert [one.index for one in answer.data] == [0, 1, 2]
    assert (answer.model, answer.object) == ("micro", "list")
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, TEXTS))
    with LLM(micro_folder, threads=1) as llm:
        expected = llm.embed(TEXTS)
    for one, vector in zip(answer.data, expected, strict=True):
        assert np.array(one.embedding, dtype=np.float32).tobytes() == vector.tobytes()


def test_more_inputs_than_wait_at_a_time(live: Live) -> None:
    """In their order, each as it is alone."""
    texts = [chr(97 + at % 26) for at in range(300)]
    answer = embed(live, texts)
    assert [one.index for one in answer.data] == list(range(300))
    assert answer.usage.prompt_tokens == 300
    for at in (0, 63, 64, 299):
        (alone,) = embed(live, texts[at]).data
        assert answer.data[at].embedding == alone.embedding
    error = post(live, input=["a"] * 2049)["error"]
    assert error["param"] == "input" and "2048" in error["message"]


def test_every_form_of_the_input_gives_the_same(live: Live) -> None:
    text, ids = TEXTS[0], list(TEXTS[0].encode())
    (expected,) = embed(live, text).data
    for form in ([text], ids, [ids]):
        (found,) = embed(live, form).data
        assert found.embedding == expected.embedding


def test_float_and_base64_are_the_same_numbers(live: Live) -> None:
    (floats,) = embed(live, "abc", encoding_format="float").data
    reply = post(live, input="abc", encoding_format="base64")
    (coded,) = reply["data"]
    raw = np.frombuffer(base64.b64decode(coded["embedding"]), "<f4")
    assert raw.tolist() == floats.embedding
    assert reply["id"].startswith("embd-")


def test_fewer_dimensions_have_the_length_one_again(live: Live) -> None:
    (found,) = embed(live, "abc", dimensions=16).data
    assert len(found.embedding) == 16
    assert np.isclose(np.linalg.norm(found.embedding), 1.0, atol=1e-6)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("dimensions", {"input": "x", "dimensions": 65}),
        ("dimensions", {"input": "x", "dimensions": 0}),
        ("encoding_format", {"input": "x", "encoding_format": "int8"}),
        ("input", {"input": []}),
        ("input", {"input": ""}),
        ("input", {"input": [257]}),
        ("input", {"input": "x" * 600}),
        ("input", {"input": [["a"]]}),
        ("stream", {"input": "x", "stream": True}),
        ("input", {}),
    ],
)
def test_what_cannot_be_is_refused_by_name(live: Live, field: str, given: dict[str, Any]) -> None:
    error = post(live, **given)["error"]
    assert error["param"].split("[")[0] == field
    assert error["type"] == "invalid_request_error"


def test_batches_are_counted(live: Live) -> None:
    embed(live, TEXTS)
    metrics = httpx.get(f"{live.running.url}/metrics", timeout=30).text
    sizes = [line for line in metrics.splitlines() if line.startswith("firsthand_microbatch_size")]
    assert any(line.startswith("firsthand_microbatch_size_count") for line in sizes)
    assert 'firsthand_microbatch_wait_seconds_sum{model="micro"}' in metrics


def test_a_model_that_is_not_here(live: Live) -> None:
    with pytest.raises(openai.NotFoundError):
        live.client.embeddings.create(model="other", input="x")
