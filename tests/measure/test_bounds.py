"""The bounds against values computed by hand."""

from __future__ import annotations

import pytest

from firsthand.compute.executor import OpTime
from firsthand.measure.bounds import (
    Work,
    decode_bound_ms,
    num_pairs,
    op_bound_ms,
    prompt_bound_ms,
    reached_rates,
    work_of,
)
from firsthand.measure.latency import Speed, Spread, limit_shares
from firsthand.measure.limits import MachineLimits

MACHINE = MachineLimits(
    threads=2,
    read_bytes=1,
    read_gb_per_second=20.0,
    int8_gmac_per_second=200.0,
    fp32_gflops=100.0,
)
WORK = Work(
    weight_bytes=100_000_000,
    kv_bytes_per_token=20_000,
    linear_macs_per_row=100_000_000,
    head_macs=28_000_000,
    attention_macs_per_pair=30_000,
)
PROMPT_OPS = (
    OpTime("embed", "", (4, 8), 0.1, 32),
    OpTime("linear", "", (4, 8), 2.0, 500, num_macs=4 * 1000),
    OpTime("attend", "", (4, 8), 1.0, 64, num_macs=10 * 16),
    OpTime("linear", "", (4, 8), 2.0, 300, num_macs=4 * 600),
    OpTime("head", "", (1, 8), 0.5, 200, num_macs=700),
)
TOKEN_OPS = (
    OpTime("embed", "", (1, 8), 0.1, 8),
    OpTime("linear", "", (1, 8), 0.2, 500, num_macs=1000),
    OpTime("attend", "", (1, 8), 0.3, 64, num_macs=4 * 16),
    OpTime("linear", "", (1, 8), 0.1, 300, num_macs=600),
    OpTime("head", "", (1, 8), 0.2, 200, num_macs=700),
)


def test_a_token_reads_the_weights_and_its_context() -> None:
    """(100 MB + 20 kB · (16 + 5)) / 20 GB/s, the mean of contexts 17 … 25."""
    assert sum(range(17, 26)) / 9 == 16 + 10 / 2
    assert WORK.decode_bytes(16, 10) == 100_420_000
    assert decode_bound_ms(WORK, MACHINE, 16, 10) == pytest.approx(5.021)


def test_a_prompt_multiplies_at_two_rates() -> None:
    """10 rows, 55 pairs: (1,000 M + 28 M) / 200 G/s + 1.65 M / 50 G/s."""
    assert num_pairs(10) == sum(range(1, 11)) == 55
    assert prompt_bound_ms(WORK, MACHINE, 10) == pytest.approx(5.14 + 0.033)


def test_the_share_is_the_bound_by_the_median() -> None:
    prompt, decode = Spread(900.0, 1000.0, 5000.0), Spread(1.0, 100.0, 150.0)
    shares = limit_shares(WORK, MACHINE, Speed(prompt, decode, 1.0), 10, 10)
    wanted = (5.173 / 10.0, (100e6 + 20e3 * 15) / 20e9 / 0.01)
    assert shares == pytest.approx(wanted)


def test_the_work_of_a_model_comes_from_two_traces() -> None:
    assert work_of(PROMPT_OPS, TOKEN_OPS, 4) == Work(
        weight_bytes=8 + 500 + 300 + 200,
        kv_bytes_per_token=16,
        linear_macs_per_row=1600,
        head_macs=700,
        attention_macs_per_pair=16,
    )


def test_an_operator_is_bound_by_the_longer_of_the_two() -> None:
    reads = OpTime("linear", "", (1, 8), 1.0, 20_000_000, num_macs=1000)
    multiplies = OpTime("linear", "", (9, 8), 1.0, 1000, num_macs=600_000_000)
    attends = OpTime("attend", "", (9, 8), 1.0, 1000, num_macs=600_000_000)
    assert op_bound_ms(reads, MACHINE) == pytest.approx(1.0)
    assert op_bound_ms(multiplies, MACHINE) == pytest.approx(3.0)
    assert op_bound_ms(attends, MACHINE) == pytest.approx(12.0)
    assert op_bound_ms(OpTime("add", "", (1, 8), 1.0, 0), MACHINE) == 0.0


def test_a_limit_is_never_below_what_a_kernel_reached() -> None:
    reached = reached_rates(PROMPT_OPS, TOKEN_OPS)
    assert reached.read_gb_per_second == pytest.approx(1000 / 0.5 / 1e6)
    assert reached.int8_gmac_per_second == pytest.approx(6400 / 4.0 / 1e6)
    assert reached.fp32_gflops == pytest.approx(2 * 160 / 1.0 / 1e6)
    assert MACHINE.raised(reached) == MACHINE
    slow = MachineLimits(2, 1, 1e-9, 1e-9, 1e-9)
    raised = slow.raised(reached)
    assert raised.to_dict() == {
        "read_gb_per_second": reached.read_gb_per_second,
        "int8_gmac_per_second": reached.int8_gmac_per_second,
        "fp32_gflops": reached.fp32_gflops,
    }
    assert reached_rates((), ()).int8_gmac_per_second == 0.0
