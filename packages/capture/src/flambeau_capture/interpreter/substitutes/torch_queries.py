"""Module calls, and the questions that torch and libraries on it ask about compiling, tracing and symbolic sizes."""

from __future__ import annotations

import torch

from flambeau_capture.interpreter.modules import call_module
from flambeau_capture.interpreter.substitutes.registry import (
    answering,
    compiling,
    natively,
    substitute_for,
    substitute_if_new,
)

substitute_for(torch.nn.Module.__call__, torch.nn.Module._call_impl)(call_module)


substitute_for(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)(compiling)
for _module, _name, _answer in (
    (torch.jit, "is_scripting", answering(False)),
    (torch._jit_internal, "is_scripting", answering(False)),
    (torch._utils, "is_compiling", compiling),
):
    substitute_if_new(getattr(_module, _name, None), _answer)
for _name in (
    "sym_int",
    "sym_float",
    "sym_max",
    "sym_min",
    "sym_not",
    "sym_ite",
    "sym_sum",
    "sym_sqrt",
):
    _function = getattr(torch, _name, None)
    substitute_if_new(_function, natively(_function))

# Questions about the machine, whose answers last as long as the process.
for _module, _names in (
    (torch.cuda, ("is_available", "current_device", "device_count", "get_device_properties", "get_device_capability",
                  "get_device_name", "is_initialized", "is_bf16_supported", "is_built", "is_current_stream_capturing")),
    (torch.cuda.amp.common, ("amp_definitely_not_available",)),
    (torch.accelerator, ("is_available", "current_accelerator", "device_count", "current_device_index")),
    (torch.backends.mps, ("is_available", "is_built")),
    (torch.backends.cuda, ("is_built",)),
):  # fmt: skip
    for _name in _names:
        _function = getattr(_module, _name, None)
        substitute_if_new(_function, natively(_function))

substitute_for(torch.autograd.profiler.record_function.__enter__)(
    lambda machine, args, kwargs: args[0]
)
substitute_for(torch.autograd.profiler.record_function.__exit__)(answering(None))
