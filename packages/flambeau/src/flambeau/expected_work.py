"""What a compile will need is started before it is needed, while a frame is still captured: the
compiler of GPU kernels, and C++ kernels that one look at a module tells.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from flambeau_prims.lazy_exports import import_apart

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flambeau.options import Options
    from flambeau_capture.options import CaptureOptions
    from flambeau_capture.record import Break, Capture, CaptureFrame, DynamicDims
    from flambeau_capture.sources import Scope


def expecting_kernels(capture_frame: CaptureFrame, options: Options) -> CaptureFrame:
    """The same, which first starts the compiler of kernels for the GPUs that a call's arguments are
    on, and the build of the kernels of its LSTMs.
    """

    def capture(
        scope: Scope, capture_options: CaptureOptions, dynamic: DynamicDims
    ) -> Capture | Break:
        if torch.cuda.is_initialized():
            tensors = (one for argument in scope.arguments for one in _plain_tensors(argument))
            for device in {one.device for one in tensors if one.is_cuda}:
                import_apart("flambeau_runtime.cuda").expect_kernels(device)
        weights = [one for argument in scope.arguments for one in _lstm_weights(argument)]
        if weights:
            _build_lstm_kernels(weights, options)
        return capture_frame(scope, capture_options, dynamic)

    return capture


def _plain_tensors(argument: Any) -> Iterator[torch.Tensor]:
    """An argument that is a tensor, those in a tuple or a list, a module's first parameter. Of
    subclasses none, since these may run code of the program.
    """
    if type(argument) in (torch.Tensor, torch.nn.Parameter):
        yield argument
    elif type(argument) in (tuple, list):
        yield from (one for one in argument if type(one) in (torch.Tensor, torch.nn.Parameter))
    else:
        for module in _submodules(argument):
            for one in _registered(module, "_parameters").values():
                if one is not None:
                    yield from _plain_tensors(one)
                    return


def _submodules(argument: Any) -> Iterator[nn.Module]:
    """A module and those below it, each once; none of another object. This runs no code of the
    program: classes may override `modules`, and a module may not be initialised yet.
    """
    pending, seen = [argument], set()
    while pending:
        module = pending.pop()
        if issubclass(type(module), nn.Module) and id(module) not in seen:
            seen.add(id(module))
            yield module
            pending += reversed(_registered(module, "_modules").values())


def _registered(module: nn.Module, registry: str) -> dict[str, Any]:
    """What a module has in a registry that is a plain dictionary."""
    values = object.__getattribute__(module, "__dict__").get(registry)
    return values if type(values) in (dict, OrderedDict) else {}


def _lstm_weights(argument: Any) -> Iterator[nn.Parameter]:
    """A weight of states of each LSTM in a module that oneDNN, or kernels of our own, compute on a
    CPU.
    """
    if not torch._C._get_mkldnn_enabled():
        return
    for module in _submodules(argument):
        if type(module) is nn.LSTM and not vars(module).get("proj_size"):
            weight = _registered(module, "_parameters").get("weight_hh_l0")
            if type(weight) is not nn.Parameter or weight.dtype is not torch.float32:
                continue
            if weight.is_cpu and weight.dim() == 2:
                yield weight


def _build_lstm_kernels(weights: Sequence[nn.Parameter], options: Options) -> None:
    """Begin to build the kernels of layers that are computed by them whatever they are given. Their
    texts are the same for all sizes.
    """
    most = import_apart("flambeau_inductor.graph_passes.split_lstm").MOST_HIDDEN
    weights = [weight for weight in weights if weight.shape[1] <= most]
    if not weights or torch.is_autocast_enabled("cpu"):
        return
    trains = torch.is_grad_enabled() and any(weight.requires_grad for weight in weights)
    sources = import_apart("flambeau_inductor.codegen.cpp.lstm").layer_sources
    texts = [source.text for source in sources(trains, options.inductor.threads)]
    import_apart("flambeau_runtime.build.cpp").build_ahead(texts, options.runtime)
