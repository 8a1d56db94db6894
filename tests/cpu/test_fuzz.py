"""Random programs of fixed seeds do what eager does; `python -m tools.fuzz` runs more of them."""

from __future__ import annotations

import pytest

from tools.fuzz.check import check


@pytest.mark.parametrize("batch", range(10))
def test_random_programs(batch: int) -> None:
    texts = [check(seed) for seed in range(10 * batch, 10 * batch + 10)]
    found = [text for text in texts if text is not None]
    assert not found, "\n\n".join(found)


def test_random_programs_of_symbolic_sizes() -> None:
    texts = [check(seed, dynamic=True) for seed in range(1000, 1010)]
    found = [text for text in texts if text is not None]
    assert not found, "\n\n".join(found)


def test_random_programs_in_inference_mode() -> None:
    texts = [check(seed, inference=True, dynamic=seed % 2 == 0) for seed in range(2000, 2010)]
    found = [text for text in texts if text is not None]
    assert not found, "\n\n".join(found)
