"""Every ATen call of twelve models' forward and backward, traced by the rules, against eager on
real tensors.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import MODELS, first_tensor
from rules.compare import describe
from torch import nn

from flambeau_prims.graph import Node, Value, map_values
from flambeau_prims.sizes import Expr
from flambeau_prims.spec import Spec, spec_of
from flambeau_prims.tracer import Tracer


def trace_joint(module: nn.Module, inputs: tuple[Any, ...], device: str = "cpu") -> Tracer:
    """Trace a training step: forward, a sum as loss, and the backward of the eager engine."""
    tracer = Tracer(device=device)

    def fake(real: torch.Tensor) -> Any:
        spec = spec_of(real)
        return tracer.fake(
            spec.replace(stride=spec.stride, device=torch.device(device)),
            requires_grad=real.requires_grad,
        )

    for submodule in module.modules():
        for table in (submodule._parameters, submodule._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = fake(tensor)
        if isinstance(submodule, nn.RNNBase):
            submodule._flat_weights = [
                getattr(submodule, name) for name in submodule._flat_weights_names
            ]
    module.train()
    args = [fake(value) if isinstance(value, torch.Tensor) else value for value in inputs]
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        with tracer:
            first_tensor(module(*args)).sum().backward()
    finally:
        torch.compiler._is_compiling_flag = before
    return tracer


def realize(spec: Spec) -> torch.Tensor:
    """A real tensor of exactly this geometry; integers are 0 or 1, which are valid indices nearly
    everywhere.
    """
    extent = (
        spec.offset
        + 1
        + sum((size - 1) * step for size, step in zip(spec.shape, spec.stride, strict=True))
    )
    if spec.dtype.is_floating_point:
        storage = torch.rand(max(extent, 1)).to(spec.dtype)
    else:
        storage = torch.zeros(max(extent, 1), dtype=spec.dtype)
    return storage.as_strided(spec.shape, spec.stride, spec.offset)


def replay(node: Node) -> tuple[Any, Any]:
    """The rule's result for a node and eager's on real tensors, both as comparable data."""
    real: dict[Value, torch.Tensor] = {}

    def make(value: Value) -> torch.Tensor:
        return real.setdefault(value, realize(value.spec))

    result = node.op(*map_values(node.args, make), **map_values(node.kwargs, make))
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    traced = [None if out is None else out.spec for out in node.outputs]
    return describe(traced), describe(results[: len(traced)])


@pytest.mark.parametrize("name", MODELS)
def test_every_traced_call_agrees_with_eager(name: str) -> None:
    """Shape, dtype and stride of each result of each recorded node."""
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    tracer = trace_joint(module, inputs)
    assert len(tracer.nodes) > 20
    seen: set[str] = set()
    differing = []
    for node in tracer.nodes:
        call = repr(
            [
                node.op,
                map_values(node.args, lambda v: v.spec),
                map_values(node.kwargs, lambda v: v.spec),
            ]
        )  # type: ignore[arg-type, return-value]
        if call in seen:
            continue
        seen.add(call)
        traced, eager = replay(node)
        if traced != eager:
            differing.append(f"{call}\n  rule:  {traced}\n  eager: {eager}")
    assert not differing, "\n".join(differing)


@pytest.mark.parametrize("name", ["resnet", "resnext", "lstm"])
def test_models_trace_for_a_gpu_without_one(name: str) -> None:
    """The same models on a fake cuda device: every value of the trace is on it."""
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    with torch.backends.cudnn.flags(enabled=False):  # which looks where the weights of an LSTM are
        tracer = trace_joint(module, inputs, device="cuda:0")
    devices = {
        out.spec.device.type for node in tracer.nodes for out in node.outputs if out is not None
    }
    assert "cuda" in devices
    assert not any(isinstance(size, Expr) for value in tracer.inputs for size in value.spec.shape)
