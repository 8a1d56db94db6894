"""Models traced once with symbolic sizes: at other sizes that the guards admit, each rule still
says what it said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from models import MODELS, first_tensor
from rules.at_sizes import OPERATORS, at_sizes
from rules.compare import describe

from flambeau_prims.fake import fake_like
from flambeau_prims.function_table import FunctionTable
from flambeau_prims.rules.registry import infer
from flambeau_prims.sizes import Expr, SizeEnv
from flambeau_prims.tracer import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable


def trace(
    name: str, inputs: tuple[torch.Tensor, ...], dims: tuple[int, ...], env: SizeEnv | None
) -> Tracer:
    """A training step on inputs of which `dims` are symbolic if there is an env; equal dims share a
    symbol.
    """
    torch.manual_seed(0)
    module, _ = MODELS[name]()
    tracer = Tracer(env)
    for submodule in module.modules():
        for table in (submodule._parameters, submodule._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    table[key] = tracer.adopt(fake_like(tensor, env, {}))
    module.train()
    symbols: dict[int, Expr] = {}
    fakes = []
    for real in inputs:
        chosen: dict[int, Any] = {}
        for dim in dims if env is not None else ():
            if dim < real.ndim:
                if dim not in symbols:
                    symbols[dim] = env.symbol(real.shape[dim], f"input.shape[{dim}]")
                chosen[dim] = symbols[dim]
        fakes.append(tracer.adopt(fake_like(real, env, chosen)))
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        with FunctionTable(), tracer:
            loss = first_tensor(module(*fakes)).sum()
            torch.autograd.Variable._execution_engine.run_backward(
                (loss,),
                (torch.ones_like(loss),),
                False,
                False,
                (),
                allow_unreachable=True,
                accumulate_grad=True,
            )
    finally:
        torch.compiler._is_compiling_flag = before
    return tracer


def _tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, 90, (batch, length))


CASES: dict[str, tuple[tuple[int, ...], Callable[[int, int], tuple[torch.Tensor, ...]]]] = {
    "bert": ((0, 1), lambda b, n: (_tokens(b, n), torch.ones(b, n, dtype=torch.int64))),
    "gpt2": ((0, 1), lambda b, n: (_tokens(b, n),)),
    "llama": ((0, 1), lambda b, n: (_tokens(b, n),)),
    "t5": ((0, 1), lambda b, n: (_tokens(b, n), _tokens(b, n))),
    "resnet": ((0, 2, 3), lambda b, n: (torch.randn(b, 3, 8 * n, 8 * n + 3),)),
    "mobilenet": ((0, 2, 3), lambda b, n: (torch.randn(b, 3, 4 * n, 4 * n + 1),)),
    "vit": ((0,), lambda b, n: (torch.randn(b, 3, 32, 32),)),
    "convnext": ((0,), lambda b, n: (torch.randn(b, 3, 32, 32),)),
}


@pytest.mark.parametrize("name", CASES)
def test_one_symbolic_trace_serves_other_sizes(name: str) -> None:
    """Same operators, and Specs that agree when evaluated, at every size that the guards admit."""
    dims, make = CASES[name]
    env = SizeEnv()
    symbolic = trace(name, make(2, 8), dims, env)
    names = list(env.symbols)
    served = 0
    for batch, length in ((3, 8), (2, 11), (5, 13), (4, 6)):
        sizes = (make(batch, length)[0].shape[dim] for dim in dims)
        values = dict(zip(names, sizes, strict=True))
        if not all(
            OPERATORS[guard.op](env.evaluate(guard.lhs, values), env.evaluate(guard.rhs, values))
            for guard in env.guards
        ):
            continue
        served += 1
        for node in symbolic.nodes:
            args = at_sizes(node.args, env, values)
            kwargs = {key: at_sizes(arg, env, values) for key, arg in node.kwargs.items()}
            exact = infer(node.op, args, kwargs)
            exact = list(exact) if isinstance(exact, (tuple, list)) else [exact]
            traced = [
                at_sizes(None if out is None else out.spec, env, values) for out in node.outputs
            ]
            assert describe(traced) == describe(exact[: len(traced)]), (node, values)
    assert served >= 2, [str(guard) for guard in env.guards]


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_transformers_need_no_guard_but_a_positive_size(name: str) -> None:
    """Batch and length of a transformer's training step are free, up to BERT's and GPT2's table of
    positions.
    """
    dims, make = CASES[name]
    env = SizeEnv()
    trace(name, make(2, 8), dims, env)
    assert {str(guard) for guard in env.guards} <= {"s0 >= 2", "s1 >= 2", "s1 <= 64"}
