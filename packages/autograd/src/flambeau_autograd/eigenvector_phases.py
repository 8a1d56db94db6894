"""Check, in a traced backward, that a loss does not depend on the phases of complex eigenvectors.

    values, vectors = torch.linalg.eig(x); loss = vectors.real.sum()
      ->  backward:  close = (imag(diagonal(vectors^H @ gradient)).abs() <= 0.01).all()
                     _assert_async(close, "linalg_eig_backward: The eigenvectors ...")

An eigenvector times `e^{i phi}` is one as well, so the gradient of such a loss means nothing, and
eager raises. Torch's C++ code looks at the data only if these are plain tensors: it checks nothing
while fake ones are traced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_FUNCTIONS = {
    "LinalgEigBackward0": "linalg_eig_backward",
    "LinalgEighBackward0": "linalg_eigh_backward",
}
"""How errors call the backward of a node of autograd."""

_MOST = 1e-2
"""The largest imaginary part of `diagonal(vectors^H @ gradient)` that eager takes for zero."""

_TEXT = (
    "{}: The eigenvectors in the complex case are specified up to multiplication by e^{{i phi}}. "
    "The specified loss function depends on this quantity, so it is ill-defined."
)


def phase_check(node: Any) -> Callable[[Any], None] | None:
    """A hook before a node of autograd that appends the check to the tape; None if it has none."""
    function = _FUNCTIONS.get(node.name())
    if function is None:
        return None

    def check(gradients: Any) -> None:
        vectors, gradient = node._saved_eigenvectors, gradients[1]
        if gradient is None or not vectors.is_complex():
            return
        products = (vectors.conj() * gradient).sum(-2)
        close = (products.imag.abs() <= _MOST).all()
        # On a GPU, a failed assertion would end the process's use of it.
        torch._assert_async(close.cpu(), _TEXT.format(function))

    return check
