"""What the lower floors of the interpreter ask of the state above them.

The modules of `values` and `torch_calls` take the capture that they work for as a `Recorder`, and
name nothing above their own floor. `machine.Machine` is the one implementation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from flambeau_capture.assumed_constants import AssumedConstant
    from flambeau_capture.interpreter.code.decode import DecodedCode
    from flambeau_capture.options import CaptureOptions
    from flambeau_capture.record import (
        Assumption,
        Call,
        DynamicDims,
        GraphValue,
        Input,
        Recipe,
        Scope,
    )
    from flambeau_capture.sources import Source
    from flambeau_capture.torch_state import Switches
    from flambeau_prims.sizes import SizeEnv
    from flambeau_prims.tracer import Tracer

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


State = TypeVar("State")


class ActiveFrame(Protocol):
    """A frame that is being interpreted."""

    ip: int
    globals: dict[str, Any]
    locals: list[Any]
    stack: list[Any]

    @property
    def code(self) -> DecodedCode: ...
    @property
    def machine(self) -> Recorder: ...
    @property
    def parent(self) -> ActiveFrame | None: ...
    def is_in_block(self, *, with_too: bool = True) -> bool: ...


class RecipeMaker(Protocol):
    """Makes the recipes of what leaves a frame."""

    def recipe(self, value: Any) -> Recipe: ...


class KnownObjects(Protocol):
    """What existed before the call: `values.objects.Objects`."""

    known: dict[int, tuple[Any, Source]]
    classes_written: dict[tuple[type, str], tuple[Any]]
    loading: Any

    @property
    def tracked_copies(self) -> dict[int, Any]: ...
    @property
    def tracked_copy_of(self) -> dict[int, Any]: ...
    def source_of(self, obj: Any) -> Source | None: ...
    def register(self, obj: Any, source: Source) -> None: ...
    def is_known(self, obj: Any) -> bool: ...
    def wrap(self, value: Any, source: Source) -> Any: ...
    def wrap_for(self, value: Any, source: Source, use: Any) -> Any: ...
    def whole(self, value: Any) -> Any: ...
    def read_whole(self, value: Any) -> Any: ...
    def pending_writes_of(self, obj: Any) -> dict[str, Any] | None: ...
    def side_effects_so_far(self) -> list[Any]: ...


class Classes(Protocol):
    """The classes of a capture: `values.classes.ClassTable`."""

    attributes: dict[Any, Any]
    methods: dict[Any, Any]
    made: dict[type, type]


class Functions(Protocol):
    """The functions of a capture: `values.program_functions.ProgramFunctions`."""

    made: dict[int, Any]

    def is_library(self, module_globals: dict[str, Any]) -> bool: ...


class SubclassTable(Protocol):
    """The tensor subclasses of a capture: `values.subclasses.Subclasses`."""

    def of(self, tensor: torch.Tensor) -> type[torch.Tensor] | None: ...


class CallTape(Protocol):
    """The calls of torch that a capture records: `torch_calls.tape.Tape`."""

    calls: list[Call]
    inputs: list[Input]
    written_storages: set[object]
    env: SizeEnv | None
    subgraphs: int
    hooked: list[Any]

    @property
    def hooks(self) -> list[Any]: ...
    @property
    def inference_guards(self) -> list[Any]: ...
    @property
    def machine(self) -> Recorder: ...
    @property
    def subclasses(self) -> SubclassTable: ...
    @property
    def tracer(self) -> Tracer: ...
    def size_env(self) -> SizeEnv: ...
    def value_of(self, fake: torch.Tensor) -> GraphValue: ...
    def is_value(self, fake: torch.Tensor) -> bool: ...
    def can_hold(self, arg: Any) -> bool: ...
    def is_of_numbers(self, expr: Any) -> bool: ...
    def number(self, number: Any) -> Any: ...
    def truth(self, tensor: torch.Tensor) -> bool: ...
    def fake_input(self, real: torch.Tensor, source: Source) -> torch.Tensor: ...
    def symbolic_number(self, value: Any, source: Source) -> Any: ...
    def input_of(self, fake: torch.Tensor) -> tuple[torch.Tensor, Input] | None: ...
    def real_type(self, tensor: torch.Tensor) -> type[torch.Tensor]: ...
    def values_made(self) -> int: ...
    def made_since(self, mark: int) -> dict[int, tuple[Any, GraphValue]]: ...
    def getitem(self, tensor: torch.Tensor, key: Any) -> Any: ...
    def call_function(
        self, target: Callable[..., Any], args: Args, kwargs: Kwargs | None = None
    ) -> Any: ...
    def call_method(self, name: str, args: Args, kwargs: Kwargs | None = None) -> Any: ...
    def record(
        self,
        target: Callable[..., Any] | str,
        args: Args,
        kwargs: Kwargs | None = None,
        result: Any = None,
        *,
        where: str = "",
        **flags: Any,
    ) -> None: ...
    def call_state(self, target: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any: ...
    def record_setting(
        self, target: Callable[..., Any], args: Args, kwargs: Kwargs | None = None
    ) -> None: ...
    def call_untraced(
        self,
        target: Callable[..., Any] | str,
        args: Args = (),
        kwargs: Kwargs | None = None,
        result: Any = None,
        *,
        mutates: tuple[GraphValue, ...] = (),
        can_raise: bool = False,
    ) -> None: ...


class Assumptions(Protocol):
    """What a capture assumes of data: `branches.speculation.Speculation`."""

    assumptions: dict[Assumption, None]

    def attach(self, env: SizeEnv | None) -> None: ...
    def detach(self, env: SizeEnv | None) -> None: ...
    def truth(self, condition: torch.Tensor) -> bool | None: ...
    def note(self, assumption: Assumption) -> None: ...
    def observe(self, where: str, wanted: Sequence[GraphValue]) -> None: ...


class Libraries(Protocol):
    """The libraries whose objects a capture has met: `foreign_types.OpenLibraries`."""

    def owner(self, kind: type) -> Any: ...


@dataclass(frozen=True, slots=True)
class CaptureStrategy:
    """`compiling`: what `is_compiling()` answers. `takes_locks`: the entry takes the locks that the
    frame takes; else that is a graph break. `shows_history`: text of tensors that have a gradient
    function may be made, which cannot leave the frame; else that is a graph break. `whole_dicts`:
    ids of dicts of torch's that the frame writes to; the others are read entry by entry.
    `enters_blocks`: the frame may enter levels of forward-mode differentiation; else that is a
    graph break, because no graph may end there.
    """

    compiling: bool = True
    takes_locks: bool = True
    shows_history: bool = True
    whole_dicts: frozenset[int] = frozenset()
    enters_blocks: bool = True


DEFAULT_STRATEGY = CaptureStrategy()
"""The first strategy with which a frame is tried."""


class Recorder(Protocol):
    """One capture, as the floors below `machine` see it: what exists, what is recorded and guarded,
    and the operations of Python, which the floors above define.
    """

    transforms: list[str]
    backwards: int
    observed_is_compiling: bool
    of_the_process: str
    constants: list[AssumedConstant]
    addresses_read: dict[int, Any]

    @property
    def scope(self) -> Scope: ...
    @property
    def options(self) -> CaptureOptions: ...
    @property
    def dynamic(self) -> DynamicDims: ...
    @property
    def strategy(self) -> CaptureStrategy: ...
    @property
    def switches(self) -> Switches: ...
    @property
    def classes(self) -> Classes: ...
    @property
    def functions(self) -> Functions: ...
    @property
    def foreign(self) -> Libraries: ...
    @property
    def objects(self) -> KnownObjects: ...
    @property
    def tape(self) -> CallTape: ...
    @property
    def speculation(self) -> Assumptions: ...
    @property
    def frame(self) -> ActiveFrame | None: ...
    @property
    def where(self) -> str: ...
    def state_of(self, feature: type[State]) -> State: ...
    def guard(self, kind: str, source: Source, payload: Any = None) -> None: ...
    def rely_on(self, holder: Any, name: str | type) -> None: ...
    @property
    def user_overrides(self) -> dict[int, Any]: ...
    def depend_on_state(self, name: str) -> None: ...
    def call(self, function: Any, args: Args, kwargs: Kwargs) -> Any: ...
    def interpret(self, function: Any, args: Args, kwargs: Kwargs) -> Any: ...
    def load(self, obj: Any, name: str) -> Any: ...
