"""What stands in for functions whose native form would see too little or do too much: introspection, attribute access,
callbacks, output, and the questions by which libraries ask whether they are being compiled.
"""

from __future__ import annotations

from flambeau_capture.interpreter.substitutes import (
    autograd_function,
    class_making,
    copying,
    introspection,
    iterables,
    numbers,
    operators,
    optimizers,
    output,
    torch_queries,
    transforms,
)
from flambeau_capture.interpreter.substitutes.registry import CODE_SUBSTITUTES, SUBSTITUTES
from flambeau_capture.interpreter.substitutes.torch_queries import dynamo_substitute

__all__ = [
    "CODE_SUBSTITUTES",
    "SUBSTITUTES",
    "autograd_function",
    "class_making",
    "copying",
    "dynamo_substitute",
    "introspection",
    "iterables",
    "numbers",
    "operators",
    "optimizers",
    "output",
    "torch_queries",
    "transforms",
]
