"""What stands in for functions whose native form would see too little or do too much: introspection, attribute access,
callbacks, output, and the questions by which libraries ask whether they are being compiled.
"""

from __future__ import annotations

from flambeau_capture.interpreter.substitutes import (
    autograd_function,
    autograd_grad,
    checkpointing,
    checks,
    class_making,
    compiler_functions,
    control_flow,
    conversions,
    copying,
    functional,
    introspection,
    iterables,
    numbers,
    numpy_tensors,
    operators,
    optimizers,
    ordered_lists,
    output,
    plain_data,
    subclassing,
    torch_queries,
    torch_states,
    transforms,
)
from flambeau_capture.interpreter.substitutes.compiler_functions import dynamo_substitute, told
from flambeau_capture.interpreter.substitutes.registry import CODE_SUBSTITUTES, SUBSTITUTES

__all__ = [
    "CODE_SUBSTITUTES",
    "SUBSTITUTES",
    "autograd_function",
    "autograd_grad",
    "checkpointing",
    "checks",
    "class_making",
    "compiler_functions",
    "control_flow",
    "conversions",
    "copying",
    "dynamo_substitute",
    "functional",
    "introspection",
    "iterables",
    "numbers",
    "numpy_tensors",
    "operators",
    "optimizers",
    "ordered_lists",
    "output",
    "plain_data",
    "subclassing",
    "told",
    "torch_queries",
    "torch_states",
    "transforms",
]
