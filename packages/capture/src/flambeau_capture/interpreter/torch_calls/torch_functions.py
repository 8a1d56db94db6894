"""torch's own functions: which are recorded as one call, which only read torch's state, and which
set it.

Errors that torch raises on fake tensors say what they say eagerly: sizes by number, where the text
has symbols.

The size of tensor a (s1) must ...    ->    The size of tensor a (3) must ..., and a guard s1 == 3
"""

from __future__ import annotations

import functools
import re
import types
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from flambeau_capture.interpreter.substitute_registry import RECORDED
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.sources import CallOf, Constant
from flambeau_prims.sizes import as_int
from flambeau_prims.unsupported import DataDependent

if TYPE_CHECKING:
    from flambeau_capture.interpreter.protocols import Args, Kwargs, Recorder
    from flambeau_capture.interpreter.substitute_registry import Substitute
    from flambeau_prims.sizes import SizeEnv

_ANSWERED_NATIVELY = frozenset({
    "__len__", "__contains__", "__hash__", "__dir__", "is_shared", "__format__", "__repr__",
    "__iter__",
})  # fmt: skip


def _recorded_functions() -> dict[int, Substitute]:
    """torch's operators written in Python, each recorded as the one call that the program made."""
    found: dict[int, Substitute] = {}
    for module in (F, torch.functional):
        for value in vars(module).values():
            if type(value) is types.FunctionType and value.__module__ in (
                "torch.nn.functional",
                "torch.functional",
                "torch._jit_internal",
            ):
                found[id(value)] = functools.partial(_record_function, value)
    for name, value in vars(torch.Tensor).items():
        if type(value) is types.FunctionType and name not in _ANSWERED_NATIVELY:
            found[id(value)] = functools.partial(_record_method, name)
    return found


def _record_function(function: Any, machine: Recorder, args: Args, kwargs: Kwargs) -> Any:
    """One call; or the function's own calls where it takes what a graph cannot hold (a module, an
    enumeration) beside tensors, or looks at what a tensor holds.
    """
    tape = machine.tape
    given = (*args, *kwargs.values())
    if not all(map(tape.can_hold, given)) and any(isinstance(arg, torch.Tensor) for arg in given):
        return machine.interpret(function, args, kwargs)
    try:
        return tape.call_function(function, args, kwargs)
    except DataDependent:
        pass
    return machine.interpret(function, args, kwargs)


def _record_method(name: str, machine: Recorder, args: Args, kwargs: Kwargs) -> Any:
    return machine.tape.call_method(name, args, kwargs)


RECORDED.update(_recorded_functions())


# ---------------------------------------------------------------- builtins


def _operators() -> dict[int, Any]:
    """Functions written in C that compute on tensors."""
    found = {}
    for module in ("_VariableFunctions", "_nn", "_linalg", "_special", "_fft", "_nested"):
        namespace = getattr(torch._C, module)
        for name in dir(namespace):
            value = getattr(namespace, name)
            if type(value) is types.BuiltinFunctionType:
                found[id(value)] = value
    for name, value in vars(torch).items():
        if (
            type(value) is types.BuiltinFunctionType
            and getattr(torch._C._VariableFunctions, name, None) is not None
        ):
            found[id(value)] = value
    return found


_OPERATORS = _operators()

_READING_PREFIXES = (
    "is_", "_is_", "has_", "_has_", "get_", "_get_", "_len_", "_cuda_is", "_cuda_get",
)  # fmt: skip
_OTHER_READERS = (
    (
        torch,
        (
            "promote_types",
            "result_type",
            "can_cast",
            "is_floating_point",
            "is_complex",
            "is_signed",
            "is_same_size",
            "numel",
        ),
    ),
    (
        torch._C,
        ("_are_functorch_transforms_active", "_log_api_usage_once", "_accelerator_getAccelerator"),
    ),
    (
        torch._C._functorch,
        (
            "maybe_current_level",
            "peek_interpreter_stack",
            "is_functorch_wrapped_tensor",
            "is_batchedtensor",
            "is_gradtrackingtensor",
        ),
    ),
)


def _by_name(module: Any, names: tuple[str, ...]) -> dict[int, Any]:
    """The functions of a module that this version of torch has, by identity."""
    return {
        id(value): value for name in names if (value := getattr(module, name, None)) is not None
    }


def _readers() -> dict[int, Any]:
    found: dict[int, Any] = {}
    for name, value in vars(torch._C).items():
        if (
            type(value) is types.BuiltinFunctionType
            and name.startswith(_READING_PREFIXES)
            and id(value) not in _OPERATORS
        ):
            found[id(value)] = value
    for module, names in _OTHER_READERS:
        found |= _by_name(module, names)
    return found


_READERS = _readers()
"""C functions that only read: run natively, not recorded; the state that they read is guarded."""

_ATTENTION_SWITCHES = (
    "_set_sdp_use_flash",
    "_set_sdp_use_math",
    "_set_sdp_use_mem_efficient",
    "_set_sdp_use_cudnn",
    "_set_sdp_use_overrideable",
    "_set_sdp_priority_order",
)

_STATES = {
    "_get_deterministic_algorithms": "deterministic_algorithms",
    "are_deterministic_algorithms_enabled": "deterministic_algorithms",
    "_get_cudnn_enabled": "cudnn_enabled",
    "_get_cudnn_benchmark": "cudnn_benchmark", "get_num_threads": "num_threads",
    "is_autocast_cache_enabled": "autocast_cache_enabled", "is_anomaly_enabled": "anomaly_mode",
    "_get_float32_matmul_precision": "float32_matmul_precision",
    "_get_flash_sdp_enabled": "attention_kernels", "_get_math_sdp_enabled": "attention_kernels",
    "_get_mem_efficient_sdp_enabled": "attention_kernels",
    "_get_cudnn_sdp_enabled": "attention_kernels",
    "_get_overrideable_sdp_enabled": "attention_kernels",
    "_get_sdp_priority_order": "attention_kernels",
    "scaled_dot_product_attention": "attention_kernels",
    # A program that sets a switch and then calls depends on the others only, but one state is
    # simpler than six.
    **dict.fromkeys(_ATTENTION_SWITCHES, "attention_kernels"),
}  # fmt: skip
"""The state (torch_state.py) that a C function reads, beyond what every entry guards."""

_OF_USUAL_STATE = frozenset({
    "is_grad_enabled", "is_inference_mode_enabled", "get_default_dtype", "is_autocast_enabled",
    "is_autocast_cpu_enabled", "_is_any_autocast_enabled", "_is_torch_function_enabled",
    "_is_torch_function_all_disabled", "_is_torch_function_mode_enabled",
    "_get_torch_function_state", "_len_torch_function_stack", "_len_torch_dispatch_stack",
    "_get_tracing_state", "_is_tracing", "_are_functorch_transforms_active", "maybe_current_level",
    "peek_interpreter_stack", "_get_function_stack_at", "_get_dispatch_stack_at",
    "_get_dispatch_mode",
})  # fmt: skip
"""Readers whose results follow from the state that every entry guards."""

_OF_THE_BUILD = frozenset({
    "promote_types", "result_type", "can_cast", "_log_api_usage_once", "_has_distributed",
    "_has_storage", "_get_all_dtypes", "_get_schema", "_get_operation_overload",
    "_is_autocast_available", "_is_flash_attention_available", "_is_xnnpack_enabled",
    "_get_privateuse1_backend_name", "_get_cpu_capability", "_accelerator_getAccelerator",
    "_get_accelerator",
})  # fmt: skip
"""Readers whose results depend on their arguments, and on how torch was built, alone."""

_GUARDED_RESULTS = (bool, int, str, type(None), torch.dtype)


def _read(machine: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """A reader's result, guarded if it is of a setting that nothing else guards."""
    result = function(*args, **kwargs)
    name = function.__name__
    named = name in _STATES or name in _OF_USUAL_STATE or name in _OF_THE_BUILD
    constants = not kwargs and all(type(arg) in _GUARDED_RESULTS for arg in args)
    if not named and constants and type(result) in _GUARDED_RESULTS:
        machine.guard("EQUALS", CallOf(function, tuple(map(Constant, args))), result)
    return result


SETTERS = _by_name(
    torch._C,
    (
        "_set_grad_enabled",
        "set_autocast_enabled",
        "set_autocast_dtype",
        "set_autocast_cache_enabled",
        "set_autocast_cpu_enabled",
        "set_autocast_cpu_dtype",
        "set_autocast_gpu_dtype",
        "autocast_increment_nesting",
        "autocast_decrement_nesting",
        "clear_autocast_cache",
        "_set_default_dtype",
        *_ATTENTION_SWITCHES,
    ),
)
"""C functions that set a state of torch: run for real, recorded, undone when the capture ends."""


def is_operator(function: Any) -> bool:
    """Whether a function is one of torch's operators written in C."""
    return id(function) in _OPERATORS


def is_torch_builtin(function: Any) -> bool:
    """Whether a C function is one of torch's, known here."""
    key = id(function)
    return key in _OPERATORS or key in _READERS or key in SETTERS


def call_builtin(machine: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """A call of a C function of torch."""
    key = id(function)
    state = _STATES.get(function.__name__)
    if state is not None:
        machine.depend_on_state(state)
    if key in SETTERS:
        return machine.tape.call_state(function, args, kwargs)
    if key in _READERS:
        return _read(machine, function, args, kwargs)
    return machine.tape.call_function(function, args, kwargs)


# ---------------------------------------------------------------- error texts


def _expression(depth: int) -> str:
    """A pattern of sums and products of numbers and symbols, so many parentheses deep."""
    term = r"-?(?:\d+|[su]\d+)(?:\*\*\d+)?"
    if depth:
        term = rf"(?:{term}|-?\({_expression(depth - 1)}\))"
    return rf"{term}(?:(?: \+ | - |\*|//|%){term})*"


_EXPRESSION = re.compile(rf"(?:(?<![\w.])|(?<=\dx)){_expression(3)}(?=x[su]?\d|(?!\w|\.\d))")
"""Also in the shape of a matrix, `s0x3`."""
_OPAQUE = re.compile(r"\((?:[^()]|\(.*\))*(?://|%)(?:[^()]|\(.*\))*\)")
"""A division, which is printed in parentheses; other parentheses are the text's."""
_SYMBOL = re.compile(r"(?:\b|(?<=\dx))[su]\d+(?=\b|x)")
_PRINTS_DATA = "its data is not allocated yet"


def as_eager(error: Exception, env: SizeEnv | None) -> None:
    """Give an error its eager text, which the program may read; GraphBreak if it shows a tensor."""
    text = error.args[0] if len(error.args) == 1 else None
    if not isinstance(text, str):
        return
    if _PRINTS_DATA in text:
        raise GraphBreak("data-dependent", "a torch function raises an error that shows a tensor")
    if env is None or not any(name in env.symbols for name in _SYMBOL.findall(text)):
        return
    error.args = (_EXPRESSION.sub(lambda match: _in_numbers(match.group(), env), text),)


def _in_numbers(expression: str, env: SizeEnv) -> str:
    values = {
        name: as_int(env.bare_symbol(name))
        for name in _SYMBOL.findall(expression)
        if name in env.symbols
    }
    if not values or len(values) < len(set(_SYMBOL.findall(expression))):
        return expression
    number = str(eval(expression, {"__builtins__": {}}, values))
    is_the_texts = expression.startswith("(") and not _OPAQUE.fullmatch(expression)
    return f"({number})" if is_the_texts and expression.endswith(")") else number
