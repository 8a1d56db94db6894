"""Why a graph is not given to an engine, as data: one exception class a reason."""

from __future__ import annotations

from flambeau_prims.unsupported import Unsupported


class EngineRefuses(Unsupported):
    """The engine that was named as the backend (ONNX Runtime, OpenVINO, TVM, TensorRT, XLA) has no
    form for an operator or dtype of the graph, or cannot run on its device.
    """

    reason = "engine-refuses"
    hint = 'backend="inductor" (the default) compiles the graph'


class EngineRandom(Unsupported):
    """The graph draws random numbers, and an engine's generator is not eager's."""

    reason = "engine-random"
    hint = (
        'draw outside of the compiled function, or use backend="inductor", which draws as eager '
        "does"
    )


REASONS = {kind.reason: kind for kind in (EngineRefuses, EngineRandom)}
