"""Writes to parts of tensors whose elements share memory: eager's results, and its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable

TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "expanded": lambda: torch.randn(1).expand(4),
    "expanded_rows": lambda: torch.randn(3).expand(4, 3),
    "expanded_columns": lambda: torch.randn(4, 1).expand(4, 3),
    "windows": lambda: torch.randn(6).unfold(0, 3, 1),
    "apart": lambda: torch.randn(12).unfold(0, 3, 4),
    "strides_of_no_order": lambda: torch.randn(12).as_strided((4, 2), (3, 2)),
    "empty": lambda: torch.randn(1, 3).expand(0, 3),
    "transposed": lambda: torch.randn(3, 4).t(),
}

WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "an_element": lambda x: x.flatten()[:1] if not len(x) else x[0].add_(1),
    "through_views": lambda x: x.t()[-1:].mul_(2),
    "a_slice": lambda x: x[1:3].sub_(3),
    "whole": lambda x: x.add_(1),
    "filled": lambda x: x.fill_(2.5),
    "at_an_index": lambda x: x.index_put_((torch.tensor([0]),), torch.tensor(5.0)),
}


def seen(write: Callable[[torch.Tensor], Any], made: Callable[[], torch.Tensor], run: Any) -> Any:
    """The result and the tensor after the call, or the error."""
    torch.manual_seed(0)
    x = made()
    try:
        result = run(write)(x)
    except (RuntimeError, IndexError) as error:
        return str(error)
    return result.clone(), x.clone(), x._version


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize("name", WRITES)
def test_inputs(name: str, tensor: str, dynamic: bool) -> None:
    write, made = WRITES[name], TENSORS[tensor]
    want = seen(write, made, lambda program: program)
    found = seen(write, made, lambda program: flambeau.compile(program, dynamic=dynamic))
    if isinstance(want, str) or isinstance(found, str):
        assert found == want
    else:
        torch.testing.assert_close(found, want, equal_nan=True)


def test_why_they_are_not_compiled() -> None:
    compiled = flambeau.compile(WRITES["an_element"])
    compiled(TENSORS["expanded"]())
    (graph,) = flambeau.explain(compiled).graphs
    assert "write-through-view" in str(graph.fallback)
