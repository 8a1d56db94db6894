"""How often candidates are timed, and which time their samples stand for.

samples 0.27 7.91 0.28 15.6 0.27 ms  ->  0.27 ms, stable: three of them agree

A GPU runs nothing else meanwhile: a median of few samples is its time. The threads of a CPU's
kernel wait for one another, and if other programs run, a thread may wait for a whole time slice:
then the fastest sample is the kernel's time. It is certain once the next ones are close to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

AGREEING = 3
SPREAD = 0.05
"""So many fastest samples must be so close to each other."""


@dataclass(frozen=True)
class Sampling:
    """`rounds`: each candidate is timed so often at the most; one far behind the best leaves after
    `early_rounds`, or after `patience` milliseconds of samples. `seconds`: no round starts later.
    `interrupted`: other programs may prolong any sample. Rounds end as soon as all times are
    stable, but not before `early_rounds`.
    """

    rounds: int = 7
    early_rounds: int = 2
    patience: float = 0.0
    seconds: float = inf
    interrupted: bool = False

    def time(self, samples: Sequence[float]) -> float:
        """The time that samples stand for."""
        return min(samples) if self.interrupted else median(samples)

    def is_stable(self, samples: Sequence[float]) -> bool:
        """Whether more samples would change little."""
        if not self.interrupted:
            return True
        lowest = sorted(samples)[:AGREEING]
        return len(lowest) == AGREEING and lowest[-1] <= lowest[0] * (1 + SPREAD)

    def is_over(self, number: int, racing: Sequence[Sequence[float]]) -> bool:
        """Whether the rounds may end before round `number`; `racing`: all samples by candidate."""
        return self.interrupted and number >= self.early_rounds and all(
            self.is_stable(samples) for samples in racing
        )  # fmt: skip

    def may_leave(self, samples: Sequence[float]) -> bool:
        """Whether a candidate that is far behind has been timed often enough."""
        return len(samples) >= self.early_rounds or 0 < self.patience < sum(samples)
