"""Loads to judge a policy by: those that everybody fears, and recorded ones.

Owns: their shapes, the draw of arrivals around them.
May not know: policies, replicas.
Read next: `simulator.py`.

A load is requests per tick. Shapes are rates over time as parts of the highest; arrivals are drawn
around them, by a seed, so bursts are in each of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

from firsthand.checks import check_choice, check_number
from firsthand.errors import InvalidRequest
from firsthand.values import dataclass

MAX_TICKS = 100_000
MAX_RATE = 100_000.0
ROUND = 1e4  # from so many arrivals on, a tick has as many as it should


@dataclass(frozen=True, slots=True)
class Shape:
    """`at`: seconds to a part of the highest rate."""

    seconds: float
    at: Callable[[float], float]


def _day(at_s: float) -> float:
    """Least at four in the morning, most at four in the afternoon."""
    return 0.55 - 0.45 * math.cos((at_s / 3600 - 4) / 24 * 2 * math.pi)


def _burst(at_s: float) -> float:
    """A minute and a half of six times as much, every twenty minutes."""
    return 1.0 if at_s % 1200 >= 1110 else 1 / 6


def _step(at_s: float) -> float:
    return 1.0 if 1800 <= at_s < 5400 else 0.2


def _sawtooth(at_s: float) -> float:
    """Rises for five minutes, and falls at once."""
    return 0.2 + 0.8 * (at_s % 300) / 300


def _wave(at_s: float) -> float:
    return 0.6 + 0.4 * math.sin(at_s / 900 * 2 * math.pi)


SHAPES = {
    "day": Shape(86_400.0, _day),
    "burst": Shape(7200.0, _burst),
    "step": Shape(9000.0, _step),
    "sawtooth": Shape(7200.0, _sawtooth),
    "wave": Shape(7200.0, _wave),
    "constant": Shape(3600.0, lambda _: 1.0),
}


def drawn(name: str, peak: float, tick_s: float, seed: int = 0) -> list[float]:
    """Poisson arrivals around a shape whose highest rate is `peak`. Raises InvalidRequest."""
    check_choice("load", name, tuple(SHAPES))
    check_number("qps", peak, 0, MAX_RATE, low_open=True)
    draw, shape = random.Random(seed), SHAPES[name]
    num = math.ceil(shape.seconds / tick_s)
    return [
        float(_poisson(peak * tick_s * shape.at((tick + 0.5) * tick_s), draw))
        for tick in range(num)
    ]


def _poisson(mean: float, draw: random.Random) -> int:
    """By its gaps."""
    if mean > ROUND:
        return round(draw.gauss(mean, math.sqrt(mean)))
    count, at = 0, draw.expovariate(1.0)
    while at < mean:
        count, at = count + 1, at + draw.expovariate(1.0)
    return count


def recorded(arrivals: Iterable[tuple[float, float]], tick_s: float) -> list[float]:
    """From seconds after the beginning and how much each is, as parts of a mean request. Raises
    InvalidRequest where it lasts too long."""
    found: list[float] = []
    for at_s, size in arrivals:
        tick = int(at_s // tick_s)
        if tick >= MAX_TICKS:
            most_h = MAX_TICKS * tick_s / 3600
            raise InvalidRequest("trace", f"lasts longer than {most_h:.0f} hours")
        found.extend([0.0] * (tick + 1 - len(found)))
        found[tick] += size
    return found
