"""What a compile will need is started before it is needed, while a frame is still captured: the
compiler of GPU kernels, and C++ kernels that one look at a module tells.
"""

from __future__ import annotations

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
        lstms = [one for argument in scope.arguments for one in _plain_lstms(argument)]
        if lstms:
            _build_lstm_kernels(lstms, options)
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
    elif isinstance(argument, torch.nn.Module):
        parameters = (one for module in _modules(argument) for one in module._parameters.values())
        for one in parameters:
            if one is not None:
                yield from _plain_tensors(one)
                return


def _plain_lstms(argument: Any) -> Iterator[nn.LSTM]:
    """The LSTMs of a module that oneDNN, or kernels of our own, compute on a CPU."""
    if not isinstance(argument, nn.Module) or not torch._C._get_mkldnn_enabled():
        return
    for module in _modules(argument):
        if type(module) is nn.LSTM and not module.proj_size:
            weight = module._parameters.get("weight_hh_l0")
            if type(weight) is nn.Parameter and weight.dtype is torch.float32 and weight.is_cpu:
                yield module


def _modules(module: nn.Module) -> Iterator[nn.Module]:
    """A module and those in it, none of one that is being made; `modules()` may be code of the
    program.
    """
    pending, seen = [module], set[int]()
    while pending:
        module = pending.pop()
        children = module.__dict__.get("_modules")
        if children is not None and id(module) not in seen:
            seen.add(id(module))
            yield module
            pending += [child for child in reversed(children.values()) if child is not None]


def _build_lstm_kernels(lstms: Sequence[nn.LSTM], options: Options) -> None:
    """Begin to build the kernels of layers that are computed by them whatever they are given. Their
    texts are the same for all sizes.
    """
    most = import_apart("flambeau_inductor.graph_passes.split_lstm").MOST_HIDDEN
    lstms = [lstm for lstm in lstms if lstm.hidden_size <= most]
    if not lstms or torch.is_autocast_enabled("cpu"):
        return
    trains = torch.is_grad_enabled() and any(lstm.weight_hh_l0.requires_grad for lstm in lstms)
    sources = import_apart("flambeau_inductor.codegen.cpp.lstm").layer_sources
    texts = [source.text for source in sources(trains, options.inductor.threads)]
    import_apart("flambeau_runtime.build.cpp").build_ahead(texts, options.runtime)
