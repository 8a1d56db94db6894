"""States of torch: those that a capture may depend on, by name, and those that a program may set.

The usual ones are part of every entry's TORCH_STATE guard, which C reads in a few nanoseconds from
libtorch's thread-local words. Others cost a call each, so an entry guards only those that its frame
depends on (`Capture.torch_state`), by a STATE guard.

The switches that a captured program may set are grad mode, autocast, attention kernels, cuDNN's
flags and the default dtype. They are really set while the program is interpreted, and restored
afterwards. The entry sets what a frame leaves set after its graph has run; the graph itself
restores them.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch.utils._device import DeviceContext

_LAYERS = torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode
_is_included = torch._C._dispatch_tls_is_dispatch_key_included
_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded


def cudnn_flags() -> tuple[Any, ...]:
    """The flags of cuDNN, in the order in which `torch.backends.cudnn.set_flags` takes them."""
    return tuple(torch.backends.cudnn.set_flags(_fp32_precision=None))


def set_cudnn_flags(flags: tuple[Any, ...]) -> None:
    """Set them all; None leaves one as it is."""
    torch.backends.cudnn.set_flags(*flags)


@functools.cache
def _have_kernels_ordered() -> None:
    """Have torch order attention's kernels for this GPU, which it does once, when it first chooses
    one.
    """
    with (
        torch._C._DisableTorchDispatch(),
        torch._C.DisableTorchFunction(),
        contextlib.suppress(RuntimeError),  # the program's switches may leave no kernel
    ):
        query = torch.empty((1, 1, 64, 64), dtype=torch.float16, device="cuda")
        torch._fused_sdp_choice(query, query, query)


def order_of_kernels() -> list[int]:
    """The kernels of attention in the order in which eager tries them. Torch must not change it
    while a program is captured: a guard would hold the order of before, and the end of the capture
    would restore it, for good.
    """
    if torch.cuda.is_initialized():
        _have_kernels_ordered()
    return torch._C._get_sdp_priority_order()


_SWITCHES: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (torch._C._get_math_sdp_enabled, torch._C._set_sdp_use_math),
    (torch._C._get_flash_sdp_enabled, torch._C._set_sdp_use_flash),
    (torch._C._get_mem_efficient_sdp_enabled, torch._C._set_sdp_use_mem_efficient),
    (torch._C._get_cudnn_sdp_enabled, torch._C._set_sdp_use_cudnn),
    (torch._C._get_overrideable_sdp_enabled, torch._C._set_sdp_use_overrideable),
    (order_of_kernels, torch._C._set_sdp_priority_order),
    (cudnn_flags, set_cudnn_flags),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (torch.get_default_dtype, torch._C._set_default_dtype),
)
_DEVICES = ("cpu", "cuda")

Setting = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments: the call that sets a switch."""


class Switches:
    """The switches of this thread as they are now."""

    def __init__(self) -> None:
        self.values = [read() for read, _ in _SWITCHES]
        self.autocast = {
            device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in _DEVICES
        }

    @property
    def grad_enabled(self) -> bool:
        """Whether gradients are on."""
        return bool(self.values[0])

    def settings_from(self, other: Switches) -> Iterator[Setting]:
        """The calls that bring a thread from `other` to these."""
        for (_, write), value, before in zip(_SWITCHES, self.values, other.values, strict=True):
            if value != before:
                yield write, (value,)
        for device, (enabled, dtype) in self.autocast.items():
            enabled_before, dtype_before = other.autocast[device]
            if enabled != enabled_before:
                yield torch.set_autocast_enabled, (device, enabled)
            if dtype != dtype_before:
                yield torch.set_autocast_dtype, (device, dtype)

    def set_by(self, setters: Collection[Any]) -> list[Setting]:
        """The calls that set these values, of those switches alone that one of `setters` sets."""
        found: list[Setting] = [
            (write, (value,))
            for (_, write), value in zip(_SWITCHES, self.values, strict=True)
            if write in setters
        ]
        for device, (enabled, dtype) in self.autocast.items():
            if torch.set_autocast_enabled in setters:
                found.append((torch.set_autocast_enabled, (device, enabled)))
            if torch.set_autocast_dtype in setters:
                found.append((torch.set_autocast_dtype, (device, dtype)))
        return found

    def restore(self, autocast_nesting: int) -> None:
        """Restore what differs, and the autocast blocks that the frame entered or left."""
        for step, args in nesting_settings(-autocast_nesting):
            step(*args)
        for write, args in self.settings_from(Switches()):
            write(*args)


def nesting_settings(count: int) -> Iterator[Setting]:
    """The calls that enter `count` autocast blocks, or leave as many."""
    for _ in range(abs(count)):
        yield (
            (torch.autocast_increment_nesting if count > 0 else torch.autocast_decrement_nesting),
            (),
        )


# ---------------------------------------------------------------- states that are guarded


def function_modes() -> list[Any]:
    """This thread's torch function modes, the outermost first."""
    return [
        torch._C._get_function_stack_at(at) for at in range(torch._C._len_torch_function_stack())
    ]


def sees_no_program_mode() -> bool:
    """Whether every torch function mode is a `with torch.device(...)`, not the program's."""
    return all(type(mode) is DeviceContext for mode in function_modes())


def _transforms() -> bool:
    """Whether a functorch layer is active: it includes its key, or excludes it while it handles an
    operator. To look at the stack of layers would make one, which autograd's engine then copies
    for each node that it runs.
    """
    return _is_included(_LAYERS) or _is_excluded(_LAYERS)


def lets_capture() -> bool:
    """Whether this thread can capture: no functorch layer, forward-mode level, tracer, or mode of
    the program that would see capture's own calls is active.
    """
    return (
        torch._C._len_torch_dispatch_stack() == 0
        and not _transforms()
        and torch.autograd.forward_ad._current_level < 0
        and sees_no_program_mode()
    )


def attention_kernels() -> tuple[Any, ...]:
    """All that eager chooses the kernel of scaled_dot_product_attention by, besides its operands:
    the kernels that may be taken, which first, and whether results must be deterministic.
    """
    return (
        torch._C._get_math_sdp_enabled(),
        torch._C._get_flash_sdp_enabled(),
        torch._C._get_mem_efficient_sdp_enabled(),
        torch._C._get_cudnn_sdp_enabled(),
        torch._C._get_overrideable_sdp_enabled(),
        torch._C._get_math_sdp_allow_fp16_bf16_reduction(),
        torch.are_deterministic_algorithms_enabled(),
        tuple(order_of_kernels()),
    )


def _mode_key(mode: Any) -> Any:
    """The key of equal modes: the device, because each `with torch.device(...)` is new."""
    return str(mode.device) if type(mode) is DeviceContext else weakref.ref(mode)


DEFAULT_STRATEGY: dict[str, Callable[[], Any]] = {
    "grad_enabled": torch.is_grad_enabled,
    "inference_mode": torch.is_inference_mode_enabled,
    "dispatch_keys_included": lambda: torch._C._dispatch_tls_local_include_set().raw_repr(),
    "dispatch_keys_excluded": lambda: torch._C._dispatch_tls_local_exclude_set().raw_repr(),
    "torch_function_modes": torch._C._len_torch_function_stack,
    "default_dtype": torch.get_default_dtype,
    "forward_level": lambda: torch.autograd.forward_ad._current_level,
}


def process_groups() -> tuple[tuple[str, int, tuple[int, ...]], ...]:
    """(name, rank of this process, ranks of its members) of each process group."""
    if not torch.distributed.is_initialized():
        return ()
    world, rank = torch.distributed.distributed_c10d._world, torch.distributed.get_rank()
    return tuple(
        (name, rank, tuple(world.pg_group_ranks[group])) for group, name in world.pg_names.items()
    )


EXTRA: dict[str, Callable[[], Any]] = {
    "autocast_cpu_dtype": lambda: torch.get_autocast_dtype("cpu"),
    "autocast_cuda_dtype": lambda: torch.get_autocast_dtype("cuda"),
    "autocast_cache_enabled": torch.is_autocast_cache_enabled,
    "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "default_device": torch.get_default_device,
    "num_threads": torch.get_num_threads,
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "attention_kernels": attention_kernels,
    "cudnn_enabled": torch._C._get_cudnn_enabled,
    "cudnn_benchmark": torch._C._get_cudnn_benchmark,
    "cudnn_flags": cudnn_flags,
    "torch_function_mode_stack": lambda: tuple(map(_mode_key, function_modes())),
    "anomaly_mode": torch.is_anomaly_enabled,
}
if torch.distributed.is_available():
    EXTRA["process_groups"] = process_groups
if hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):
    EXTRA["saved_tensors_hooks"] = lambda: torch._C._autograd._top_saved_tensors_default_hooks(True)


@dataclass(frozen=True, slots=True)
class UsualState:
    """The usual states at one moment, and `words` for the C core (b"" without it)."""

    values: dict[str, Any]
    words: bytes = b""

    @classmethod
    def now(cls, words: bytes = b"") -> UsualState:
        """This thread's state."""
        return cls({name: read() for name, read in DEFAULT_STRATEGY.items()}, words)

    def differences(self) -> list[tuple[str, Any, Any]]:
        """(name, value then, value now) of every state that differs now."""
        now = {name: read() for name, read in DEFAULT_STRATEGY.items()}
        return [(name, then, now[name]) for name, then in self.values.items() if now[name] != then]


class ThreadState:
    """The state of this thread, for another thread that works for it."""

    def __init__(self) -> None:
        self._grad_enabled = torch.is_grad_enabled()
        self._inference_mode = torch.is_inference_mode_enabled()
        self._autocast = _autocast()
        self._devices = [mode.device for mode in function_modes()]
        self._all = _all_states()

    @contextlib.contextmanager
    def taken_over(self) -> Iterator[None]:
        """A block with this state in the present thread, whose function modes are devices."""
        before = _autocast()
        with contextlib.ExitStack() as stack:
            stack.callback(_set_autocast, before)
            _set_autocast(self._autocast)
            if torch.is_inference_mode_enabled() != self._inference_mode:
                stack.enter_context(torch.inference_mode(self._inference_mode))
            stack.enter_context(torch.set_grad_enabled(self._grad_enabled))
            for device in self._devices:
                stack.enter_context(torch.device(device))
            yield

    def difference(self) -> str:
        """A state that differs in the present thread, or ""."""
        now = _all_states()
        return next((name for name, value in self._all.items() if now[name] != value), "")


def _all_states() -> dict[str, Any]:
    return {name: read() for name, read in {**DEFAULT_STRATEGY, **EXTRA}.items()}


def _autocast() -> tuple[Any, ...]:
    devices = {
        device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in _DEVICES
    }
    return devices, torch.is_autocast_cache_enabled()


def _set_autocast(state: tuple[Any, ...]) -> None:
    devices, cache = state
    for device, (enabled, dtype) in devices.items():
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(cache)


def hooks_saved_tensors() -> bool:
    """Whether the program has default hooks on saved tensors, which only this thread calls."""
    read = EXTRA.get("saved_tensors_hooks")
    return read is not None and read() is not None


def implied_extras() -> list[str]:
    """Further states that matter now: autocast's dtypes, the function modes on the stack."""
    names = [
        f"autocast_{kind}_dtype" for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)
    ]
    if names:
        names.append("autocast_cache_enabled")
    if torch._C._len_torch_function_stack():
        names.append("torch_function_mode_stack")
    return names
