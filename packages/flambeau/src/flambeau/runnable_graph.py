"""A captured graph as a script that runs alone, on random inputs like those of the first call:
eager beside compiled, values and gradients.
"""

from __future__ import annotations

import operator
import textwrap
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEAD = '''\
"""The captured graph of {name}, on random inputs like those of its first call.

    python fx_graph_runnable.py     # eager beside Flambeau: values and gradients
"""

import builtins
import math
import operator

import torch
from torch import device, inf, nan

import flambeau

NoneType = type(None)
'''

_TENSOR = '''

def tensor(shape, stride, dtype, device, span=(0, 1), requires_grad=False):
    """Random elements in this layout; integers from span[0] to span[1]."""
    size = 0 if 0 in shape else 1 + sum((n - 1) * step for n, step in zip(shape, stride))
    if dtype.is_floating_point or dtype.is_complex:
        wide = dtype if dtype.is_complex else torch.float32
        elements = torch.randn(size, dtype=wide, device=device).to(dtype)
    else:
        elements = torch.randint(span[0], span[1] + 1, (size,), device=device).to(dtype)
    return elements.as_strided(shape, stride).requires_grad_(requires_grad)
'''

_MAIN = '''

def leaves(values):
    """The tensors in nested lists and tuples."""
    if isinstance(values, torch.Tensor):
        return [values]
    inner = values if isinstance(values, (list, tuple)) else ()
    return [leaf for value in inner for leaf in leaves(value)]


def run(function):
    """The outputs, and the gradients of what requires them."""
    torch.manual_seed(0)
    inputs = example_inputs()
    outputs = leaves(function(*inputs))
    wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    sums = [out.float().sum() for out in outputs if out.requires_grad]
    gradients = torch.autograd.grad(sum(sums), wanted, allow_unused=True) if sums and wanted else ()
    return outputs, gradients


if __name__ == "__main__":
    torch.manual_seed(0)
    graph = CapturedGraph()
    eager, compiled = run(graph), run(flambeau.compile(graph))
    torch.testing.assert_close(compiled, eager, rtol=1e-3, atol=1e-3, equal_nan=True)
    print(f"equal: {len(eager[0])} outputs, {len(eager[1])} gradients")
'''

_STANDARD = {"torch", "device", "inf", "nan", "NoneType", "fx_pytree", "pytree", "builtins", "math"}


class NotRunnable(Exception):
    """Why a graph cannot be written as a script."""


def runnable_graph(name: str, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    """The script's text; one that says why, for a graph that holds what has no name."""
    imports: dict[str, str] = {}
    try:
        graph = _class_text("CapturedGraph", gm, imports)
        inputs = [f"        {value_text(value)}," for value in example_inputs]
    except NotRunnable as reason:
        return f'raise SystemExit("This graph does not run alone: {reason}")'
    made = "\n".join(["def example_inputs():", "    return [", *inputs, "    ]\n"])
    head = [_HEAD.format(name=name), *sorted(imports.values()), _TENSOR]
    return "".join([*head, "\n\n", graph, "\n\n\n", made, _MAIN])


def _class_text(name: str, gm: torch.fx.GraphModule, imports: dict[str, str]) -> str:
    """A graph as the class of a module, and so those that it holds."""
    code = gm.graph.python_code("self")
    for word, value in code.globals.items():
        if word not in _STANDARD:
            imports[word] = _import_text(word, value)
    lines, inner = ["super().__init__()"], []
    holding = [node for node in gm.graph.nodes if node.op in ("get_attr", "call_module")]
    for target in dict.fromkeys(str(node.target) for node in holding):
        held = operator.attrgetter(target)(gm)
        if isinstance(held, torch.fx.GraphModule):
            inner.append(_class_text(f"{name}_{target}", held, imports))
            lines.append(f"self.{target} = {name}_{target}()")
        elif isinstance(held, torch.Tensor) and "." not in target:
            lines.append(f"self.register_buffer({target!r}, {_tensor_text(held)})")
        else:
            raise NotRunnable(f"it holds {target}, of type {type(held).__name__}")
    made = "\n".join(["    def __init__(self):", *(f"        {line}" for line in lines)])
    body = textwrap.indent(code.src.strip(), "    ")
    return "\n\n\n".join([*inner, f"class {name}(torch.nn.Module):\n{made}\n\n{body}"])


def _import_text(word: str, value: Any) -> str:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if type(value) is type(torch):
        return f"import {value.__name__} as {word}\n"
    if not module or not name.isidentifier() or module == "__main__":
        raise NotRunnable(f"nothing imports {word}")
    return f"from {module} import {name} as {word}\n"


def value_text(value: Any) -> str:
    """What makes a random value like this one; NotRunnable if nothing does."""
    if isinstance(value, torch.Tensor):
        return _tensor_text(value)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return repr(value.node.hint)
    if value is None or type(value) in (int, float, bool, str):
        return repr(value)
    raise NotRunnable(f"an input is of type {type(value).__name__}")


def _tensor_text(value: torch.Tensor) -> str:
    if value.layout is not torch.strided:
        raise NotRunnable(f"a tensor has the layout {value.layout}")
    parts = [repr(tuple(map(int, value.shape))), repr(tuple(map(int, value.stride())))]
    parts += [str(value.dtype), repr(str(value.device))]
    integral = not (value.dtype.is_floating_point or value.dtype.is_complex)
    if integral and value.dtype is not torch.bool and value.numel():
        parts.append(f"({int(value.min())}, {int(value.max())})")
    if value.requires_grad:
        parts.append("requires_grad=True")
    return f"tensor({', '.join(parts)})"
