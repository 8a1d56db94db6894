"""Substitutes of functions whose native form sees too little or does too much.

These are introspection, attribute access, callbacks, output, and the functions by which libraries
ask whether they are being compiled. May use branches and exit, and what these use; not opcodes.
"""

from __future__ import annotations

from flambeau_capture.interpreter.substitute_registry import CODE_SUBSTITUTES, SUBSTITUTES
from flambeau_capture.interpreter.substitutes import (
    autograd,
    class_making,
    collectives,
    compiler_functions,
    composites,
    control_flow,
    copying,
    dispatch,
    evaluation,
    forward_mode,
    fused_optimizers,
    higher_order,
    introspection,
    iterables,
    lazy_modules,
    modules,
    numbers,
    output,
    packed_sequences,
    random,
    recurrent_networks,
    references,
    tensors,
    threads,
    torch_state,
    transforms,
    triton_kernels,
)
from flambeau_capture.interpreter.substitutes.compiler_functions import (
    dynamo_substitute,
    user_overrides,
)

__all__ = [
    "CODE_SUBSTITUTES", "SUBSTITUTES", "autograd", "class_making", "collectives",
    "compiler_functions", "composites", "control_flow", "copying", "dispatch",
    "dynamo_substitute", "evaluation", "forward_mode", "fused_optimizers", "higher_order",
    "introspection", "iterables", "lazy_modules", "modules", "numbers", "output",
    "packed_sequences", "random", "recurrent_networks", "references", "tensors", "threads",
    "torch_state", "transforms", "triton_kernels", "user_overrides",
]  # fmt: skip
