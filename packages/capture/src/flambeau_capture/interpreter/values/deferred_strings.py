"""Text of what the graph computes: a str that is known when the graph has run.

    text = f"loss {loss:.3f}"     clone = loss.clone()   (in the graph; not of an unchanged input)
    log.append(text)        ->    text = joined("loss ", formatted(clone, None, ".3f"));
                                  log.extend([text])

The program holds it as a `str`: it puts it together with other text, stores it and hands it on.
What would have to know its characters breaks the graph. Nothing of a text that does not leave the
frame is in the graph.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture.interpreter.values.classes import Proxy
from flambeau_capture.reasons import GraphBreak
from flambeau_capture.record import CallRecipe, Const, FromSource
from flambeau_prims.size_floats import is_unbacked
from flambeau_prims.sizes_node import from_symbolic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from flambeau_capture.interpreter.protocols import Args, RecipeMaker, Recorder
    from flambeau_capture.record import Recipe
    from flambeau_capture.sources import Source


class Part:
    """A piece of text, `function(*args)` after the graph; `args` are values of the frame."""

    __slots__ = ("args", "function", "may_be_empty")

    def __init__(
        self, function: Callable[..., str], args: Args, *, may_be_empty: bool = True
    ) -> None:
        self.function, self.args, self.may_be_empty = function, args, may_be_empty

    def recipe(self, rebuild: RecipeMaker) -> Recipe:
        """How it is made."""
        return CallRecipe(self.function, tuple(rebuild.recipe(arg) for arg in self.args))

    def is_known(self) -> bool:
        """Whether it consists of numbers and texts that the program was given."""
        return all(_is_known(arg) for arg in self.args)

    def characters(self) -> str:
        """The text of this call; the numbers are guarded from now on."""
        return self.function(*map(_known, self.args))


class GivenPart:
    """A text that the frame was handed and has not looked at: another one in each call."""

    __slots__ = ("machine", "real", "source")
    may_be_empty = True

    def __init__(self, machine: Recorder, real: str, source: Source) -> None:
        self.machine, self.real, self.source = machine, real, source

    def recipe(self, rebuild: RecipeMaker) -> Recipe:
        """What the frame was handed."""
        return FromSource(self.source)

    def is_known(self) -> bool:
        """Whether it can be looked at: at the price of a guard."""
        return True

    def characters(self) -> str:
        """The text of this call, which is guarded from now on."""
        return self.machine.objects.wrap(self.real, self.source)  # type: ignore[no-any-return]


class ShownTensor(Proxy):
    """A tensor as it was when a text was made of it: `copy`, made then, or an input that has not
    been written to since.

    `default_dtype`: what the text depends on besides, None where it does not.
    """

    __slots__ = (
        "copy", "default_dtype", "has_history", "kind", "machine", "made_at", "requires_grad",
        "tensor",
    )  # fmt: skip

    def __init__(
        self, machine: Recorder, tensor: torch.Tensor, kind: type, default_dtype: torch.dtype | None
    ) -> None:
        tape = machine.tape
        self.machine, self.tensor, self.kind = machine, tensor, kind
        self.default_dtype = default_dtype
        self.requires_grad = tensor.requires_grad
        self.has_history = False
        source = tape.call_method("detach", (tensor,)) if tensor.requires_grad else tensor
        self.copy = tape.call_method("clone", (source,))
        self.made_at = len(tape.calls)

    def recipe(self, rebuild: RecipeMaker) -> Recipe:
        """The tensor that is shown."""
        if self.has_history:
            raise _names_its_history()
        if self.default_dtype is not None:
            if self.default_dtype is not torch.get_default_dtype():
                raise GraphBreak("torch-state", "a tensor is formatted under another default dtype")
            _check_print_options(self.machine)
        tape = self.machine.tape
        shown = self.copy
        if tape.input_of(self.tensor) is not None:
            inputs = {entry.value.storage for entry in tape.inputs}
            written = (value for call in tape.calls[self.made_at :] for value in call.mutates)
            if not any(value.storage is None or value.storage in inputs for value in written):
                shown = self.tensor
        args = rebuild.recipe(shown), Const(self.kind), Const(self.requires_grad)
        return CallRecipe(_as_shown, args)


class DeferredString(Proxy):
    """What the program sees as a str: constant pieces and `Part`s."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[str | Part | GivenPart, ...]) -> None:
        self.parts = parts

    def characters(self, what: str = "the text of a tensor is read") -> str:
        """The text, where it is known while the frame is captured; else a graph break."""
        if not self.is_known():
            raise needs_characters(what)
        parts = [part if isinstance(part, str) else part.characters() for part in self.parts]
        return "".join(parts)

    def is_known(self) -> bool:
        """Whether it can be looked at while the frame is captured."""
        return all(isinstance(part, str) or part.is_known() for part in self.parts)

    def seen_type(self) -> type:
        """The type that the program sees."""
        return str

    def recipe(self, rebuild: RecipeMaker) -> Recipe:
        """The str, joined of its parts."""
        parts = self.parts
        made = [Const(part) if isinstance(part, str) else part.recipe(rebuild) for part in parts]
        return made[0] if len(made) == 1 else CallRecipe(_joined_text, tuple(made))

    def seen_attribute(self, name: str) -> Any:
        """A method of str, of which some make text again."""
        if name == "__class__":
            return str
        if not hasattr(str, name):
            raise AttributeError(f"'str' object has no attribute {name!r}")
        return TextMethod(self, name)

    def __bool__(self) -> bool:
        filled = (part if isinstance(part, str) else not part.may_be_empty for part in self.parts)
        return any(filled) or bool(self.characters())

    def __add__(self, other: Any) -> Any:
        is_text = isinstance(other, (str, DeferredString))
        return concatenated((self, other)) if is_text else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return concatenated((other, self)) if isinstance(other, str) else NotImplemented

    def __getitem__(self, key: Any) -> Any:
        if type(key) is slice and all(_is_constant(at) for at in (key.start, key.stop, key.step)):
            ""[key]  # raises what is wrong with the slice
            return DeferredString((Part(operator.getitem, (self, key)),))
        return self.characters()[key]

    def __eq__(self, other: object) -> Any:
        if self is other or not isinstance(other, (str, DeferredString)):
            return self is other
        return self.characters() == characters_of(other)

    def __hash__(self) -> int:
        return hash(self.characters())

    def __str__(self) -> str:
        return self.characters()

    def __format__(self, spec: str) -> str:
        return format(self.characters(), spec)

    def __len__(self) -> int:
        return len(self.characters())

    def __iter__(self) -> Iterator[str]:
        return iter(self.characters())

    def __contains__(self, other: Any) -> bool:
        return characters_of(other) in self.characters()

    def __mul__(self, count: Any) -> Any:
        return self.characters() * count

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> Any:
        raise needs_characters("the text of a tensor is filled in")

    def _compare(self, other: Any, relation: Callable[[Any, Any], bool]) -> bool:
        return relation(self.characters(), characters_of(other))

    __lt__ = functools.partialmethod(_compare, relation=operator.lt)
    __le__ = functools.partialmethod(_compare, relation=operator.le)
    __gt__ = functools.partialmethod(_compare, relation=operator.gt)
    __ge__ = functools.partialmethod(_compare, relation=operator.ge)


_MADE_BY = frozenset({
    "lower", "upper", "casefold", "capitalize", "title", "swapcase", "strip", "lstrip", "rstrip",
    "ljust", "rjust", "center", "zfill", "replace", "expandtabs", "removeprefix", "removesuffix",
})  # fmt: skip
"""Methods of str that make a str, whatever the text is."""


class TextMethod(Proxy):
    """A bound method of a deferred string."""

    __slots__ = ("name", "text")

    def __init__(self, text: DeferredString, name: str) -> None:
        self.text, self.name = text, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.name == "join" and len(args) == 1 and not kwargs:
            return joined_by(self.text, list(args[0]))
        if self.name in _MADE_BY and not kwargs and all(map(_is_constant, args)):
            getattr("", self.name)(*args)  # raises what is wrong with the arguments
            return DeferredString((Part(getattr(str, self.name), (self.text, *args)),))
        text = self.text.characters(f"str.{self.name} of the text of a tensor")
        return getattr(text, self.name)(*args, **kwargs)

    def recipe(self, rebuild: RecipeMaker) -> Recipe:
        """The method, of the real text."""
        return CallRecipe(getattr, (rebuild.recipe(self.text), Const(self.name)))


def given_text(machine: Recorder, real: str, source: Source) -> DeferredString:
    """A text that was another one in earlier calls, and is not looked at."""
    machine.guard("TYPE", source, str)
    return DeferredString((GivenPart(machine, real, source),))


def characters_of(value: Any) -> Any:
    """`value`; a text as a str."""
    return value.characters() if isinstance(value, DeferredString) else value


def readable(value: Any) -> Any:
    """`value`; a text that can be looked at as a str."""
    return value.characters() if type(value) is DeferredString and value.is_known() else value


def _is_known(arg: Any) -> bool:
    if isinstance(arg, DeferredString):
        return arg.is_known()
    if type(arg) in _SAMPLES:
        return not is_unbacked(from_symbolic(arg))
    return not isinstance(arg, Proxy)


def _known(arg: Any) -> Any:
    if type(arg) in _SAMPLES:
        return type(_SAMPLES[type(arg)])(arg)
    return characters_of(arg)


def needs_characters(what: str) -> GraphBreak:
    """The break at an operation that looks at a text."""
    hint = (
        "store, print, log or return the text as it is; what looks at its characters belongs "
        "outside the compiled function"
    )
    return GraphBreak("data-dependent", what, hint=hint)


def _is_constant(value: Any) -> bool:
    return value is None or type(value) in (int, str, bool)


def concatenated(parts: Iterable[Any]) -> Any:
    """The texts one after the other: a str where all are."""
    made: list[str | Part | GivenPart] = []
    for part in parts:
        for piece in part.parts if isinstance(part, DeferredString) else (part,):
            if isinstance(piece, str) and made and isinstance(made[-1], str):
                made[-1] += piece
            elif not isinstance(piece, str) or piece:
                made.append(piece)
    if all(isinstance(piece, str) for piece in made):
        return "".join(made)  # type: ignore[arg-type]
    return DeferredString(tuple(made))


def text_of_operation(function: Callable[..., str], args: Args) -> DeferredString:
    """`function(*args)`, made when the graph has run."""
    return DeferredString((Part(function, args),))


def joined_by(separator: Any, items: list[Any]) -> Any:
    """`separator.join(items)`."""
    for at, item in enumerate(items):
        if not isinstance(item, (str, DeferredString)):
            message = f"sequence item {at}: expected str instance, {type(item).__name__} found"
            raise TypeError(message)
    spaced = [part for item in items for part in (separator, item)]
    return concatenated(spaced[1:])


def text_of_text(
    text: DeferredString, conversion: Callable[[Any], str] | None, spec: str
) -> DeferredString:
    """`format(conversion(text), spec)`."""
    if conversion in (None, str) and not spec:
        return text
    format("", spec)  # raises what is wrong with it
    return _formatting(text, conversion, spec, may_be_empty=conversion in (None, str) or bool(spec))


def text_of_number(
    number: Any, conversion: Callable[[Any], str] | None, spec: str
) -> DeferredString:
    """`format(conversion(number), spec)` of a symbolic number."""
    _check_spec(_SAMPLES[type(number)], conversion, spec)
    return _formatting(number, conversion, spec, may_be_empty=bool(conversion and spec))


@dataclass(slots=True)
class ShownTensors:
    """The tensors of which one capture has made text."""

    history: bool = False
    """Whether one has a gradient function, as such checks have that do not fail."""


def text_of_tensor(
    machine: Recorder, tensor: torch.Tensor, conversion: Callable[[Any], str] | None, spec: str
) -> DeferredString:
    """`format(conversion(tensor), spec)`; without dimensions, the text of the number."""
    kind = shown_class(machine, tensor)
    as_number = conversion is None and kind is torch.Tensor and not tensor.dim()
    if as_number and not tensor.is_meta:
        _check_spec(_sample_of(tensor.dtype), None, spec)
        shown = ShownTensor(machine, tensor, kind, None)
        return _formatting(shown, None, spec, may_be_empty=False)
    if conversion is None and spec:
        raise TypeError(f"unsupported format string passed to {kind.__name__}.__format__")
    with_history = has_history(machine, tensor)
    if with_history and not machine.strategy.shows_history:
        raise _names_its_history()
    machine.state_of(ShownTensors).history |= with_history
    _check_print_options(machine)
    format("", spec)
    shown = ShownTensor(machine, tensor, kind, torch.get_default_dtype())
    shown.has_history = with_history
    return _formatting(shown, conversion, spec, may_be_empty=bool(spec))


def shown_class(machine: Recorder, tensor: torch.Tensor) -> type:
    """The class that the program sees; GraphBreak if the text is not known after the graph."""
    tape = machine.tape
    kind = tape.real_type(tensor)
    if (
        kind not in (torch.Tensor, torch.nn.Parameter)
        or tensor.layout is not torch.strided
        or tensor.dtype not in _SHOWN_DTYPES
        or tape.subgraphs
        or machine.transforms
        or machine.backwards
    ):
        raise GraphBreak("data-dependent", "a tensor is formatted as text")
    return kind


def _names_its_history() -> GraphBreak:
    """The text names the function that made the tensor, as eager calls it."""
    detail = "a tensor that has a gradient function is formatted as text"
    return GraphBreak("data-dependent", detail)


def has_history(machine: Recorder, tensor: torch.Tensor) -> bool:
    """Whether the text of a tensor names the function that its gradient goes through."""
    if not tensor.requires_grad:
        return False
    found = machine.tape.input_of(tensor)
    return tensor.grad_fn is not None or (found is not None and found[0].grad_fn is not None)


def _check_print_options(machine: Recorder) -> None:
    if machine.objects.pending_writes_of(torch._tensor_str.PRINT_OPTS):  # type: ignore[attr-defined]
        raise GraphBreak("torch-state", "a tensor is formatted and torch.set_printoptions called")


_SAMPLES: dict[type, Any] = {torch.SymInt: 1, torch.SymFloat: 1.0, torch.SymBool: True}
_SHOWN_DTYPES = frozenset({
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int16,
    torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
    torch.complex64, torch.complex128,
})  # fmt: skip


def _sample_of(dtype: torch.dtype) -> Any:
    """A number of the type that the items of a tensor are in Python."""
    if dtype.is_complex or dtype.is_floating_point:
        return 1j if dtype.is_complex else 1.0
    return True if dtype is torch.bool else 1


def _check_spec(sample: Any, conversion: Callable[[Any], str] | None, spec: str) -> None:
    """Raise the error of a format specification, which does not depend on the number."""
    if conversion is None and type(sample) is not float and spec.endswith("c"):
        raise GraphBreak("data-dependent", "a number in the data is formatted as a character")
    format(sample if conversion is None else "", spec)


def _formatting(
    value: Any, conversion: Callable[[Any], str] | None, spec: str, *, may_be_empty: bool
) -> DeferredString:
    part = Part(_formatted_text, (value, conversion, spec), may_be_empty=may_be_empty)
    return DeferredString((part,))


def shows_tensors(error: BaseException) -> bool:
    """Whether the program raised an exception whose message is not known yet."""
    return any(isinstance(arg, DeferredString) for arg in error.args)


def error_text(error: BaseException) -> str:
    """The message of an exception, for reports; unknown parts are left out."""
    if shows_tensors(error):
        parts = [
            "".join(part if isinstance(part, str) else "..." for part in arg.parts)
            if isinstance(arg, DeferredString)
            else str(arg)
            for arg in error.args
        ]
        return ", ".join(parts)
    return str(error)


# ---------------------------------------------------------------- what entries call


def _joined_text(*parts: str) -> str:
    return "".join(parts)


def _formatted_text(value: Any, conversion: Callable[[Any], str] | None, spec: str) -> str:
    return format(value if conversion is None else conversion(value), spec)


def _as_shown(tensor: torch.Tensor, kind: type, requires_grad: bool) -> torch.Tensor:
    """A tensor's text where it has no history: without the name of a subclass or node."""
    tensor = tensor.detach()
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)
