"""Stances and the two cores: the C type asks a pointer, its Python twin a function."""

from __future__ import annotations

from typing import Any

import pytest

from flambeau_capture.compiled import Compiled
from flambeau_capture.core import core
from flambeau_capture.python_core import PythonCompiled
from flambeau_capture.stance import Stance, current_stance, set_stance


def add(a: int, b: int = 2) -> int:
    return a + b


class State:
    """What the stance asks of a callable's state."""

    def __init__(self, other: Any) -> None:
        self.other = other
        self.asked: list[Any] = []

    def with_backend(self, backend: Any) -> Any:
        self.asked.append(backend)
        return self.other


@pytest.mark.parametrize("kind", dict.fromkeys((Compiled, PythonCompiled)))
def test_calls_are_redirected_only_while_a_stance_says_so(kind: Any) -> None:
    missed: list[tuple[Any, ...]] = []
    state = State(lambda a, b=2: ("forced", a, b))
    compiled = kind(add, missed.append, state)
    assert compiled(1) == 3 and missed == [(1, 2)]
    with set_stance("force_eager"):
        assert compiled(1, b=5) == 6 and len(missed) == 1
        with pytest.raises(TypeError, match="missing 1 required"):
            compiled()
    with set_stance(force_backend="mine"):
        assert compiled(1, b=5) == ("forced", 1, 5)
        state.other = None
        assert compiled(1) == 3 and len(missed) == 2
    assert state.asked == ["mine", "mine"]
    assert compiled(1) == 3 and len(missed) == 3


def test_what_is_in_force() -> None:
    assert current_stance() == Stance()
    with set_stance("fail_on_recompile"):
        with set_stance("eager_on_recompile"):
            assert current_stance().name == "eager_on_recompile"
        assert current_stance().name == "fail_on_recompile"
    assert current_stance() == Stance()


@pytest.mark.skipif(core is None, reason="needs the C core")
def test_a_redirect_that_raises_raises() -> None:
    def refuse(compiled: Any) -> Any:
        raise KeyError("no")

    compiled = Compiled(add, None, None)
    core.set_redirect(refuse)
    try:
        with pytest.raises(KeyError, match="no"):
            compiled(1)
    finally:
        core.set_redirect(None)
    assert compiled(1) == 3
