"""What a compile will need is started before it is needed: the compiler of GPU kernels, while a
frame is still captured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flambeau_prims.lazy_exports import import_apart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flambeau_capture.options import CaptureOptions
    from flambeau_capture.record import Break, Capture, CaptureFrame, DynamicDims
    from flambeau_capture.sources import Scope


def expecting_kernels(capture_frame: CaptureFrame) -> CaptureFrame:
    """The same, which first starts the compiler of kernels for the GPUs that a call's arguments are
    on.
    """

    def capture(scope: Scope, options: CaptureOptions, dynamic: DynamicDims) -> Capture | Break:
        if torch.cuda.is_initialized():
            tensors = (one for argument in scope.arguments for one in _plain_tensors(argument))
            for device in {one.device for one in tensors if one.is_cuda}:
                import_apart("flambeau_runtime.cuda").expect_kernels(device)
        return capture_frame(scope, options, dynamic)

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
        parameters = (one for module in argument.modules() for one in module._parameters.values())
        for one in parameters:
            if one is not None:
                yield from _plain_tensors(one)
                return
