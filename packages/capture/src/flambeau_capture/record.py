"""The capture record: the result of interpreting one frame on fake objects.

1. `Capture`  — the whole: the torch-level tape, inputs, guards, side effects and the result; or
`Break`, why there is none.
2. `GraphValue`, `Call`, `Input` — the tape. Straight-line, in program order, over values of the
graph.
3. `Guard` — a statement about a source that must hold for the entry to be used again.
4. Recipes — how the frame's result, and what its side effects write, is built from sources, graph
outputs and constants.
5. Effects — what the frame did to objects that existed before the call, replayed in order after the
graph has run.
6. `SuspendedFrame` — a frame that a graph break has interrupted.

`entries/entry.py` turns a Capture into an fx.GraphModule and a callable. Recipes and graph values
are compared by identity: a recipe used twice is one object built once, and recipes of containers
and objects may form cycles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import types

    import torch

    from flambeau_capture.assumed_constants import AssumedConstant
    from flambeau_capture.bytecode.instructions import Successor
    from flambeau_capture.bytecode.resume_code import FrameCode, Layout
    from flambeau_capture.sources import Scope, Source
    from flambeau_prims.size_floats import Condition, FloatExpr
    from flambeau_prims.sizes import Expr, SizeEnv
    from flambeau_prims.spec import Spec
    from flambeau_prims.wrapper_subclasses import SubclassSpec


# ---------------------------------------------------------------- 2. the tape


@dataclass(frozen=True, slots=True)
class Opaque:
    """The spec of an object that the graph only hands on: a torch.Generator."""

    kind: type


@dataclass(eq=False, slots=True)
class GraphValue:
    """One tensor (spec: Spec, or SubclassSpec), symbolic number (spec: Expr or FloatExpr) or
    Opaque object of the graph. `name` is a hint, made unique later.

    Tensors that share memory have the same `storage` token; None where the capture does not say.
    """

    spec: Spec | SubclassSpec | Expr | FloatExpr | Opaque
    name: str = ""
    requires_grad: bool = False
    storage: object | None = None


@dataclass(eq=False, slots=True)
class Call:
    """One torch-level call: `target(*args, **kwargs)`, or `args[0].target(*args[1:], **kwargs)`
    when `kind` is "method".

    `args` and `kwargs` hold GraphValues, `Expr`s (sizes computed from the inputs' sizes), and
    constants an fx node may hold, nested in tuples, lists, dicts and slices. `result` has the shape
    of what the call returns, with a GraphValue for each tensor (or symbolic int), and None or a
    constant elsewhere. `pure` calls are dropped when no result is used. `mutates` lists the values
    whose data the call writes; an in-place call's result is a GraphValue of its own, or its
    operand. `region` numbers the checkpointed region that the call is in (0: none): a backward is
    to compute its results again, not keep them; with a negative number nobody keeps them. `random`
    calls draw random numbers. A call that `can_raise` may do so for what its tensors hold: it is
    made though nobody uses its results. `saves` says of an ATen operator whether that region keeps
    its results nevertheless. An `untraced` call needs the real tensors and this thread's real
    state, whose changes no graph could hold: a compiler of graphs cuts there, and makes the call as
    it stands.
    """

    kind: Literal["function", "method"]
    target: Callable[..., Any] | str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    where: str = ""
    pure: bool = True
    mutates: tuple[GraphValue, ...] = ()
    region: int = 0
    saves: Callable[[Any], bool] | None = None
    untraced: bool = False
    random: bool = False
    can_raise: bool = False


@dataclass(eq=False, slots=True)
class Input:
    """A tensor, int, float or Opaque object that the graph reads: where it comes from, the real
    object of this call, and what is assumed of it.

    A Spec with Exprs as sizes is dynamic in those dimensions: sizes that are a plain symbol are
    *defined* by the input, others are checked. An Expr as spec is a symbolic int, a FloatExpr a
    symbolic float. Each Input implies a TENSOR (or INT, FLOAT) guard; do not add one. Several
    sources that hold one tensor make one Input and an ALIAS guard each. `hooked`: the frame
    registers hooks on the tensor, when the graph has run.
    """

    source: Source
    example: Any
    spec: Spec | SubclassSpec | Expr | FloatExpr | Opaque
    value: GraphValue
    hooked: bool = False


# ---------------------------------------------------------------- 3. guards


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """`kind` (in CAPS, declared in guards/kinds.py) says what must hold of
    `source`, with `payload` as its operand.

    `where` is the user's "file.py:12" whose reading of the source made the guard.
    """

    kind: str
    source: Source
    payload: Any = None
    where: str = ""


@dataclass(frozen=True, slots=True)
class Assumption:
    """An assumption about data, `what` at the line `where`, which the graph checks."""

    where: str
    what: str

    @property
    def violation(self) -> str:
        """What the check says that finds something else."""
        assumed = f"{self.what} was assumed when the function was compiled"
        return f"{self.where}: {assumed}, and does not hold"

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


# ---------------------------------------------------------------- 4. recipes


@dataclass(eq=False, slots=True)
class FromSource:
    """The object the source holds when the call begins (guarded, so known to be there)."""

    source: Source


@dataclass(eq=False, slots=True)
class FromGraph:
    """A value the graph computes."""

    value: GraphValue


@dataclass(eq=False, slots=True)
class Const:
    """An object known at capture time: an immutable scalar, a type, a lasting function."""

    value: Any


@dataclass(eq=False, slots=True)
class SizeValue:
    """A number computed from sizes and numbers of inputs; `numeric`: int, float or bool."""

    expr: Expr | FloatExpr | Condition
    numeric: type = int


@dataclass(eq=False, slots=True)
class MakeTuple:
    """A tuple, or an instance of the subclass `cls` made by `tuple.__new__`."""

    items: tuple[Recipe, ...]
    cls: type = tuple


@dataclass(eq=False, slots=True)
class MakeList:
    """A list; `cls` a subclass made by `__new__`, filled by `list.extend`."""

    items: list[Recipe] = field(default_factory=list)
    cls: type = list
    state: dict[str, Recipe] | None = None
    slots: dict[str, Recipe] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class MakeDict:
    """A dict, OrderedDict, defaultdict (`factory`) or a subclass made by `__new__`, filled in order
    by the base's `__setitem__`.

    `state` is the instance `__dict__` of a subclass that has one, `slots` what its `__slots__`
    hold.
    """

    items: list[tuple[Recipe, Recipe]] = field(default_factory=list)
    cls: type = dict
    factory: Recipe | None = None
    state: dict[str, Recipe] | None = None
    slots: dict[str, Recipe] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class MakeSet:
    """A set or frozenset, filled in order."""

    items: list[Recipe] = field(default_factory=list)
    cls: type = set


@dataclass(eq=False, slots=True)
class MakeObject:
    """An instance of a class: `cls.__new__`'s bare object, with `__dict__` and slots filled."""

    cls: type
    state: dict[str, Recipe] = field(default_factory=dict)
    slots: dict[str, Recipe] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class MakeCell:
    """A closure cell; `contents` None makes it empty."""

    contents: Recipe | None = None


@dataclass(eq=False, slots=True)
class MakeFunction:
    """A Python function made in the frame."""

    code: types.CodeType
    globals: dict[str, Any]
    name: str
    qualname: str
    defaults: Recipe | None = None
    kwdefaults: Recipe | None = None
    closure: tuple[Recipe, ...] | None = None
    annotations: Recipe | None = None
    doc: Recipe | None = None
    module: Recipe | None = None
    type_params: Recipe | None = None
    state: dict[str, Recipe] | None = None


@dataclass(eq=False, slots=True)
class CallRecipe:
    """`function(*args, **kwargs)` at exit: slices, methods, partials, iterators and the like.

    The function has no side effects beyond its arguments; it is called once for each recipe.
    """

    function: Callable[..., Any]
    args: tuple[Recipe, ...] = ()
    kwargs: dict[str, Recipe] = field(default_factory=dict)


Recipe: TypeAlias = (
    FromSource
    | FromGraph
    | Const
    | SizeValue
    | MakeTuple
    | MakeList
    | MakeDict
    | MakeSet
    | MakeObject
    | MakeCell
    | MakeFunction
    | CallRecipe
)


# ---------------------------------------------------------------- 5. side effects


@dataclass(eq=False, slots=True)
class SetAttr:
    """`obj.name = value` by `object.__setattr__`; without `raw`, by the type's own method."""

    obj: Recipe
    name: str
    value: Recipe
    raw: bool = True


@dataclass(eq=False, slots=True)
class DelAttr:
    """`del obj.name`."""

    obj: Recipe
    name: str
    raw: bool = True


@dataclass(eq=False, slots=True)
class ReplaceList:
    """The whole contents of a list (`obj[:] = items`)."""

    obj: Recipe
    items: list[Recipe]


@dataclass(eq=False, slots=True)
class ReplaceDict:
    """The whole contents of a dict, in order."""

    obj: Recipe
    items: list[tuple[Recipe, Recipe]]


@dataclass(eq=False, slots=True)
class ReplaceSet:
    """The whole contents of a set."""

    obj: Recipe
    items: list[Recipe]


@dataclass(eq=False, slots=True)
class StoreGlobal:
    """`globals[name] = value`, or its deletion when `value` is None."""

    module_globals: dict[str, Any]
    name: str
    value: Recipe | None


@dataclass(eq=False, slots=True)
class StoreCell:
    """The contents of a closure cell that existed before the call; `value` None empties it."""

    cell: Recipe
    value: Recipe | None


@dataclass(eq=False, slots=True)
class CallSideEffect:
    """A call replayed for its side effect: a print or log line, a setter of torch's state."""

    function: Callable[..., Any]
    args: tuple[Recipe, ...] = ()
    kwargs: dict[str, Recipe] = field(default_factory=dict)


SideEffect: TypeAlias = (
    SetAttr
    | DelAttr
    | ReplaceList
    | ReplaceDict
    | ReplaceSet
    | StoreGlobal
    | StoreCell
    | CallSideEffect
)


# ---------------------------------------------------------------- 6. frames at a graph break


@dataclass(eq=False, slots=True)
class SuspendedFrame:
    """One frame at a graph break, as bytecode/resume_code.py continues it.

    The innermost `performs` the instruction at `index` in CPython. The others are in a call there;
    its value is the next frame's. `arguments` are the recipes of the layout's parameters, in order.
    `following`: where the frame may continue after the instruction, and with which layout.
    """

    frame_code: FrameCode
    index: int
    performs: bool
    layout: Layout
    keyword_names: tuple[str, ...]
    arguments: list[Recipe]
    following: list[tuple[Successor, Layout]]


# ---------------------------------------------------------------- 1. the whole


@dataclass(frozen=True, slots=True)
class Break:
    """Why a frame could not be captured whole: a stable id, cause, line, and a hint."""

    id: str
    cause: str
    where: str = ""
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.cause} [{self.id}]"
        if self.where:
            text = f"{self.where}: {text}"
        return f"{text}\n  hint: {self.hint}" if self.hint else text


def defined_at(function: types.FunctionType) -> str:
    """Where a function begins, as a Break says where something is: "file.py:12"."""
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


class CaptureError(Exception):
    """Raised if a frame must be one graph (`fullgraph=True`) and cannot be captured whole."""

    def __init__(self, reason: Break) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass(eq=False, slots=True)
class Capture:
    """A captured frame: all that entries/entry.py needs, without references to the interpreter."""

    scope: Scope
    """The call it was captured on; dropped when the entry has been made."""
    calls: list[Call] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    side_effects: list[SideEffect] = field(default_factory=list)
    result: Recipe = field(default_factory=lambda: Const(None))
    size_env: SizeEnv | None = None
    torch_state: dict[str, Any] = field(default_factory=dict)
    """Names (torch_state.py) and values of unusual torch states that this capture reads."""
    unbacked: dict[str, GraphValue] = field(default_factory=dict)
    """Symbols that the graph itself defines, by name: the value that is each."""
    suspended: list[SuspendedFrame] = field(default_factory=list)
    """The frames to continue after a graph break, outermost first; `result` is then unused."""
    cause: Break | None = None
    """Why the capture ends at a graph break, or (`eager`) why there is none."""
    enables_grad: bool = False
    """The call turns gradients on: the graph runs with them on, and first turns them off."""
    observed_is_compiling: bool = False
    """The program asked whether it is compiled: eagerly it may take another path."""
    eager: bool = False
    """The call is left to the interpreter; the guards say for which other calls that holds."""
    assumptions: tuple[Assumption, ...] = ()
    """What the program's own ways are taken by, and what another call may find otherwise."""
    locks: tuple[Source, ...] = ()
    """The locks that the frame takes and gives back, in the order in which it takes them."""
    pinned: tuple[tuple[Any, Source], ...] = ()
    """Objects that the guards require to be the same ones, and where the call finds them: what the
    entry needs of them it reads there, and holds none itself.
    """
    definitions: tuple[tuple[Any, str | type], ...] = ()
    """What trusted modules and classes define, (holder, name), that was read without a guard."""
    of_the_process: str = ""
    """What was read that differs from process to process without a guard; "" if nothing was."""
    constants: tuple[AssumedConstant, ...] = ()
    """What functions returned that the program marks as constant."""
    needs_hook: bool = False
    """Whether frames reached from the instruction that broke the graph are to be captured too."""


CaptureFrame: TypeAlias = "Callable[[Scope, Any, DynamicDims], Capture | Break]"
"""`capture_frame(scope, options, dynamic)`: run the frame of `scope.function`. It never raises:
unsupported programs and escaping exceptions are Breaks.
"""


class Declared(Protocol):
    """Sizes and ints of one capture that are symbolic because the caller said so."""

    def sizes_of(self, tensor: torch.Tensor) -> dict[int, Expr] | None:
        """A tensor's symbolic sizes by dimension; None for tensors without declarations."""

    def int_at(self, source: Source) -> Expr | None:
        """The symbol of the int at `source`; None for ints without a declaration."""


@dataclass(frozen=True, slots=True)
class DynamicDims:
    """Which sizes and numbers are to be symbolic in this capture, by the text of their source.

    `mode` is the option `dynamic`: False nowhere, True every size (and int argument), None where
    `changed` says that earlier calls differed: in these dims of a tensor, or for a number in -1.
    `numbers`: all numbers, wherever they are read, as if they had changed. `blocklisted`: lines of
    the program where the contents of tensors have decided otherwise in an earlier call than was
    assumed.
    """

    mode: bool | None = None
    changed: Mapping[str, frozenset[int]] = field(default_factory=dict)
    numbers: bool = False
    blocklisted: frozenset[str] = frozenset()

    def declare(self, env: SizeEnv) -> Declared | None:
        """The symbols that the caller declared (an export's `dynamic_shapes`), or None."""
        return None

    def is_dynamic(self, source: Source, dim: int = -1) -> bool:
        """Whether a dimension of the tensor (-1: the number) at `source` should be a symbol."""
        if self.mode is None:
            return dim in self.changed.get(source.text(), ())
        return self.mode

    def has_changed(self, source: Source) -> bool:
        """Whether the number at `source` was another one in an earlier call."""
        return self.numbers or (bool(self.changed) and -1 in self.changed.get(source.text(), ()))

    def has_changed_within(self, source: Source) -> bool:
        """Whether a number inside the container at `source` was another one in an earlier call."""
        if self.numbers or not self.changed:
            return self.numbers
        start = f"{source.text()}["
        return any(text.startswith(start) for text in self.changed)
