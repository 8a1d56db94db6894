"""The inputs that a call of a training graph keeps for the derivatives of its gradients.

    y = x * w;  y.mul_(2)       kept: x, w with their versions, of small overwritten inputs a copy

`gradient_graph` says which these are. This is what a call needs, without the graph itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from flambeau_autograd.generator_states import GeneratorStates
from flambeau_autograd.graph_call import getter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from flambeau_autograd.graph_call import Sizes

_version = attrgetter("_version")


@dataclass(frozen=True, slots=True)
class Packed:
    """In the place of an input: its position among the saved tensors, which hooks have packed."""

    position: int


@dataclass(slots=True)
class Kept:
    """What a call keeps for the derivatives of its gradients: the inputs that these depend on, the
    versions of those whose versions nothing else checks, the values of the symbols, the states of
    the random generators. Nothing changes it; it is not frozen because each call makes one, at a
    third of the time.
    """

    inputs: tuple[Any, ...]
    versions: list[int]
    sizes: Mapping[str, int]
    states: GeneratorStates | None


@dataclass
class KeptInputs:
    """What each call keeps: the graph's inputs `needed` (positions), in this order.

    `tensors`: those that hooks on saved tensors may pack. `checked`: those whose versions nothing
    else checks. `copied`: numbers among the needed ones of inputs that the call writes to. `draws`:
    the devices whose generators' states are kept. `sizes` reads the symbols. `refused`: why nothing
    is kept.
    """

    needed: list[int]
    tensors: frozenset[int]
    checked: list[int]
    copied: list[int]
    draws: list[str]
    sizes: Sizes
    refused: str

    def __post_init__(self) -> None:
        self._inputs = getter(self.needed)
        place = {at: number for number, at in enumerate(self.needed)}
        self._checked = getter([place[at] for at in self.checked])

    def keep(self, args: Sequence[Any]) -> Kept | None:
        """What a call with these arguments keeps; to be asked before it writes to them."""
        if self.refused:
            return None
        states = GeneratorStates.of(self.draws) if self.draws else None
        if states is None and self.draws:
            return None
        inputs = self._inputs(args)
        if self.copied:
            own = list(inputs)
            for number in self.copied:
                own[number] = own[number].detach().clone()
            inputs = tuple(own)
        return Kept(
            inputs,
            self._versions(inputs),
            self.sizes(args),
            states,
        )

    def packed(
        self, kept: Kept | None, saved: Mapping[int, int], count: int
    ) -> tuple[Kept | None, list[torch.Tensor]]:
        """`kept` with its tensors left to hooks that pack what is saved, and those that are to be
        saved for it after `count` others; `saved` is where inputs are saved already.
        """
        if kept is None:
            return None, []
        inputs = list(kept.inputs)
        added: list[torch.Tensor] = []
        for number, at in enumerate(self.needed):
            if at not in self.tensors:
                continue
            position = saved.get(at)
            if position is None:
                position = count + len(added)
                added.append(inputs[number])
            inputs[number] = Packed(position)
        return Kept(tuple(inputs), [], kept.sizes, kept.states), added

    def unpacked(self, kept: Kept | None, saved: Sequence[torch.Tensor]) -> Kept | None:
        """`kept` with what hooks have unpacked."""
        if kept is None:
            return None
        inputs = [saved[x.position] if isinstance(x, Packed) else x for x in kept.inputs]
        return Kept(tuple(inputs), self._versions(inputs), kept.sizes, kept.states)

    def handles(self, kept: Kept, positions: Sequence[tuple[int, int]]) -> dict[int, torch.Tensor]:
        """The inputs at some of the graph's `positions`, by the numbers beside them."""
        given = self.by_position(kept.inputs)
        return {number: given[at] for number, at in positions if at in given}

    def _versions(self, inputs: Sequence[Any]) -> list[int]:
        return list(map(_version, self._checked(inputs)))

    def by_position(self, inputs: Sequence[Any]) -> Any:
        return dict(zip(self.needed, inputs, strict=True))

    def reason(self, kept: Kept | None) -> str:
        """Why these gradients have no derivative, or nothing."""
        if self.refused or kept is None:
            return self.refused or "it drew random numbers while a CUDA graph was captured"
        if self._versions(kept.inputs) == kept.versions:
            return ""
        return "an input that its gradients depend on has been written to since"
