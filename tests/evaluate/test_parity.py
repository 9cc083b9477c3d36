"""The proof of equal bits: it holds here, in every format; and each fault put in is found.

KV-5, KV-6: a cache hit gives what a cold start gives. SAMPLE-5, SAMPLE-7: nor does a penalty or a
seed look at the neighbours. LOGPROB-6: of n = 4, each is what its own seed gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from firsthand.cli.micro_model import write_micro_model
from firsthand.compute.batch import FlatBatch
from firsthand.engine.guessing import speculation
from firsthand.engine.sampler import Sampled, Sampler
from firsthand.errors import FirsthandError, InvalidRequest
from firsthand.evaluate import parity, workload
from firsthand.evaluate.foretold import Foretold
from firsthand.evaluate.parity import Outcome, load_for_proof, prove
from firsthand.evaluate.sabotage import split_by_batch
from firsthand.evaluate.transcript import Difference, differing_row, differing_tokens
from firsthand.generation.choice import Choice
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LoadedModel
from firsthand.kvcache.blocks import BlockPool
from firsthand.kvcache.contiguous import ContiguousStore
from firsthand.kvcache.paged import PagedStore
from firsthand.kvcache.regions import RegionPool
from firsthand.kvcache.store import KVStore
from firsthand.scheduling.tables import Tables

pytestmark = pytest.mark.native

POISON = 0xFF


@pytest.fixture(scope="session")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_micro_model(tmp_path_factory.mktemp("micro"))


@pytest.fixture(scope="session")
def loaded(micro: Path) -> LoadedModel:
    return load_for_proof(micro, LoadOptions(threads=2))


def outcomes(loaded: LoadedModel, *only: str, **options: Any) -> dict[str, Outcome]:
    return {outcome.name: outcome for outcome in prove(loaded, only, **options)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"quantization": "int8", "kv_dtype": "int8"},
        {"quantization": "int4", "kv_dtype": "float32", "kv_layout": "rows"},
        {"quantization": "none", "kv_dtype": "int8", "kv_layout": "rows", "threads": 1},
    ],
)
def test_every_property_holds(micro: Path, options: dict[str, Any]) -> None:
    found = outcomes(load_for_proof(micro, LoadOptions(**options)))
    assert list(found) == list(parity.PROPERTIES)
    assert [name for name, outcome in found.items() if not outcome.passed] == []
    assert all(found[name].num_logits > 0 for name in found if name != "streamed")


@pytest.mark.slow
def test_every_property_holds_with_more_requests(loaded: LoadedModel) -> None:
    found = outcomes(loaded, thorough=True)
    assert all(outcome.passed for outcome in found.values())
    assert sum(outcome.num_logits for outcome in found.values()) > 2_500_000


@pytest.mark.model
@pytest.mark.slow
def test_every_property_holds_on_the_real_model(smollm2_path: Path) -> None:
    loaded = load_for_proof(smollm2_path, LoadOptions(max_context=256))
    found = outcomes(loaded)
    assert {name: outcome.seen for name, outcome in found.items() if not outcome.passed} == {}
    assert list(found) == list(parity.PROPERTIES)
    broken = outcomes(loaded, "company", install=split_by_batch)["company"]
    assert broken.difference is not None


def test_s_53_memory_that_is_handed_out_shows_nothing_of_its_last_owner(
    micro: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block and every region is NaN when a sequence gets it."""
    loaded = load_for_proof(micro, LoadOptions(kv_dtype="float16"))
    filled: dict[str, int] = {"blocks": 0, "regions": 0}
    followed: list[ContiguousStore] = []
    take_blocks, take_region = BlockPool.allocate, RegionPool.allocate
    follow = ContiguousStore.follow

    def blocks(self: BlockPool, count: int) -> tuple[int, ...] | None:
        taken = take_blocks(self, count)
        for block_id in taken or ():
            filled["blocks"] += 1
            loaded.store.fill_block(block_id, POISON)
        return taken

    def region(self: RegionPool, count: int) -> tuple[int, ...] | None:
        taken = take_region(self, count)
        for region_id in taken or ():
            filled["regions"] += 1
            start = self.block_start(region_id)
            followed[-1]._arrays.fill(start, count * self.block_size, POISON)
        return taken

    def remembered(self: ContiguousStore, start_of: Callable[[int], int]) -> None:
        followed.append(self)
        follow(self, start_of)

    monkeypatch.setattr(BlockPool, "allocate", blocks)
    monkeypatch.setattr(RegionPool, "allocate", region)
    monkeypatch.setattr(ContiguousStore, "follow", remembered)
    ways = ("company", "chunks", "prefix", "preemption", "choices", "store", "static", "streamed")
    found = outcomes(loaded, *ways)
    assert {name: outcome.seen for name, outcome in found.items() if not outcome.passed} == {}
    assert filled["blocks"] > 200
    assert filled["regions"] >= len(workload.SIZES)


# ---- faults, each with the property that finds it ------------------------------------------------

When = Callable[[Any, FlatBatch], bool]


class Nudged:
    """An executor whose logits are one bit off when the fault says so."""

    name = "native"

    def __init__(self, executor: Any, when: When) -> None:
        self._executor = executor
        self._when = when
        self.pool = executor.pool

    def run(self, batch: FlatBatch, store: KVStore) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = self._executor.run(batch, store)
        if not self._when(self._executor, batch) or not logits.size:
            return logits
        changed = logits.copy()
        changed[-1, 7] = np.nextafter(changed[-1, 7], np.float32(np.inf))
        return changed


def nudge(when: When) -> Callable[[LoadedModel], LoadedModel]:
    def install(loaded: LoadedModel) -> LoadedModel:
        nudged: Any = Nudged(loaded.executor, when)
        return replace(loaded, executor=nudged)

    return install


def continues_a_prompt(executor: Any, batch: FlatBatch) -> bool:
    sizes = np.diff(batch.row_starts)
    return bool(((sizes > 1) & (batch.positions[batch.row_starts[:-1]] > 0)).any())


@pytest.mark.parametrize(
    ("name", "when"),
    [
        ("company", lambda executor, batch: batch.num_sequences == 8),
        ("chunks", continues_a_prompt),
        ("threads", lambda executor, batch: executor.threads == 3),
        ("fusion", lambda executor, batch: len(executor.ops) == len(executor.recorded)),
        ("rows", lambda executor, batch: batch.logit_rows.size == 17 + 13),
        ("again", lambda executor, batch, seen=[]: seen.append(1) or len(seen) == 150),
    ],
)
def test_one_bit_of_one_logit_is_found(loaded: LoadedModel, name: str, when: When) -> None:
    found = outcomes(loaded, *(() if name == "again" else (name,)), install=nudge(when))
    assert not found[name].passed
    difference = found[name].difference
    assert difference is not None
    assert difference.what == "logit 7 (1 of 257 differ)"
    assert difference.expected != difference.got


def no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy on write forgets to copy."""
    monkeypatch.setattr(PagedStore, "copy_block", lambda *_: None)


def no_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction forgets the content."""
    monkeypatch.setattr(ContiguousStore, "move_slots", lambda *_: None)


def wrong_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that were found are taken in the wrong order."""
    found = Tables._found

    def reversed_(self: Tables, *given: Any) -> Any:
        shared, start = found(self, *given)
        return shared[::-1], start

    monkeypatch.setattr(Tables, "_found", reversed_)


def not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evicted sequence takes its first token for computed."""
    admit = Tables.admit

    def skips(self: Tables, sequence: Any, *given: Any) -> bool:
        done = admit(self, sequence, *given)
        if done and sequence.started and not sequence.num_computed:
            sequence.num_computed = 1
        return done

    monkeypatch.setattr(Tables, "admit", skips)


def draws_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """SAMPLE-7: the random number depends on the place in the batch."""
    sample = Sampler.__call__

    def shifted(self: Sampler, logits: NDArray[np.float32], draws: Any, masks: Any) -> Sampled:
        moved = [draw._replace(seed=draw.seed + row) for row, draw in enumerate(draws)]
        return sample(self, logits, moved, masks)

    monkeypatch.setattr(Sampler, "__call__", shifted)


def penalty_of_the_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    """SAMPLE-5: every row gets the settings of the first."""
    sample = Sampler.__call__

    def first(self: Sampler, logits: NDArray[np.float32], draws: Any, masks: Any) -> Sampled:
        alike = [one._replace(sampling=draws[0].sampling) for one in draws]
        return sample(self, logits, alike, masks)

    monkeypatch.setattr(Sampler, "__call__", first)


def other_logprob(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is streamed is rounded on its way."""
    entry = Choice._logprob

    def rounded(self: Choice, event: Any) -> Any:
        made = entry(self, event)
        return None if made is None else replace(made, logprob=round(made.logprob, 3))

    monkeypatch.setattr(Choice, "_logprob", rounded)


def one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token behind a wrong guess counts."""
    count = speculation.num_equal
    monkeypatch.setattr(speculation, "num_equal", lambda *given: count(*given) + 1)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("choices", no_copy),
        ("store", no_move),
        ("prefix", wrong_prefix),
        ("preemption", not_computed_again),
        ("company", draws_by_row),
        ("company", penalty_of_the_neighbour),
        ("streamed", other_logprob),
        ("guesses", one_too_many),
    ],
)
def test_a_fault_is_found(
    loaded: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    fault: Callable[[pytest.MonkeyPatch], None],
) -> None:
    fault(monkeypatch)
    found = outcomes(loaded, name)
    assert found["again"].passed
    assert not found[name].passed
    assert found[name].difference is not None


def test_s112_a_sum_split_by_the_batch_is_found_in_every_format(micro: Path) -> None:
    """Where the sums are of floats, and where they are of integers that are scaled."""
    for quantization in ("none", "int8", "int4"):
        options: dict[str, Any] = {"quantization": quantization}
        loaded = load_for_proof(micro, LoadOptions(**options))
        assert outcomes(loaded, "rows")["rows"].passed
        assert not outcomes(loaded, "company", install=split_by_batch)["company"].passed


@pytest.mark.parametrize("name", ["preemption", "store", "prefix", "choices", "guesses"])
def test_what_did_not_take_place_proves_nothing(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(parity, "FEW_BLOCKS", 60)
    monkeypatch.setattr(parity, "FEW_REGIONS", 60)
    monkeypatch.setattr(Tables, "_found", lambda *_: ((), 0))
    monkeypatch.setattr(Foretold, "guess", lambda _, asked: [()] * len(asked))
    outcome = outcomes(loaded, name)[name]
    assert not outcome.passed
    assert outcome.difference is None
    assert "0 " in outcome.seen


def test_a_failed_sequence_is_a_difference(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def bad(executor: Any, batch: FlatBatch) -> bool:
        """From the first step of five on, also when that is computed again in halves."""
        seen.append(batch.num_sequences)
        if 5 in seen:
            raise ValueError("a fault on purpose")
        return False

    outcome = outcomes(loaded, "company", install=nudge(bad))["company"]
    assert outcome.difference is not None
    assert "a fault on purpose" in str(outcome.difference)


def test_rows_are_compared_by_their_bits() -> None:
    row = np.array([0.0, np.nan, 1.0], dtype=np.float32)
    assert differing_row("a", 1, row, row.copy()) is None
    minus = np.array([-0.0, np.nan, 1.0], dtype=np.float32)
    assert differing_row("a", 4, row, minus) == Difference(
        "a", 4, "logit 0 (1 of 3 differ)", "0.0 (0x00000000)", "-0.0 (0x80000000)"
    )
    assert differing_row("a", 4, None, row) is not None
    assert differing_tokens("a", [], []) is not None


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"kv_store": "contiguous"}, "kv_store"),
    ({"scheduler": "static"}, "scheduler"),
    ({"prefix_cache": False}, "prefix_cache"),
    ({"block_size": 32}, "block_size"),
    ({"max_context": 64}, "max_context"),
]


@pytest.mark.parametrize(("options", "field"), REFUSED)
def test_what_the_proof_is_not_for_is_refused(
    micro: Path, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest, match=field):
        load_for_proof(micro, LoadOptions(**options))


@pytest.mark.torch
def test_an_executor_that_promises_nothing_is_asked_all_the_same(micro: Path) -> None:
    """Torch in float32: equal in every run, and whatever else holds is told, to the last."""
    pytest.importorskip("torch")
    loaded = load_for_proof(micro, LoadOptions(executor="torch", kv_dtype="float32"))
    found = outcomes(loaded, "chunks", "company")
    assert list(found) == ["again", "company", "chunks"]
    assert found["again"].passed
    with pytest.raises(InvalidRequest, match="cannot be asked of the torch executor"):
        outcomes(loaded, "threads")


def test_an_unknown_property_is_refused(loaded: LoadedModel) -> None:
    with pytest.raises(FirsthandError, match="only"):
        outcomes(loaded, "other")
