"""What a compiler adds to a forward and backward whose kernels do nothing: guards, arguments of
graphs, saved tensors. What autograd's own node and engine cost is left out.

Each call returns another tensor in the place of the result and of each gradient, because autograd
takes them over. Intermediates that are saved for the backward are the same tensors in each call: to
make them is the kernels' part.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd

import flambeau
from flambeau_autograd import AutogradOptions, aot
from flambeau_prims.graph import Value
from tools.bench.timing import interleave

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flambeau_prims.graph import Graph

PARAMETERS = (2, 200)


def model_of(parameters: int) -> nn.Module:
    """Linear layers of 8 features with this many parameters."""
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(parameters // 2)))


def _fresh(outputs: Sequence[Any], kind: str) -> list[Any]:
    """What a call returns for these `outputs` of a graph of one result."""
    if kind == "forward":
        return [outputs[0].detach(), *outputs[1:]]
    return [x.detach() if isinstance(x, torch.Tensor) else x for x in outputs]


def _no_op(graph: Graph, kind: str) -> Callable[..., tuple[Any, ...]]:
    outputs = [
        torch.empty_strided(value.spec.shape, value.spec.stride, dtype=value.spec.dtype)
        if isinstance(value, Value)
        else value
        for value in graph.outputs
    ]
    return lambda *args: tuple(_fresh(outputs, kind))


def _ours(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., tuple[Any, ...]]:
    return aot(gm, inputs, _no_op, options=AutogradOptions())


def _no_op_of_torch(kind: str, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    (results,) = next(node for node in gm.graph.nodes if node.op == "output").args
    outputs = []
    for node in results:
        value = node.meta["val"] if isinstance(node, torch.fx.Node) else node
        if isinstance(value, torch.Tensor):
            with torch._subclasses.fake_tensor.unset_fake_temporarily():
                value = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        outputs.append(value)

    def run(args: list[Any]) -> list[Any]:
        args.clear()
        return _fresh(outputs, kind)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def training_calls_row(parameters: int, device: str, rounds: int) -> tuple[str, ...]:
    """The cells of one row."""
    model = model_of(parameters).to(device)
    x = torch.randn(4, 8, device=device)
    theirs_backend = aot_autograd(
        fw_compiler=partial(_no_op_of_torch, "forward"),
        bw_compiler=partial(_no_op_of_torch, "backward"),
    )
    ours = flambeau.compile(model, backend=_ours, fullgraph=True)
    theirs = torch.compile(model, backend=theirs_backend, fullgraph=True)
    gradient = torch.ones(4, 8, device=device)

    def step(function: Any) -> None:
        model.zero_grad()
        function(x).backward(gradient)

    engine = _node_of(list(model.parameters()), x)
    seconds = interleave(
        {name: lambda f=f: step(f) for name, f in zip(NAMES, (engine, ours, theirs), strict=True)},
        device=device,
        rounds=rounds,
    )
    floor, mine, other = (seconds[name] * 1e6 for name in NAMES)
    mine, other = mine - floor, other - floor
    return str(parameters), f"{floor:.1f}", f"{mine:.1f}", f"{other:.1f}", f"{mine / other:.3f}"


NAMES = ("engine", "flambeau", "torch")


def _node_of(parameters: list[Any], x: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """One custom Function of these parameters with constant results: what autograd itself costs."""
    result, gradients = torch.empty_like(x), [torch.empty_like(p) for p in parameters]

    class Node(torch.autograd.Function):
        """Does nothing."""

        @staticmethod
        def forward(ctx: Any, *args: torch.Tensor) -> torch.Tensor:
            return result.detach()

        @staticmethod
        def backward(ctx: Any, *_: Any) -> tuple[torch.Tensor, ...]:
            return tuple(_fresh(gradients, "backward"))

    apply = super(torch.autograd.Function, Node).apply  # type: ignore[misc]
    return lambda _: apply(*parameters)
