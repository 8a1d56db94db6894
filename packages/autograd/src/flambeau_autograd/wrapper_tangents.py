"""Gradients of a graph of wrapper subclasses for a tangent that is not built as its trace assumed,
or that are differentiated themselves: the program runs again, by eager operators, and the engine
differentiates that.

    y = c(x)                     a TwoTensor
    y.backward(torch.ones(4))    a plain tensor: what the class makes of it, only the class knows

The call keeps its arguments for that. If one of them has been written to since, or if the program
draws random numbers, there is no other run that computes the same, and the backward raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_autograd.traced_modes import TracedModes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx

    from flambeau_prims.wrapper_subclasses import SubclassSpec


class Program:
    """A captured graph of wrappers that can run again; `reruns` lists for what it did."""

    def __init__(self, gm: fx.GraphModule, reruns: list[str]) -> None:
        self._gm = gm
        self._reruns = reruns
        self._modes = TracedModes.current()

    def refusal(self) -> str:
        """Why no other run computes the same, or nothing."""
        return "it draws random numbers" if self._gm.meta.get("has_draws") else ""

    def gradients(
        self, args: Sequence[Any], output: int, wanted: Sequence[int], tangent: torch.Tensor
    ) -> Sequence[torch.Tensor | None]:
        """The gradients of the arguments `wanted` for a tangent of one output."""
        text = f"a backward through an eager run, for a gradient of type {type(tangent).__name__}"
        if text not in self._reruns:
            self._reruns.append(text)
        differentiates = torch.is_grad_enabled()
        with self._modes.restored(), torch.enable_grad():
            own = [self._argument(x, differentiates) for x in args]
            results = self._gm.forward(*own)
            return torch.autograd.grad(
                results[output],
                [own[at] for at in wanted],
                tangent,
                allow_unused=True,
                create_graph=differentiates,
            )

    def _argument(self, x: Any, differentiates: bool) -> Any:
        """A separate tensor, connected to the argument if its gradients are differentiated: an
        argument may be computed from another one.
        """
        if not isinstance(x, torch.Tensor) or not x.requires_grad:
            return x
        return x.view_as(x) if differentiates else x.detach().requires_grad_()


class Rerun:
    """A call of a program that can be made again."""

    def __init__(self, program: Program, args: Sequence[Any]) -> None:
        self._program, self._args = program, args
        self._versions = _versions(args)

    def refusal(self) -> str:
        """Why the call cannot be made again, or nothing."""
        if self._versions != _versions(self._args):
            return "an argument has been written to since"
        return self._program.refusal()

    def gradients(
        self, output: int, wanted: Sequence[int], tangent: torch.Tensor, expected: SubclassSpec
    ) -> Sequence[torch.Tensor | None]:
        """The gradients of the arguments `wanted` for a tangent of one output; RuntimeError where
        the call cannot be made again.
        """
        refusal = self.refusal()
        if refusal:
            raise RuntimeError(
                f"the compiled backward takes a gradient like {expected!r}, and was given a "
                f"{type(tangent).__name__}, for which it would have to run the program again: "
                f"{refusal}. Convert it before the backward, or run the function eagerly"
            )
        return self._program.gradients(self._args, output, wanted, tangent)


def _versions(args: Sequence[Any]) -> list[int]:
    return [x._version for x in args if isinstance(x, torch.Tensor) and not x.is_inference()]
