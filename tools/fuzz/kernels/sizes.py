"""Random shapes: primes and their like, to some thousands along a dim, sizes of 0 and 1 among them,
so that kernels have partial tiles, loops over rows and reductions in parts.
"""

from __future__ import annotations

import math
from random import Random

LONG = (127, 129, 257, 1000, 1023, 1025, 2047, 4099, 8191, 8193, 16411, 32771, 50257, 65537, 262147)
SHORT = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 32, 33, 64, 65)

MOST = {"cpu": 30_000, "cuda": 3_000_000}
"""Elements of an input, by the kind of device."""


def draw_size(random: Random) -> int:
    """A size of a dim that an operator adds."""
    return random.choice(SHORT)


def draw_shape(random: Random, ndim: int, most: int) -> tuple[int, ...]:
    """A shape of that many dims and at most that many elements."""
    sizes = [random.choice(SHORT) for _ in range(ndim)]
    if ndim and random.random() < (0.6 if ndim < 3 else 0.2):
        sizes[random.randrange(ndim)] = random.choice([size for size in LONG if size <= most])
    if ndim and random.random() < 0.04:
        sizes[random.randrange(ndim)] = 0
    while math.prod(sizes) > most:
        dim = random.choice([dim for dim in range(ndim) if sizes[dim] > 1])
        sizes[dim] = max(1, sizes[dim] // 3)
    return tuple(sizes)
