"""One program run three ways - eager, compiled, eager in float64 - and everything a user could see
of it compared.

    differences(lambda x: x.add_(1).view(-1), lambda: (torch.randn(3, 4),))   -> list of str

Compared: values against float64, dtypes, shapes, strides, which outputs are or view which inputs,
requires_grad and leaves, inputs after the call, versions of inputs and outputs, gradients (None or
not), the random generator afterwards, and errors.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

import flambeau

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

Make = "Callable[[], tuple[Any, ...]]"


@dataclass
class Run:
    """What one run of a program showed."""

    error: str | None = None
    leaves: list[Any] = field(default_factory=list)
    inputs: list[torch.Tensor] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    relations: list[str] = field(default_factory=list)
    grads: list[torch.Tensor | None] = field(default_factory=list)
    grad_error: str | None = None
    rng: torch.Tensor | None = None


def leaves_of(value: Any) -> list[Any]:
    """The leaves of a nested result, in order; containers contribute their type's name."""
    if isinstance(value, dict):
        return [
            type(value).__name__,
            *value,
            *(leaf for item in value.values() for leaf in leaves_of(item)),
        ]
    if isinstance(value, (tuple, list)):
        return [type(value).__name__, *(leaf for item in value for leaf in leaves_of(item))]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        values = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        return [type(value).__name__, *leaves_of(values)]
    return [value]


def tensors(leaves: list[Any]) -> list[torch.Tensor]:
    """The tensors among leaves."""
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _message(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _version(tensor: torch.Tensor) -> int:
    """The version counter; inference tensors have none."""
    return -1 if tensor.is_inference() else tensor._version


def _random_state() -> torch.Tensor:
    """The default generators of the CPU and of the accelerator that this process uses, if any."""
    state = torch.get_rng_state()
    return torch.cat([state, torch.cuda.get_rng_state()]) if torch.cuda.is_initialized() else state


def _relations(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[str]:
    """How each output stands to autograd, to the inputs and to the outputs before it."""
    found = []
    for number, out in enumerate(outputs):
        facts = [f"requires_grad={out.requires_grad}", f"is_leaf={out.is_leaf}"]
        others = [(f"input {at}", other) for at, other in enumerate(inputs)]
        others += [(f"output {at}", other) for at, other in enumerate(outputs[:number])]
        for name, other in others:
            if out is other:
                facts.append(f"is {name}")
            elif (
                out.numel()
                and other.numel()
                and out.layout == other.layout == torch.strided
                and out.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
            ):
                offset = out.data_ptr() - other.data_ptr()
                facts.append(f"shares {name}'s memory at {offset}")
                # What requires no grad has a base nobody reads.
                if out.requires_grad and out._base is other:
                    facts.append(f"is a view of {name}")
        found.append(", ".join(facts))
    return found


def seed_generators(seed: int) -> None:
    """As `torch.manual_seed`, which formats the stack of its call for each kind of device."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def observe(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    seed: int,
    backward: bool,
    losses: Collection[int] | None = None,
    before: Callable[[], None] | None = None,
) -> Run:
    """Run a program on `args` and note what it shows; `losses`, `before`: see `differences`."""
    run = Run()
    inputs = tensors(leaves_of(args))
    seed_generators(seed)
    if before is not None:
        before()
    try:
        run.leaves = leaves_of(function(*args))
    except Exception as error:
        run.error = _message(error)
        return run
    run.rng = _random_state()
    run.inputs = inputs
    outputs = tensors(run.leaves)
    run.versions = [_version(tensor) for tensor in inputs]
    # How an operator that returns early fills nothing shows in no value.
    run.versions += [_version(tensor) if tensor.numel() else 0 for tensor in outputs]
    try:
        run.relations = _relations(outputs, inputs)
    except RuntimeError as error:
        # A view that may not be used any more, since its base was written to.
        run.error = _message(error)
        return run
    if backward:
        chosen = [out for at, out in enumerate(outputs) if losses is None or at in losses]
        if before is not None:
            before()
        _differentiate(run, chosen, inputs)
    return run


def _differentiate(run: Run, outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
    """Gradients of a weighted sum of outputs; the weights are the same in every run."""
    generator = torch.Generator().manual_seed(7)
    total = None
    for out in outputs:
        if out.requires_grad:
            out = out if out.layout == torch.strided else out.to_dense()
            out = torch.view_as_real(out.resolve_conj()) if out.is_complex() else out
            weight = torch.rand(out.shape, generator=generator, dtype=torch.float64).to(out) + 0.5
            term = (out * weight).sum().double().cpu()
            total = term if total is None else total + term
    leaves = [tensor for tensor in inputs if tensor.requires_grad and tensor.is_leaf]
    if total is not None:
        try:
            total.backward()
        except Exception as error:
            run.grad_error = _message(error)
    run.grads = [leaf.grad for leaf in leaves]


def to_double(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if not (value.is_floating_point() or value.is_complex()):
            return value
        wide = torch.complex128 if value.is_complex() else torch.float64
        return value.detach().to(wide).requires_grad_(value.requires_grad)
    if isinstance(value, (tuple, list)):
        return type(value)(to_double(item) for item in value)
    if isinstance(value, dict):
        return {key: to_double(item) for key, item in value.items()}
    return value


def compare_tensor(
    ours: Any,
    theirs: Any,
    exact: Any,
    factor: float,
    least: float = 0.0,
    close: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], str | None] | None = None,
) -> str | None:
    """What differs between a compiled and an eager tensor, or None.

    `exact` may be None: then eager is the reference. Errors of a few units in the last place of
    `least` are allowed in any case. `close` compares the values of floating tensors instead, given
    the compiled, the eager and, if there is one of this shape, the exact ones.
    """
    if ours is None or theirs is None:
        return None if ours is theirs else f"{_kind(ours)} where eager has {_kind(theirs)}"
    if ours.dtype != theirs.dtype:
        return f"dtype {ours.dtype}, not {theirs.dtype}"
    if ours.shape != theirs.shape:
        return f"shape {tuple(ours.shape)}, not {tuple(theirs.shape)}"
    if type(ours) is not type(theirs):
        return f"type {type(ours).__name__}, not {type(theirs).__name__}"
    if ours.layout != theirs.layout:
        return f"layout {ours.layout}, not {theirs.layout}"
    for name in ("is_conj", "is_neg"):
        if getattr(ours, name)() != getattr(theirs, name)():
            return f"{name} {getattr(ours, name)()}, not {getattr(theirs, name)()}"
    if ours.layout != torch.strided:
        return _compare_parts(ours, theirs, exact, factor, least)
    sizes = [dim for dim, size in enumerate(ours.shape) if size > 1]
    if ours.numel() and [ours.stride(d) for d in sizes] != [theirs.stride(d) for d in sizes]:
        return f"strides {ours.stride()}, not {theirs.stride()} of shape {tuple(ours.shape)}"
    ours, theirs = _plain(ours), _plain(theirs)
    exact = _plain(exact) if isinstance(exact, torch.Tensor) else exact
    if not ours.is_floating_point():
        return None if torch.equal(ours, theirs) else f"values {_first(ours)}, not {_first(theirs)}"
    if not (
        isinstance(exact, torch.Tensor) and exact.shape == ours.shape and exact.is_floating_point()
    ):
        exact = None
    if close is not None:
        return close(ours, theirs, exact)
    ours64, theirs64 = ours.double(), theirs.double()
    if exact is not None:
        exact64 = exact.detach().double()
    else:
        exact64 = theirs64
        factor = 0.0
    finite = torch.isfinite(theirs64)
    if not torch.equal(torch.isfinite(ours64), finite) or not torch.equal(
        ours64[~finite].nan_to_num(3.0, 4.0, 5.0), theirs64[~finite].nan_to_num(3.0, 4.0, 5.0)
    ):
        return f"infinities or NaNs: {_first(ours)}, not {_first(theirs)}"
    usable = finite & torch.isfinite(exact64)
    if not usable.any():
        return None
    scale = max(exact64[usable].abs().max().item(), least)
    floor = (8 if factor else 64) * torch.finfo(ours.dtype).eps * scale + torch.finfo(
        ours.dtype
    ).tiny
    error = (ours64 - exact64)[usable].abs().max().item()
    allowed = factor * (theirs64 - exact64)[usable].abs().max().item() + floor
    if error <= allowed:
        return None
    return f"off by {error:.3g}, {allowed:.3g} allowed: {_first(ours)}, not {_first(theirs)}"


def _compare_parts(ours: Any, theirs: Any, exact: Any, factor: float, least: float) -> str | None:
    """What differs in the indices or the values of two sparse tensors of one layout."""
    rows = ours.layout in (torch.sparse_csr, torch.sparse_bsr)
    compressed = ("crow_indices", "col_indices") if rows else ("ccol_indices", "row_indices")
    names = {torch.sparse_coo: ("is_coalesced", "_indices", "_values")}.get(
        ours.layout, (*compressed, "values")
    )
    is_best = isinstance(exact, torch.Tensor) and exact.layout == ours.layout
    for name in names:
        mine, other = (getattr(tensor, name)() for tensor in (ours, theirs))
        if name == "is_coalesced":
            text = None if mine == other else f"{mine}, not {other}"
        else:
            best = getattr(exact, name)() if is_best else None
            text = compare_tensor(mine, other, best, factor, least)
        if text:
            return f"{name}: {text}"
    return None


def _first(tensor: torch.Tensor) -> list[Any]:
    """The first elements, for a message."""
    return tensor.flatten()[:8].tolist()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The values without history, dense; complex numbers as pairs of their parts, [..., 2]."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj().resolve_neg())
    return tensor.float() if tensor.dtype.itemsize == 1 and tensor.is_floating_point() else tensor


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def compare(
    ours: Run,
    theirs: Run,
    exact: Run | None,
    *,
    factor: float = 4.0,
    least: float = 0.0,
    versions: bool | str = True,
    messages: bool = True,
    close: Callable[..., str | None] | None = None,
) -> list[str]:
    """Everything that differs between a compiled and an eager run.

    versions: those of inputs and outputs are eager's; "inputs": those of inputs alone, as eager's
    operators may write to their new results. messages: the first lines of exceptions are alike, and
    not only their types. close: see `compare_tensor`.
    """
    if ours.error is not None or theirs.error is not None:
        same = ours.error == theirs.error
        if not messages and ours.error and theirs.error:
            same = ours.error.split(":")[0] == theirs.error.split(":")[0]
        return [] if same else [f"raises {ours.error!r}, not {theirs.error!r}"]
    found = []
    if len(ours.leaves) != len(theirs.leaves):
        return [f"returns {ours.leaves}, not {theirs.leaves}"]
    if exact is not None and (exact.error is not None or len(exact.leaves) != len(theirs.leaves)):
        exact = None
    exact_leaves = exact.leaves if exact is not None else [None] * len(theirs.leaves)
    for number, (mine, other, best) in enumerate(
        zip(ours.leaves, theirs.leaves, exact_leaves, strict=True)
    ):
        if isinstance(mine, torch.Tensor) and isinstance(other, torch.Tensor):
            text = compare_tensor(mine, other, best, factor, least, close)
            if text is None and mine.layout == torch.strided and mine.numel():
                # Those of dims of size 1, too, which gradients need not have.
                if mine.stride() != other.stride():
                    text = f"strides {mine.stride()}, not {other.stride()}"
        elif (
            isinstance(mine, torch.Tensor)
            or isinstance(other, torch.Tensor)
            or type(mine) is not type(other)
        ):
            text = f"{_kind(mine)}, not {_kind(other)}"
        else:
            text = (
                None
                if mine == other or (mine != mine and other != other)
                else f"{mine!r}, not {other!r}"
            )
        if text:
            found.append(f"output {number}: {text}")
    for name in ("inputs", "grads"):
        best_of = getattr(exact, name) if exact is not None else [None] * len(getattr(theirs, name))
        if len(best_of) != len(getattr(theirs, name)):
            best_of = [None] * len(getattr(theirs, name))
        for number, (mine, other, best) in enumerate(
            zip(getattr(ours, name), getattr(theirs, name), best_of, strict=True)
        ):
            text = compare_tensor(mine, other, best, factor, least, close)
            if text:
                found.append(f"{name[:-1]} {number}: {text}")
    for name in ("versions", "relations", "grad_error"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        if name == "versions" and versions == "inputs":
            mine, other = mine[: len(ours.inputs)], other[: len(theirs.inputs)]
        if name == "grad_error" and not messages and mine and other:
            mine, other = mine.split(":")[0], other.split(":")[0]
        if mine != other and (versions or name != "versions"):
            found.append(f"{name}: {mine}, not {other}")
    assert ours.rng is not None and theirs.rng is not None
    if not torch.equal(ours.rng, theirs.rng):
        found.append("the random generator stands elsewhere")
    return found


def differences(
    function: Callable[..., Any],
    make: Callable[[], tuple[Any, ...]],
    *,
    seed: int = 0,
    backward: bool = True,
    calls: int = 2,
    factor: float = 4.0,
    least: float = 0.0,
    exact: bool = True,
    versions: bool | str = True,
    messages: bool = True,
    losses: Collection[int] | None = None,
    inference: bool = False,
    reference: Callable[..., Any] | None = None,
    close: Callable[..., str | None] | None = None,
    before: Callable[[], None] | None = None,
    **options: Any,
) -> list[str]:
    """What differs between compiled and eager on `calls` draws of inputs; `make` draws them from
    the seeded generator. The backward is that of the tensors among the outputs whose numbers are in
    `losses` (None: all). `inference`: inputs are made and calls run in inference mode. `reference`:
    the function in float64, if it names dtypes. `close`: see `compare_tensor`. `before` is called
    before each compiled call and before its backward.
    """
    compiled = flambeau.compile(function, **options)
    found = []
    for call in range(calls):

        def inputs(draw: int = call) -> tuple[Any, ...]:
            seed_generators(seed + draw)
            with torch.inference_mode(inference):
                return make()

        def run(
            target: Callable[..., Any],
            args: tuple[Any, ...],
            draw: int = call,
            before: Callable[[], None] | None = None,
        ) -> Run:
            with torch.inference_mode(inference):
                return observe(
                    target,
                    args,
                    seed=seed + draw,
                    backward=backward and not inference,
                    losses=losses,
                    before=before,
                )

        theirs = run(function, inputs())
        ours = run(compiled, inputs(), before=before)
        wide = reference or function
        best = run(wide, to_double(inputs())) if exact and theirs.error is None else None
        found += [
            f"call {call}: {text}"
            for text in compare(
                ours,
                theirs,
                best,
                factor=factor,
                least=least,
                versions=versions,
                messages=messages,
                close=close,
            )
        ]
        if found:
            break
    return found
