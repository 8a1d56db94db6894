"""Find what oneDNN's linear operator can compute together with the product: its post-operations.

nest mul_add_erf: buf0 -> buf1, (0.5 * x) * (erf(0.707 * x) + 1) of each element  ->  "gelu", "none"

The formulas are those that ATen's operators decompose to. ReLU is none of them: oneDNN's makes 0 of
a NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau_inductor.ir import Compute, Constant, Load, Store
from flambeau_inductor.nodes import LoopNest

if TYPE_CHECKING:
    from flambeau_inductor.ir import Body
    from flambeau_inductor.nodes import Node

ROOT_HALF = 0.7071067811865476
ROOT_TWO_BY_PI = 0.7978845608028654

EPILOGUES = {
    f"mul(mul(x, 0.5), add(erf(mul(x, {ROOT_HALF})), 1.0))": ("gelu", "none"),
    (
        "mul(mul(x, 0.5), add(tanh(mul(add(x, mul(mul(mul(x, x), x), 0.044715)), "
        f"{ROOT_TWO_BY_PI})), 1.0))"
    ): ("gelu", "tanh"),
    "div(x, add(exp(neg(x)), 1.0))": ("swish", ""),
    "tanh(x)": ("tanh", ""),
}
"""Formula -> oneDNN's name, and the variant."""


def onednn_epilogue(node: Node, source: str, target: str) -> tuple[str, str] | None:
    """The post-operation that a nest is which computes all of `target` from the elements of
    `source` at the same places; None if it is none.
    """
    if not isinstance(node, LoopNest) or node.inner or node.reads != {source}:
        return None
    if node.writes != {target} or len(node.loads[source]) != 1 or len(node.stores[target]) != 1:
        return None
    (load,), (store,) = node.loads[source], node.stores[target]
    if not isinstance(load, Load) or load.mask is not None or store.mask is not None:
        return None
    if store.mode or load.index != store.index:
        return None
    return EPILOGUES.get(formula(node.body, load, store))


def formula(body: Body, load: Load, store: Store) -> str:
    """What is stored, as text over x, which is loaded. Conversions of x and of the result, from and
    to the dtype of the memory, are left out; "" if there are others, or statements of other kinds.
    """
    texts = {load.name: "x"}
    for statement in body:
        match statement:
            case Constant():
                texts[statement.name] = repr(statement.value)
            case Compute(op="cast") if statement.args == (load.name,):
                texts[statement.name] = "x"
            case Compute(op="cast") if statement.name == store.value:
                if statement.dtype is not load.dtype:
                    return ""
                texts[statement.name] = texts[statement.args[0]]
            case Compute():
                arguments = ", ".join(texts[name] for name in statement.args)
                texts[statement.name] = f"{statement.op}({arguments})"
            case Load() | Store() if statement in (load, store):
                pass
            case _:
                return ""
    return texts[store.value]
