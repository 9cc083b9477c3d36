"""Where a curve turns: two straight lines that meet, and how sure the meeting point is.

Owns: the fit and its interval.
May not know: what the axes mean.
Read next: `ramp.py`, its user.

While a server keeps up, an answer takes about as long at any rate; beyond that a queue grows as
long as the load lasts, and the mean wait is a straight line in the rate: half the time by which the
load exceeds the server. Two lines that meet are therefore the form itself, not a makeshift. Every
place for the meeting point is tried, the lines through it by least squares of the relative errors:
a long wait varies by more than a short one. The interval has every place whose lines are not
significantly worse than the best ones (a likelihood interval of 95 %).
"""

from __future__ import annotations

from collections.abc import Sequence

from firsthand.loadtest.curve import Knee

PLACES = 400  # tried between the lowest and the highest rate
LEAST_POINTS = 6
# The 97.5 % quantiles of Student's distribution, by degrees of freedom; squared, of Fisher's F.
STUDENT = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
STUDENT |= {10: 2.228, 12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042}


def knee_of(rates: Sequence[float], values: Sequence[float]) -> Knee | None:
    """Of `values` above 0. None: they do not turn upwards within these rates, or are too few."""
    if len(rates) < LEAST_POINTS:
        return None
    low, high = sorted(rates)[1], sorted(rates)[-2]
    places = [low + (high - low) * index / PLACES for index in range(PLACES + 1)]
    errors = [_error(rates, values, place) for place in places]
    best = min(errors)
    straight = _error(rates, values, max(rates))  # one line, without a turn
    # Exact data leave no error at all; they still are no surer than the distance of two places.
    floor = 1e-9 * len(values)
    limit = best + (best + floor) * _student(len(rates) - 4) ** 2 / (len(rates) - 4)
    if best + floor >= straight or straight <= limit:
        return None
    within = [place for place, error in zip(places, errors, strict=True) if error <= limit]
    return Knee(places[errors.index(best)], within[0], within[-1])


def _error(rates: Sequence[float], values: Sequence[float], place: float) -> float:
    """The squared error of the best two lines that meet there, of which neither falls, and the
    second rises more steeply."""
    over = [max(0.0, rate - place) for rate in rates]
    found = []
    for columns in ((rates, over), (over,), (rates,), ()):
        slopes, error = _least_squares(columns, values)
        if all(slope >= 0 for slope in slopes):
            found.append(error)
    return min(found)


def _least_squares(
    columns: Sequence[Sequence[float]], values: Sequence[float]
) -> tuple[list[float], float]:
    """The slopes of at most two columns beside a constant, and the squared relative errors."""
    weights = [1 / (value * value) for value in values]
    rest = _centred(values, weights)
    centred = [_centred(column, weights) for column in columns]
    products = [[_dot(one, other, weights) for other in centred] for one in centred]
    aims = [_dot(one, rest, weights) for one in centred]
    slopes: list[float] = []
    if len(centred) == 1 and products[0][0] > 0:
        slopes = [aims[0] / products[0][0]]
    elif len(centred) == 2:
        (a, b), (_, d) = products
        determinant = a * d - b * b
        if determinant > 1e-12 * a * d:
            slopes = [
                (d * aims[0] - b * aims[1]) / determinant,
                (a * aims[1] - b * aims[0]) / determinant,
            ]
    for slope, column in zip(slopes, centred, strict=False):
        rest = [value - slope * x for value, x in zip(rest, column, strict=True)]
    return slopes, _dot(rest, rest, weights)


def _centred(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    mean = _dot(values, [1.0] * len(values), weights) / sum(weights)
    return [value - mean for value in values]


def _dot(one: Sequence[float], other: Sequence[float], weights: Sequence[float]) -> float:
    return sum(x * y * weight for x, y, weight in zip(one, other, weights, strict=True))


def _student(freedom: int) -> float:
    return STUDENT[max(known for known in STUDENT if known <= freedom)]
