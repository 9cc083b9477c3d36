"""When guesses pay: by measured times and rates, never by names."""

from __future__ import annotations

from firsthand.engine.guessing.payoff import STALE_STEPS, Payoff, Rate, in_order


def learned(slope: float, sequences: int = 1, plain_ms: float = 10.0) -> Payoff:
    """Each guess costs `slope` of a step."""
    payoff = Payoff()
    for count in (0, 1, 2, 4, 8):
        payoff.learn(sequences, count, plain_ms * (1 + slope * count))
    return payoff


def lengths(payoff: Payoff, *offers: tuple[float, int], most: int = 64) -> list[int]:
    return payoff.lengths(offers, max(1, len(offers)), most, is_free=True)


def test_nothing_before_a_step_without_guesses_was_measured() -> None:
    assert lengths(Payoff(), (0.9, 8)) == [0]


def test_as_many_as_add_more_than_they_cost() -> None:
    payoff = learned(0.3)
    assert lengths(payoff, (0.9, 8)) == [8]
    assert lengths(payoff, (0.6, 8)) == [2], "0.6 and 0.36 are worth it, 0.216 is not"
    assert lengths(payoff, (0.25, 8)) == [0]
    assert lengths(learned(1.1), (0.98, 8)) == [0], "more than a step each"


def test_a_full_batch_pays_for_rows_with_arithmetic() -> None:
    """With four sequences a step is a quarter of each token, so a guess must be cheaper."""
    cheap, dear = learned(0.05, 4), learned(0.24, 4)
    assert lengths(cheap, *[(0.8, 4)] * 4) == [4] * 4
    assert lengths(dear, *[(0.8, 4)] * 4) == [0] * 4


def test_the_best_guesses_go_first() -> None:
    payoff = learned(0.02, 2)
    assert lengths(payoff, (0.9, 4), (0.3, 4), most=4) == [4, 0]
    assert [index for _, _, index in in_order([(0.5, 2), (0.9, 1)], 9)] == [1, 0, 0]


def test_what_guessing_itself_costs_counts() -> None:
    payoff = learned(0.05)
    assert payoff.lengths([(0.9, 4)], 1, 64, is_free=False) == [4]
    for _ in range(40):
        payoff.learn_round(1, 9.5)
    assert payoff.lengths([(0.9, 4)], 1, 64, is_free=False) == [0]
    assert payoff.lengths([(0.9, 4)], 1, 64, is_free=True) == [4]


def test_a_stale_time_is_measured_again() -> None:
    payoff = learned(0.05)
    for _ in range(STALE_STEPS):
        payoff.learn(1, 4, 12.0)
    assert lengths(payoff, (0.9, 4)) == [0], "a step without guesses"
    payoff.learn(1, 0, 10.0)
    assert lengths(payoff, (0.9, 4)) == [4]


def test_one_slow_step_does_not_end_it_and_what_was_dear_is_tried_again() -> None:
    payoff = learned(0.05)
    payoff.learn(1, 4, 5000.0)
    assert lengths(payoff, (0.9, 4)) != [0]
    for _ in range(60):
        for count in (1, 2, 4):
            payoff.learn(1, count, 5000.0)
            payoff.learn(1, 0, 10.0)
    assert lengths(payoff, (0.9, 4)) == [0]
    for _ in range(2000):
        if lengths(payoff, (0.9, 4)) != [0]:
            break
        payoff.learn(1, 0, 10.0)
    else:
        raise AssertionError("it is never tried again")


def test_a_rate_follows_the_last_guesses() -> None:
    rate = Rate(0.8)
    assert rate.estimate(0.5) == 0.5
    for _ in range(30):
        rate.add(4, 4)
    assert rate.estimate(0.5) > 0.95
    for _ in range(10):
        rate.add(0, 1)
    assert rate.estimate(0.5) < 0.35
