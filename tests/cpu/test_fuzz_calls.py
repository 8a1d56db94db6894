"""Random calls do compiled what they do eagerly; `python -m tools.fuzz calls` runs more of them."""

from __future__ import annotations

import pytest

from tools.fuzz.calls import difference_of, report


@pytest.mark.parametrize(("seed", "dynamic"), [(0, None), (1, True)])
def test_random_calls(seed: int, dynamic: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(200, seed, backend="eager", dynamic=dynamic) == 0, capsys.readouterr().out


def test_a_difference_is_reported() -> None:
    difference = difference_of("torch.compiler.is_compiling()")
    assert difference is not None
    assert "True" in difference
