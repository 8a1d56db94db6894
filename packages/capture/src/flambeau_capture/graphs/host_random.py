"""Random generators of the host, `random`'s and NumPy's, as a graph uses them: a draw is a call of
the graph, made when it runs.

    p = random.random(); i = np.random.choice(9, 2)
    ->  p = draw(random._inst, "random"); i = draw_array(_rand, "choice", 9, 2)

The graph is given the program's own generators (`record.Opaque` inputs), so that they end in the
state in which eager leaves them. What a frame draws after it has seeded a generator itself is known
when the frame is captured: the graph then only sets the state (`KnownState`).
"""

from __future__ import annotations

import copy
import random
import sys
from typing import Any

import torch


def is_host_generator_type(kind: type) -> bool:
    """Whether a type is Python's or NumPy's generator, whose state can be read and restored."""
    if issubclass(kind, random.Random):
        return not issubclass(kind, random.SystemRandom)
    of_numpy: Any = sys.modules.get("numpy.random")
    return of_numpy is not None and issubclass(kind, (of_numpy.RandomState, of_numpy.Generator))


def state_of_generator(generator: Any) -> Any:
    """The state of a host generator, for `restore_generator`."""
    if isinstance(generator, random.Random):
        return random.Random.getstate(generator)
    if hasattr(generator, "get_state"):
        return generator.get_state(legacy=False)
    return generator.bit_generator.state


def restore_generator(generator: Any, state: Any) -> None:
    """Put a host generator into a state that it was in."""
    if isinstance(generator, random.Random):
        random.Random.setstate(generator, state)
    elif hasattr(generator, "set_state"):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state


GENERATOR_STATE = frozenset({"gauss_next", "bit_generator", "_bit_generator"})
"""Attributes of such generators that draws change."""


# ---------------------------------------------------------------- calls of a graph


def draw(generator: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    """Draw a number; Python's own method, which a class of the program may have overridden."""
    if isinstance(generator, random.Random):
        return getattr(random.Random, method)(generator, *args, **kwargs)
    return getattr(generator, method)(*args, **kwargs)


def shuffled(generator: random.Random, items: list[Any]) -> list[Any]:
    """The items in the order in which `shuffle` puts them."""
    items = list(items)
    random.Random.shuffle(generator, items)
    return items


def draw_array(generator: Any, method: str, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Draw an array (or NumPy scalar), as a tensor; array arguments are tensors, too."""
    named = {name: _as_array(arg) for name, arg in kwargs.items()}
    found = getattr(generator, method)(*map(_as_array, args), **named)
    numpy: Any = sys.modules["numpy"]
    made: torch.Tensor = torch.from_numpy(numpy.asarray(found, order="C"))
    return made


def change_array(
    generator: Any, method: str, array: torch.Tensor, *args: Any, **kwargs: Any
) -> None:
    """`shuffle`: a call that changes the array it is given."""
    getattr(generator, method)(array.numpy(), *args, **kwargs)


def _as_array(arg: Any) -> Any:
    return arg.detach().numpy() if isinstance(arg, torch.Tensor) else arg


UNIT_DRAWS = frozenset({"random", "random_sample", "rand"})
"""Methods of NumPy's generators that draw from [0, 1)."""


class KnownState:
    """The state of a generator that the frame has seeded: a copy draws during the capture."""

    __slots__ = ("_state", "generator")

    def __init__(self, generator: Any) -> None:
        self.generator = generator
        self._state: Any = None

    def draw(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the program's generator gives."""
        self._state = None
        return getattr(self.generator, method)(*args, **kwargs)

    def shuffle(self, items: list[Any]) -> None:
        """Put the items of a list into the order in which the program's generator puts them."""
        self.draw("shuffle", (items,), {})

    def copy(self) -> Any:
        """A generator in that state: what the frame has made."""
        return copy.deepcopy(self.generator)

    def give(self, generator: Any) -> None:
        """Put the program's generator into the state that it then is in."""
        if self._state is None:
            self._state = state_of_generator(self.generator)
        restore_generator(generator, self._state)


def copied(state: KnownState) -> Any:
    """`KnownState.copy` as a recipe calls it."""
    return state.copy()


def give_state(generator: Any, state: KnownState) -> None:
    """`KnownState.give` as a call of a graph."""
    state.give(generator)


DRAWS = frozenset({draw, shuffled, draw_array, change_array, give_state})
"""The calls of a graph that use generators of the host, and no other state."""
