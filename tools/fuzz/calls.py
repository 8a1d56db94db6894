"""Random calls of one function each beside eager: every method of torch.Tensor, function of torch,
builtin, and function of operator and math, with arguments of many types, most of which it refuses.

    x.clone().new(torch.Size([3]))        divmod(x[0], 2)        torch.lerp(x, y, b)
"""

from __future__ import annotations

import builtins
import math
import operator
import random
import warnings
from typing import Any

import numpy as np
import torch

import flambeau
from tests.same import same

NAMES = {"np": np, "torch": torch, "operator": operator, "math": math}

METHOD_ARGUMENTS = (
    "", "1", "0", "y", "i", "1.5", "torch.Size([3])", "'a'", "None", "np.float64(2)", "True",
    "0, 1", "0, i", "0, i, y", "b, 2.0", "b, y", "m", "[0]", "y, y", "dim=0", "-1", "(3,)",
    "2j", "1, y", "torch.float64", "[1, 2]", "y, alpha=2", "x.shape", "out=torch.zeros(3)",
)  # fmt: skip
FUNCTION_ARGUMENTS = (
    "x", "i", "b", "m", "x, y", "x, 1", "m, m", "x, 0", "i, i", "b, b", "m, x", "x, i", "m, 0, i",
    "m, 0, i, m", "x, y, y", "x, b", "b, x, y", "2.0", "2", "3, 3", "(3,)", "[x, y]", "[m, m], 1",
    "x, out=torch.zeros(3)", "m, dim=1", "x.shape", "np.float64(2)", "x, np.float32(2)", "'a'",
    "None", "x, None", "True", "2j", "x, 2j", "x[0]", "x[0], 2", "2, x[0]", "i[0], 2", "'a', x",
    "x, [1, 2, 3]", "[x[0], x[1]]", "x, x, x", "x.shape, 1", "(x,), 0", "m, (0, 1)",
)  # fmt: skip
RECEIVERS = ("x", "i", "m", "b", "x.clone()", "m.t()", "x[1:]", "x[0]")

_NO_METHODS = (
    "backward", "hook", "apply_", "map_", "map2_", "_dim", "share_memory", "pin_memory", "cuda",
    "module_load", "dlpack", "mkldnn", "retain_grad", "__init", "__new__", "__class", "__reduce",
    "__sub", "__deepcopy__", "__setstate__", "__sizeof__", "__del__", "__dir__", "__str__", "empty",
    "new", "resize", "set_",
)  # fmt: skip
"""Parts of names of methods that need another process, device or history, or leave memory unset."""
_UNSET = ("new", "new_empty")
_NO_FUNCTIONS = (
    "set_", "compile", "save", "load", "seed", "fork", "thread", "import", "init", "jit", "file",
    "export", "Storage", "distributed", "printoptions", "quantized_", "cudnn", "miopen", "mkldnn",
    "fbgemm", "hook", "vmap", "cond", "while_loop", "sym_", "empty", "prepare", "open", "exit",
    "quit", "input", "break", "exec", "eval", "help", "Error", "Warning", "Exception", "Exit",
    "Group", "Interrupt", "copyright", "credits", "license", "locals", "globals", "vars", "dir",
    "id", "memoryview", "print", "__",
)  # fmt: skip


def report(programs: int, seed: int, *, backend: str, dynamic: bool | None) -> int:
    """Compare `programs` calls, drawn from `seed`, with eager; prints those that differ."""
    draw, failures = random.Random(seed), 0
    methods, functions = _methods(), _functions()
    for _ in range(programs):
        text = _call(draw, methods, functions)
        difference = difference_of(text, backend=backend, dynamic=dynamic)
        if difference is not None:
            failures += 1
            print(f"{text}: {difference}", flush=True)
    print(f"{programs} programs, {failures} differ")
    return 1 if failures else 0


def difference_of(text: str, *, backend: str = "eager", dynamic: bool | None = None) -> str | None:
    """How an expression of x, y, i, b, m differs compiled, in a line; None if it does not."""
    function = eval(f"lambda x, y, i, b, m: {text}", dict(NAMES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = _result(function)
        compiled = flambeau.compile(function, backend=backend, dynamic=dynamic)
        try:
            same(_result(compiled), wanted)
        except AssertionError as error:
            return str(error).partition("\n")[0]
    return None


def _result(function: Any) -> Any:
    """What a call gives or raises, the arguments afterwards, and what is drawn next."""
    generator = torch.Generator().manual_seed(5)
    x, y, m = (torch.randn(shape, generator=generator) for shape in ((3,), (3,), (3, 3)))
    i, b = torch.tensor([2, 1, 0]), torch.tensor([True, False, True])
    torch.manual_seed(0)
    try:
        value = function(x, y, i, b, m)
    except Exception as error:
        return type(error), str(error)
    if not isinstance(value, (torch.Tensor, int, float, complex, str, tuple, list, dict)):
        value = type(value)
    return value, [x, y, m, i, b], torch.rand(2)


def _call(draw: random.Random, methods: list[str], functions: list[str]) -> str:
    if draw.random() < 0.5:
        receiver, name = draw.choice(RECEIVERS), draw.choice(methods)
        text = f"{receiver}.{name}({draw.choice(METHOD_ARGUMENTS)})"
        return text + ".fill_(1)" if name in _UNSET else text
    return f"{draw.choice(functions)}({draw.choice(FUNCTION_ARGUMENTS)})"


def _methods() -> list[str]:
    return [
        name
        for name in dir(torch.Tensor)
        if callable(getattr(torch.Tensor, name, None))
        and (name.startswith("__") or not name.startswith("_"))
        and not any(part in name for part in _NO_METHODS)
    ] + [*_UNSET, "new_tensor", "new_full", "new_zeros"]


def _functions() -> list[str]:
    named: list[str] = []
    for prefix, module in (
        ("torch.", torch),
        ("", builtins),
        ("operator.", operator),
        ("math.", math),
    ):
        named += [
            prefix + name
            for name, value in sorted(vars(module).items())
            if callable(value)
            and not name.startswith("_")
            and not (module is torch and isinstance(value, type))
            and not any(part in name for part in _NO_FUNCTIONS)
        ]
    return named
