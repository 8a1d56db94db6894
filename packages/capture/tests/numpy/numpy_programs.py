"""Functions of NumPy arrays, by name, each captured whole and equal to NumPy's own result: value,
type, dtype, shape, memory order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Program = Callable[..., Any]


def normalise(x: Any, y: Any) -> Any:
    """The function of NumPy's part of torch.compile's tutorial: normalise, outer product, clip,
    exponential, regularise.
    """
    x = x / np.linalg.norm(x, axis=0)
    z = np.clip(np.outer(y, y), -1, 1)
    w = np.exp(-np.abs(x)).mean(axis=1)
    x[x < 0.1] = 0
    x += 1
    return x, z, w + 0.1 * (w**2).sum()


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def cluster(x: Any) -> Any:
    """A step of k-means."""
    centres = x[:2].copy()
    nearest = np.argmin(((x[:, None] - centres[None]) ** 2).sum(-1), axis=1)
    for k in range(2):
        member = (nearest == k)[:, None]
        centres[k] = np.where(member, x, 0).sum(0) / np.maximum(member.sum(), 1)
    return centres, nearest


def orthonormal(x: Any) -> Any:
    """Gram-Schmidt."""
    rows: list[Any] = []
    for row in x:
        for other in rows:
            row = row - other * (row @ other)
        rows.append(row / np.linalg.norm(row))
    return np.stack(rows)


def moving_average(x: Any) -> Any:
    total = np.cumsum(x, axis=1)
    return (total[:, 3:] - total[:, :-3]) / 3


def guarded_logarithm(x: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.log(x))


WHOLE: dict[str, Program] = {
    "softmax": softmax,
    "standardise": lambda x: (x - x.mean(0)) / (x.std(0) + 1e-8),
    "distances": lambda x: np.sqrt(((x[:, None, :] - x[None, :, :]) ** 2).sum(-1)),
    "cluster": cluster,
    "orthonormal": orthonormal,
    "moving_average": moving_average,
    "guarded_logarithm": guarded_logarithm,
    "norms": lambda x: (
        np.linalg.norm(x),
        np.linalg.norm(x, axis=1),
        np.linalg.norm(x, np.inf, axis=0),
        np.linalg.norm(x, "fro"),
    ),
    "products": lambda x: (
        x @ x.T,
        x.dot(x[0]),
        x[0] @ x[1],
        np.inner(x, x),
        np.vdot(x, x),
        np.tensordot(x, x, [[1], [1]]),
    ),
    "kron_cross": lambda x: (np.kron(x[:2, :2], x[:2, :2]), np.cross(x[:, :3], x[:, -3:])),
    "einsum": lambda x: (
        np.einsum("ij,kj->ik", x, x),
        np.einsum("ij->j", x),
        np.einsum("ij,ij", x, x),
    ),
    "joins": lambda x: (
        np.stack([x, x], -1),
        np.vstack([x, x]),
        np.hstack([x, x]),
        np.concatenate([x, x], 1),
        np.dstack([x, x]),
    ),
    "splits": lambda x: (
        np.split(x, 2, axis=1),
        np.array_split(x, 3),
        np.tile(x, (2, 1)),
        np.repeat(x, 2, 0),
    ),
    "pads": lambda x: (
        np.pad(x, 1),
        np.pad(x, ((1, 0), (0, 2)), constant_values=3),
        np.roll(x, 2),
        np.roll(x, 1, 0),
    ),
    "flips": lambda x: (
        np.flip(x),
        np.fliplr(x) + 1,
        np.rot90(x),
        x[::-1].sum(0),
        x[::-1][1:3],
        x[:, ::-2] * x[:, ::2],
    ),
    "where": lambda x: (
        np.where(x > 0, x, 0),
        np.where(x > 0, 1, -1),
        np.select([x > 1, x < -1], [x, -x], 0),
    ),
    "made": lambda x: (
        np.zeros(x.shape),
        np.ones_like(x),
        np.full(x.shape, 2.5),
        np.eye(x.shape[1]),
        np.arange(x.shape[0]),
        np.linspace(0, 1, 5),
    ),
    "from_lists": lambda x: (
        np.array([1, 2, 3]),
        np.asarray([x.sum(), x.max()]),
        np.array([x[0], x[1]]),
        np.array(x[0, 0]),
    ),
    "differences": lambda x: (np.diff(x), np.diff(x, axis=0), np.gradient(x[0]), np.trapezoid(x)),
    "covariance": lambda x: (
        np.cov(x),
        np.corrcoef(x),
        np.average(x, axis=0, weights=np.arange(x.shape[0]) + 1.0),
    ),
    "order": lambda x: (
        np.sort(x, axis=0),
        np.argsort(x),
        np.median(x, axis=1),
        np.percentile(x, 30),
        np.quantile(x, [0.1, 0.8], axis=0),
    ),
    "extrema": lambda x: (
        x.max(),
        x.min(0),
        x.argmax(),
        x.argmin(1),
        np.ptp(x, 0),
        x.max(1, keepdims=True),
        np.maximum(x, 0),
        x.clip(-1, 1),
    ),
    "means": lambda x: (
        x.mean(),
        x.std(0, ddof=1),
        x.var((0, 1)),
        np.mean(x > 0),
        (x > 0).sum(),
        x.sum(1, dtype=np.float32),
        x.prod(0),
    ),
    "nan": lambda x: (
        np.nansum(np.where(x > 0, x, np.nan), 0),
        np.nanmean(np.where(x > 0, x, np.nan)),
        np.nanmax(x),
        np.nanstd(x),
    ),
    "rounding": lambda x: (
        np.round(x, 2),
        x.round(),
        np.floor(x),
        np.rint(x),
        np.trunc(x),
        np.sign(x),
        np.mod(x, 2),
        x // 2,
        divmod(x, 3),
    ),
    "logic": lambda x: (
        (x > 0) & (x < 1),
        ~(x > 0),
        np.logical_or(x > 1, x < 0),
        np.any(x > 0),
        np.all(x > 0, axis=1),
        np.isclose(x, x),
    ),
    "powers": lambda x: (
        x**2,
        x**3,
        np.abs(x) ** 0.5,
        2**x,
        x**-1,
        np.float32(2) * x,
        np.power(np.abs(x), 1.5),
    ),
    "types": lambda x: (
        x.astype(np.float32),
        x.astype(int),
        x.astype(x.dtype) * x.dtype.type(2),
        np.float32(x.sum()),
        (x + 1j * x).conj().imag,
    ),
    "scalars": lambda x: (
        float(2) * x.sum() / x.size + np.pi,
        x[0, 0] * 2,
        x * np.float32(3) + np.float64(2),
        np.sqrt(2.0) * x.shape[0],
    ),
    "attributes": lambda x: (
        x.ndim,
        x.size,
        x.shape,
        x.dtype,
        x.itemsize,
        x.strides,
        x.T.shape,
        isinstance(x, np.ndarray),
        type(x),
        len(x),
    ),
    "views": lambda x: (
        x.T,
        x[1:, ::2],
        x[:, None],
        x[..., 0],
        x[0],
        x[-1, 2],
        x[0, 0, ...],
        x.swapaxes(0, 1),
        x[::-1],
        x.diagonal(),
    ),
    "shapes": lambda x: (
        x.reshape(-1, 2),
        x.reshape(2, -1, order="F"),
        x.ravel(),
        x.flatten("F"),
        np.expand_dims(x, 1),
        np.squeeze(x[:1]),
        x.copy("F"),
    ),
    "advanced": lambda x: (
        x[[0, 2]],
        x[:, [0, 2, 1]],
        x[[0, 1], [2, 3]],
        x[np.ix_([0, 2], [1, 3])],
        np.take(x, [0, 2], axis=1),
        x[np.array([-1, 0])],
    ),
    "along": lambda x: (
        np.take_along_axis(x, np.argsort(x, 1), 1),
        np.searchsorted(np.sort(x[0]), x[1]),
        np.interp(x[0], [0.0, 1, 2], [1.0, 2, 3]),
    ),
    "triangles": lambda x: (
        np.tril(x),
        np.triu(x, 1),
        np.trace(x),
        np.diag(x[0]),
        np.diag(x),
        x[:, :3][np.triu_indices(3)],
    ),
    "solvers": lambda x: (
        np.linalg.inv(x @ x.T + np.eye(4)),
        np.linalg.solve(x @ x.T + np.eye(4), x),
        np.linalg.det(x @ x.T),
        np.linalg.pinv(x),
    ),
    "factors": lambda x: (
        np.linalg.cholesky(x @ x.T + np.eye(4)),
        np.linalg.eigvalsh(x @ x.T),
        np.linalg.svd(x, compute_uv=False),
        np.linalg.slogdet(x @ x.T),
    ),
    "signals": lambda x: (
        np.convolve(x[0], [1.0, 2, 1]),
        np.convolve(x[0], x[1], "same"),
        np.fft.rfft(x[0]),
        np.lib.stride_tricks.sliding_window_view(x[0], 3),
    ),
    "spectra": lambda x: (
        np.fft.fft(x),
        np.fft.fft(x, axis=0),
        np.fft.ifft2(x),
        np.fft.rfftn(x),
        np.fft.irfft2(np.fft.rfft2(x)),
        np.fft.ihfft(x[0]),
    ),
    "broadcast": lambda x: (
        np.broadcast_to(x[0], (3, 6)),
        np.meshgrid(x[0], x[1]),
        np.atleast_2d(x[0]),
        np.moveaxis(x, 0, 1),
    ),
    "containers": lambda x: {"a": x + 1, "b": [x, x.T, (x.sum(), None)]},
    "iterated": lambda x: (
        [row.sum() for row in x],
        sum(x),
        [a + b for a, b in zip(x[0], x[1], strict=True)],
    ),
    "copies": lambda x: (copy.copy(x), copy.deepcopy(x), x.copy(), np.array(x), np.asarray(x) is x),
    "tensors": lambda x: (
        torch.from_numpy(x).sin().numpy(),
        torch.tensor(x) * 2,
        torch.as_tensor(x) + 1,
        np.asarray(torch.as_tensor(x)) * 2,
    ),
    "mixed": lambda x: (
        torch.from_numpy(x) * x,
        np.sin(torch.from_numpy(x)),
        torch.from_numpy(x) * x.max(),
    ),
    "masked": lambda x: (x[x > 0].sum(), x[x > 0], np.nonzero(x > 1)[0]),
}
"""Of one array of shape (4, 6)."""


def _fill(x: Any) -> None:
    x[0] = 1
    x[1:3] = x[0]
    x[:, 1] += 3
    x.T[0] = 5


def _arithmetic(x: Any) -> None:
    x += 1
    x *= 2
    x -= 0.5
    x /= 3
    x **= 2
    x //= 0.5
    x %= 3


def _masks(x: Any) -> None:
    x[x > 0.5] = np.nan
    x[~(x > 0)] = -1
    x[x[:, 0] > 0] = 1
    x[:, np.arange(6) > 4] = 0


def _overlaps(x: Any) -> None:
    x[1:] += x[:-1]
    x[0], x[1] = x[1].copy(), x[0].copy()
    x[:-1] = x[1:]
    x[[0, 1], [1, 2]] = x[0, :2]


def _outs(x: Any) -> None:
    np.add(x, 1, out=x)
    np.multiply(x, 2, out=x, where=x > 0)
    np.exp(-np.abs(x), out=x)
    np.clip(x, 0.2, 0.8, out=x)
    np.copyto(x, 3.0, where=x > 0.5)
    np.add.at(x[0], [0, 0, 1], 1.0)


def _views(x: Any) -> None:
    y = x.reshape(-1)
    y[2] = 9
    x.ravel()[3] = 7
    x[:, ::-1][0] = np.arange(6)
    x[::-1] = np.arange(6)
    torch.from_numpy(x)[2] += 1


def _methods(x: Any) -> None:
    x.sort()
    x[2].fill(2)
    x.T.sort(0)


IN_PLACE: dict[str, Callable[[Any], None]] = {
    "fill": _fill,
    "arithmetic": _arithmetic,
    "masks": _masks,
    "overlaps": _overlaps,
    "outs": _outs,
    "views": _views,
    "methods": _methods,
}
"""Functions that change their argument, an array of shape (4, 6)."""

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: np.ascontiguousarray(x),
    "columns": lambda x: np.asfortranarray(x),
    "strided": lambda x: np.repeat(np.repeat(x, 2, 0), 2, 1)[::2, 1::2],
}
"""The same elements in different memory orders."""


def draw(generator: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Random elements."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return generator.random(shape) > 0.5
    found = generator.standard_normal(shape) * 3
    if kind == "c":
        found = found + 1j * generator.standard_normal(shape)
    return (np.abs(found) * 5 if kind == "u" else found * (5 if kind == "i" else 1)).astype(dtype)


def differs(got: Any, want: Any, path: str = "result") -> str:
    """How two results differ, or "": in type, dtype, shape, memory order, flags or value."""
    if type(got) is not type(want):
        return f"{path} is a {type(got)}, not a {type(want)}"
    if isinstance(want, dict):
        got, want = list(got.items()), list(want.items())
    if isinstance(want, (list, tuple)):
        if len(got) != len(want):
            return f"{path} has {len(got)} items, not {len(want)}"
        found = (
            differs(a, b, f"{path}[{at}]") for at, (a, b) in enumerate(zip(got, want, strict=True))
        )
        return next(filter(None, found), "")
    if isinstance(want, torch.Tensor):
        return differs(got.detach().numpy(), want.detach().numpy(), path)
    if not isinstance(want, (np.ndarray, np.generic)):
        return "" if got == want else f"{path} is {got!r}, not {want!r}"
    for name in ("dtype", "shape"):
        if getattr(got, name) != getattr(want, name):
            return f"{path} has {name} {getattr(got, name)}, not {getattr(want, name)}"
    if isinstance(want, np.ndarray) and want.size:
        steps = [
            [step for step, size in zip(x.strides, x.shape, strict=True) if size > 1]
            for x in (got, want)
        ]
        if steps[0] != steps[1] or got.flags.writeable != want.flags.writeable:
            return f"{path} has strides {got.strides}, not {want.strides}, or other flags"
    tolerance = {"float64": 1e-12, "complex128": 1e-12, "float16": 2e-3}.get(str(want.dtype), 2e-5)
    if want.dtype.kind in "fc":
        scale = np.abs(want[np.isfinite(want)]).max(initial=1.0) if want.size else 1.0
        close = np.allclose(got, want, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
        return "" if close else f"{path} is {got}, not {want}"
    return "" if np.array_equal(got, want) else f"{path} is {got}, not {want}"
