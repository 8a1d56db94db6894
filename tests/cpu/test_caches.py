"""Containers of libraries as arguments and results: pytrees, model outputs, and the key-value
caches that generation loops grow.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.utils._pytree as pytree

from tests.worlds import World, compare, kinds

if TYPE_CHECKING:
    from collections.abc import Callable

transformers = pytest.importorskip("transformers")


@dataclasses.dataclass
class Pair:
    first: Any
    second: Any


pytree.register_pytree_node(
    Pair, lambda pair: ((pair.first, pair.second), None), lambda items, _: Pair(*items)
)


def mapped(x: torch.Tensor) -> Any:
    return pytree.tree_map(lambda leaf: leaf + 1, {"a": x, "b": [x, (x, 1)], "c": Pair(x, 2)})


def flattened(x: torch.Tensor) -> Any:
    leaves, spec = pytree.tree_flatten({"a": x, "b": [x * 2], "c": Pair(x, None)})
    again = pytree.tree_unflatten([leaf if leaf is None else leaf * 2 for leaf in leaves], spec)
    return again, len(leaves), spec.num_leaves


def selected(x: torch.Tensor) -> Any:
    leaves = pytree.tree_leaves([x, {"q": x * 2}])
    only = pytree.tree_map_only(torch.Tensor, lambda leaf: leaf * 2, [x, 1, "a"])
    return leaves, only, pytree.tree_all(lambda leaf: isinstance(leaf, torch.Tensor), [x, x])


@pytest.mark.parametrize("program", [mapped, flattened, selected])
def test_pytrees(program: Callable[..., Any]) -> None:
    compare(lambda: World(program, lambda call: (torch.randn(3),)), fullgraph=True, backend="eager")


# Model outputs
# ----------------------------------------------------------------------------


def output() -> Any:
    outputs = transformers.modeling_outputs
    return outputs.BaseModelOutput(
        last_hidden_state=torch.randn(3), hidden_states=(torch.randn(3),)
    )


def made(x: torch.Tensor) -> Any:
    outputs = transformers.modeling_outputs
    return outputs.BaseModelOutput(last_hidden_state=x * 2, hidden_states=(x,))


def read(out: Any) -> Any:
    total = out.last_hidden_state + out[1][0] + out["last_hidden_state"]
    return total, len(out), list(out.keys()), out.to_tuple(), out.attentions is None


def changed(out: Any) -> Any:
    out.last_hidden_state = out.last_hidden_state * 2
    out["attentions"] = (out.hidden_states[0] + 1,)
    return out


@pytest.mark.parametrize("program", [made, read, changed])
def test_model_outputs(program: Callable[..., Any]) -> None:
    def make() -> World:
        return World(program, lambda call: (torch.randn(3) if program is made else output(),))

    compare(make, fullgraph=True, backend="eager")


# Caches
# ----------------------------------------------------------------------------


def generating(kind: str) -> World:
    """A step of a generation loop: a prompt first, then token by token, with one cache."""
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    if kind == "dynamic":
        cache = transformers.DynamicCache(config=config)
    else:
        cache = transformers.StaticCache(config=config, max_cache_len=32)

    def step(tokens: torch.Tensor, positions: torch.Tensor) -> Any:
        with torch.no_grad():
            out = model(tokens, past_key_values=cache, cache_position=positions, use_cache=True)
        return out.logits, out.past_key_values is cache

    def arguments(call: int) -> tuple[Any, ...]:
        if call == 0:
            return torch.randint(0, 64, (2, 5)), torch.arange(5)
        return torch.randint(0, 64, (2, 1)), torch.tensor([4 + call])

    return World(step, arguments, lambda: [(layer.keys, layer.values) for layer in cache.layers])


@pytest.mark.parametrize(("kind", "most"), [("dynamic", 3), ("static", 2)])
def test_generation_does_not_recompile_at_every_token(kind: str, most: int) -> None:
    compiled = compare(lambda: generating(kind), calls=10, backend="eager", fullgraph=True)
    assert len(kinds(compiled)) <= most


def test_generation_in_kernels() -> None:
    compiled = compare(lambda: generating("dynamic"), calls=5, fullgraph=True)
    assert len(kinds(compiled)) <= 3


def test_a_cache_made_inside() -> None:
    def program(x: torch.Tensor) -> Any:
        cache = transformers.DynamicCache()
        cache.update(x, x + 1, 0)
        keys, values = cache.update(x * 2, x, 0)
        return keys, values, cache.get_seq_length(), cache.layers[0].keys

    compare(
        lambda: World(program, lambda call: (torch.randn(1, 2, 3, 4),)),
        fullgraph=True, backend="eager",
    )  # fmt: skip
