"""Lower convolutions that `flambeau_prims.winograd` knows to two kernels of our own: one transforms
the weights, one convolves.

y = aten.convolution.default(x, w, b, [1, 1], [1, 1], ...)
->  buf0 = extern flambeau.winograd_weights(w, False)
    buf1 = extern flambeau.winograd_convolution(x, buf0, w, b, 1, 1, False)

Where the weights do not change between calls, the first is one of the steps that `prepare` takes
out of the calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau_inductor.nodes import ExternCall, TensorRef

if TYPE_CHECKING:
    from flambeau_prims.graph import Node
    from flambeau_prims.winograd import WinogradConvolution

WEIGHTS, CONVOLUTION = "flambeau.winograd_weights", "flambeau.winograd_convolution"
PRODUCTS = 16
"""Products of a pair of channels, for 2 x 2 pixels."""


def lower_winograd(lowering: Any, node: Node, call: WinogradConvolution) -> None:
    """Append the two calls. `lowering` is the `_GraphLowering`, whose module imports this one."""
    weight, outputs = lowering.tensor(call.weight), call.out.spec.shape[1]
    count = PRODUCTS * outputs * call.x.spec.shape[1]
    transformed = lowering.make_unnamed(call.weight.spec.fresh((count,)))
    operands = [lowering.tensor(call.x), transformed, weight]
    if call.bias is not None:
        operands.append(lowering.tensor(call.bias))
    settings = (*call.padding, call.transposed)
    _append(lowering, node, WEIGHTS, (weight, call.transposed), transformed.buffer)
    result = lowering.make(call.out)
    _append(lowering, node, CONVOLUTION, (*operands, *settings), result)


def _append(lowering: Any, node: Node, op: str, args: tuple[Any, ...], result: str) -> None:
    nodes = lowering.lowered.nodes
    reads = {arg.buffer for arg in args if isinstance(arg, TensorRef)}
    out = (("out", result),)
    nodes.append(ExternCall(len(nodes), op, args, {}, (), out, reads, "cpu", where=node.where))
