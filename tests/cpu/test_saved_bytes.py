"""What a forward saves for its backward, in bytes, beside what torch's partitioner saves.

Torch recomputes operands of products in the backward, which has to write them for that. We save
what products of the backward read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable


class GatedUnit(nn.Module):
    """The gated feed-forward layer of today's language models, behind an RMS norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate, self.up = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Norms(nn.Sequential):
    """Layer norms behind products and smooth activations."""

    def __init__(self, width: int) -> None:
        layers = (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        super().__init__(*layers, *(nn.Sequential(*layers) for _ in range(2)))


class Dropouts(nn.Sequential):
    """Dropout and softmax between products."""

    def __init__(self, width: int) -> None:
        first, last = nn.Linear(width, width), nn.Linear(width, width)
        super().__init__(first, nn.Dropout(0.1), nn.Softmax(-1), last)


MODELS = (Norms, GatedUnit, Dropouts)
SHARE = 1.1
"""The most that we save, in what torch saves."""


def ours(model: nn.Module, x: torch.Tensor) -> int:
    """Bytes that our forward saves beyond its inputs."""
    compiled = flambeau.compile(model, fullgraph=True, dynamic=False)
    compiled(x)
    (line,) = flambeau.explain(compiled).graphs[0].partitions
    found = re.search(r"\(([\d,]+) bytes\)", line)
    assert found is not None
    return int(found[1].replace(",", ""))


def theirs(model: nn.Module, x: torch.Tensor) -> int:
    """Bytes that torch's forward saves beyond its inputs, with the decompositions of its
    inductor.
    """
    saved = 0

    def partition(joint: Any, inputs: Any, *, num_fwd_outputs: int, **more: Any) -> Any:
        nonlocal saved
        parts = min_cut_rematerialization_partition(
            joint, inputs, num_fwd_outputs=num_fwd_outputs, **more
        )
        (results,) = next(node for node in parts[0].graph.nodes if node.op == "output").args
        kept = {node for node in results[num_fwd_outputs:] if node.op != "placeholder"}
        kept.update(set(results[:num_fwd_outputs]) & set(results[num_fwd_outputs:]))
        values = [node.meta.get("val") for node in kept if isinstance(node, torch.fx.Node)]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        saved = sum(value.numel() * value.element_size() for value in tensors)
        return parts

    def backend(gm: Any, inputs: Any) -> Any:
        return aot_module_simplified(
            gm,
            inputs,
            fw_compiler=lambda graph, _: graph.forward,
            partition_fn=partition,
            decompositions=select_decomp_table(),
        )

    torch.compile(model, backend=backend, fullgraph=True, dynamic=False)(x)
    return saved


@pytest.mark.parametrize("half", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("make", MODELS)
def test_little_more_is_saved_than_torch_saves(
    make: Callable[[int], nn.Module], half: bool
) -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), make(64)), torch.randn(256, 64)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        assert 0 < ours(model, x) <= SHARE * theirs(model, x)
