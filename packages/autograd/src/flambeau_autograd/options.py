"""AutogradOptions: what a caller may choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class AutogradOptions:
    """How `aot` prepares graphs.

    `decompose`: hand out graphs of primitives and extern ATen calls; otherwise graphs of functional
    ATen. `partition`: "min_cut" saves what is smallest and recomputes the rest where that is cheap;
    "save_all" saves whatever the backward reads, as eager does. `compile_backward_lazily`: call the
    compiler on the backward graph at the first backward, not in `aot`, also if it has one tangent.
    `recompute_chain`, `recompute_span`: min_cut recomputes no value more than this many fusible
    steps from a saved one, and none whose forward uses lie further apart than this many nodes.
    `activation_memory_budget`: min_cut saves this share of the bytes that it would save, from 0.0
    to 1.0, and recomputes more (`memory_budget.py`). `channels_last`: run convolutions, and what
    lies between them, in channels-last layout (with `decompose` only). `shape_padding`: pad
    matrices in half precision on a GPU whose sizes are no multiples of 8, where products gain by it
    (with `decompose` only). `fuse_attention`: compute attention that the program writes out by the
    kernels of scaled_dot_product_attention (with `decompose` only). `freezing`: compute once what
    depends on parameters and buffers only, in graphs without a backward (with `decompose` only).
    `max_autotune`, `max_autotune_gemm`: the compiler measures in which order kernels on a CPU read
    frozen factors of products, and orders them itself. `integer_products`: compute products of
    quantised matrices on a CPU in integers, in graphs without a backward (with `decompose` only);
    None: as the backend knows to be faster, else not. `check`: run the border checker after each
    pass. `numerics`: "strict" leaves pointwise operators to ATen whose primitives may differ from
    eager by a bit, and leaves out what computes pointwise chains in another way (with `decompose`
    only).
    """

    decompose: bool = True
    partition: Literal["min_cut", "save_all"] = "min_cut"
    compile_backward_lazily: bool = False
    recompute_chain: int = 24
    recompute_span: int = 100
    activation_memory_budget: float = 1.0
    channels_last: bool = True
    shape_padding: bool = True
    fuse_attention: bool = True
    freezing: bool = False
    max_autotune: bool = False
    max_autotune_gemm: bool = False
    integer_products: bool | None = None
    check: bool = False
    numerics: Literal["fast", "strict"] = "fast"

    def __post_init__(self) -> None:
        if not 0 <= self.activation_memory_budget <= 1:
            raise ValueError(
                "option 'activation_memory_budget' takes a number from 0.0 to 1.0, not "
                f"{self.activation_memory_budget!r}"
            )

    @property
    def strict(self) -> bool:
        """Whether pointwise chains are bitwise equal to eager's."""
        return self.numerics == "strict"
