"""What stands behind a compiled callable: its entries, what happens when none serves a call, and
why each was made.

The callable itself is `core.Compiled` (or its Python twin): it binds, checks guards and calls
entries. Here is the slow side: `CompiledState.on_miss` captures the frame, has the backend compile
it, keeps the reasons for recompilations and breaks, and gives up on a callable whose guards keep
failing.
"""

from __future__ import annotations

import inspect
import time
import types
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from flambeau_capture import background, torch_state
from flambeau_capture.bytecode.instructions import NotResumable
from flambeau_capture.core import core_is_native
from flambeau_capture.entries.new_entry import current_state, new_entry, skip_entry
from flambeau_capture.entries.outcomes import Call, Made, Prepared, same_graph, unstable
from flambeau_capture.entries.pending import PendingEntries, PendingEntry, stand_ins
from flambeau_capture.entries.recompilation import (
    ENTRIES_DIED,
    OF_NUMBERS,
    SizeChanges,
    is_more_general,
    kept_failing,
)
from flambeau_capture.entries.violations import VIOLATED, ViolatedLines
from flambeau_capture.events import (
    EntryInfo,
    Event,
    GuardFailure,
    assumption_violated,
    failure_of,
)
from flambeau_capture.frame_hook import CAPTURING, capturing
from flambeau_capture.guards.program import TooManyGuards, guard_program
from flambeau_capture.marks import violation
from flambeau_capture.options import CaptureOptions
from flambeau_capture.python_core import Compiled
from flambeau_capture.record import (
    Assumption,
    Break,
    Capture,
    CaptureError,
    CaptureFrame,
    DynamicDims,
    SuspendedFrame,
    defined_at,
)
from flambeau_capture.sources import Scope
from flambeau_capture.stance import KEEPS_ENTRIES, current_stance
from flambeau_capture.stored.reasons import NotStorable
from flambeau_prims.collector import collector_paused
from flambeau_prims.fork_safety import fork_safe_rlock
from flambeau_prims.lazy_exports import import_apart

if TYPE_CHECKING:
    from flambeau_capture.entries.continuations import Changing, Continuations
    from flambeau_capture.entries.entry import Backend
    from flambeau_capture.entries.entry_parts import EntryParts
    from flambeau_capture.entries.violations import Violations
    from flambeau_capture.hooked_frames import HookedFrames
    from flambeau_capture.stored.store import EntryStore


MOST_DROPPED = 3
"""After so many compiles in the background that were for nothing, calls wait for theirs."""


class CompiledState:
    """The slow side of one compiled callable. One thread compiles; others wait, then look again."""

    def __init__(
        self,
        function: types.FunctionType,
        capture_frame: CaptureFrame,
        backend: Backend,
        options: CaptureOptions,
        continuations: Continuations | None = None,
    ) -> None:
        self.function = function
        self.capture_frame = capture_frame
        self.backend = backend
        self.options = options
        self.events: list[Event] = []
        self.listener: Callable[[Event], None] | None = None
        """Receives each event as it happens."""
        self.watch: Callable[[], AbstractContextManager[None]] = nullcontext
        """Each capture and compile runs in one of these contexts."""
        self.resolve_backend: Callable[[Any], Backend] = _callable_backend
        """What a stance's backend, a name perhaps, means for this callable."""
        self.entry_store: EntryStore | None = None
        """Where entries of other processes are, and those of this one go; None for nowhere."""
        self._is_continuation = continuations is not None
        """Whether the function continues another one, so that its entries return Tails."""
        self._continuations = continuations
        """Made with the first entry."""
        self._with_backend: dict[Any, Any] | None = {}
        self._compiled: Callable[[], Any] = lambda: None
        self._lock = fork_safe_rlock()
        self._changes = SizeChanges()
        self._made = 0
        self._generalised = False
        """Whether an entry for all sizes and numbers was made, at the limit."""
        self._violated_lines = ViolatedLines()
        self._hooked: HookedFrames | None = None
        """Made at the first break at a call of Python code."""
        self.owner: CompiledState = self
        """The state of the callable that was compiled; of its continuations, too."""
        self._pending = PendingEntries()
        self._dropped = 0
        """How many compiles in the background were dropped, because torch's state changed."""

    def new_callable(self) -> Any:
        """The callable that this state stands behind."""
        compiled = Compiled(self.function, self.on_miss, self)
        if self.options.own_frames and core_is_native():
            compiled.keeps_frames = True
        self.attach(compiled)
        return compiled

    def attach(self, compiled: Any) -> None:
        """Set the callable that this state belongs to, held weakly because it holds the state."""
        self._compiled = weakref.ref(compiled)

    @property
    def entries(self) -> tuple[Any, ...]:
        """The current entries, most recently used first; each has an `info` (EntryInfo)."""
        compiled = self._compiled()
        return () if compiled is None else compiled.entries

    def expect_dynamic(self, changes: Mapping[str, frozenset[int]]) -> None:
        """Make dims (-1: the number) symbolic from the first capture on, by text of the source."""
        with self._lock:
            self._changes.expect(changes)

    def reset(self) -> None:
        """Forget all entries, events and what was learnt of sizes."""
        with self._lock:
            compiled = self._compiled()
            if compiled is not None:
                compiled.entries = ()
            if self._continuations is not None and not self._is_continuation:
                self._continuations.clear()
            self.events.clear()
            self._changes.clear()
            self._made = 0
            self._generalised = False
            self._violated_lines.clear()
            self._dropped = 0
            self._pending.clear()
            if self._hooked is not None:
                self._hooked.clear()
            if self._with_backend is not None:
                self._with_backend.clear()
        background.cancel(self.owner)

    def with_backend(self, backend: Any) -> Any:
        """The function compiled by a backend that a stance forces; None if this one is that."""
        with self._lock:
            if self._with_backend is None:
                return None
            found = self._with_backend.get(backend)
            if found is None:
                state = CompiledState(
                    self.function, self.capture_frame, self.resolve_backend(backend), self.options
                )
                state._with_backend = None
                state.watch = self.watch
                found = self._with_backend[backend] = state.new_callable()
            return found

    def _continuation(self, function: types.FunctionType) -> Any:
        """The compiled rest of one of this callable's frames."""
        state = self._below(function, self._continuations)
        state._with_backend = None
        return state.new_callable()

    def _frame_state(self, function: types.FunctionType) -> CompiledState:
        """The state of a function that is reached below a graph break of this callable."""
        return self._below(function)

    def _below(
        self, function: types.FunctionType, continuations: Continuations | None = None
    ) -> CompiledState:
        state = CompiledState(
            function, self.capture_frame, self.backend, self.options, continuations
        )
        state.listener = self.note
        state.watch = self.watch
        state.resolve_backend = self.resolve_backend
        state.owner = self.owner
        state.entry_store = self.entry_store
        return state

    # ------------------------------------------------------------ misses

    def on_miss(self, arguments: tuple[Any, ...], unserved: Any = None) -> Any:
        """An entry for a call that no entry serves; None runs the original function. `unserved`:
        the entry that was the answer before, and does not serve the call after all.
        """
        if unserved is not None and not self._withdraw(unserved):
            return None
        try:
            return self._entry_for(arguments, again=unserved is not None)
        except RecursionError:
            if self.options.fullgraph:
                raise
            broken = Break(
                "inline-depth",
                f"Python's recursion limit leaves too little of the stack to compile "
                f"{self.function.__qualname__}",
                defined_at(self.function),
                "raise it with sys.setrecursionlimit",
            )
        self.note(Event("eager", str(broken), reason=broken))
        return None

    def _withdraw(self, entry: Any) -> bool:
        """Drop an entry of another process, of which not one call violates no assumption; whether
        it is such an entry.
        """
        if entry.info.stored != "read" or not VIOLATED.has(self, entry.info):
            return False
        with self._lock:
            compiled = self._compiled()
            entries = () if compiled is None else compiled.entries
            kept = tuple(each for each in entries if each is not entry)
            if compiled is not None and len(kept) < len(entries):  # unless another thread did
                compiled.entries = kept
                self._made -= 1
        return True

    def _entry_for(self, arguments: tuple[Any, ...], *, again: bool = False) -> Any:
        compiled = self._compiled()
        if compiled is None or CAPTURING.depth or not torch_state.lets_capture():
            return None
        violated = VIOLATED.take(self, again=again)
        if not self._lock.acquire(blocking=not self.options.background):
            return None  # another thread captures
        try:
            entries = compiled.entries
            for entry in entries:
                if entry.program.failed(self.function, arguments) is not None:
                    violated.pop(entry.info, None)  # by an earlier call, which another entry served
                elif entry.info not in violated:
                    return entry  # made by another thread meanwhile
            if self._pending.serves(self.function, arguments):
                return None
            scope = Scope(self.function, arguments)
            entries = tuple(entry for entry in entries if not entry.info.is_dead())
            known = (*entries, *self._pending)
            others = (entry.info for entry in known if entry.info not in violated)
            reasons = (*violated.values(), *(failure_of(info.guards, scope) for info in others))
            call = Call(compiled, entries, scope, reasons, violated)
            stance = current_stance().name
            if stance != "default" and self._runs_eagerly(stance, scope, reasons):
                return None
            if stance == "aot_eager_then_compile" and self._is_first_call(scope):
                return self._compile(call, backend=self.resolve_backend("aot_eager"))
            if self.options.dynamic is not False:
                self._changes.compare_with_entries(known, scope)
            if not self._waits_for(call):
                return self._entry_of(call)
            with background.place(self.options.background_limit) or nullcontext() as place:
                return None if place is None else self._entry_of(call, place)
        finally:
            self._lock.release()

    def _entry_of(self, call: Call, place: background.Place | None = None) -> Any:
        """An entry that is compiled for a call; None where it runs eagerly."""
        limit = self.options.recompile_limit
        many = len(call.entries) + len(self._pending) >= limit
        if many or self._made >= ENTRIES_DIED * limit:
            return self._at_limit(call, place)
        return self._compile(call, place=place)

    def _waits_for(self, call: Call) -> bool:
        """Whether a call runs eagerly while its entry is compiled."""
        if not self.options.background:
            return False
        refused = ""
        if torch_state.hooks_saved_tensors():
            refused = "the program has hooks on saved tensors, which belong to its thread"
        elif self._dropped >= MOST_DROPPED:
            refused = "the program changed torch's state during each compile in the background"
        if refused:
            self.note(Event("foreground", f"{call.scope.function.__qualname__}: {refused}"))
        return not refused

    def _runs_eagerly(self, stance: str, scope: Scope, failures: tuple[GuardFailure, ...]) -> bool:
        """Whether the stance runs this call eagerly; RuntimeError if the stance is to fail."""
        if stance == "fail_on_recompile":
            because = "".join(f"\n- {failure}" for failure in failures)
            raise RuntimeError(
                f"{self.function.__qualname__} ({defined_at(self.function)}) would have to "
                f"be compiled, and the stance is "
                f"'fail_on_recompile'; "
                f"{'guards that failed:' if because else 'nothing is compiled for it yet'}{because}"
            )
        if stance in ("force_eager", "eager_on_recompile") or (
            stance == "eager_then_compile" and self._is_first_call(scope)
        ):
            text = f"{self.function.__qualname__} ran eagerly: the stance is {stance!r}"
            if not self.events or self.events[-1].text != text:  # not one a call
                self.note(Event("eager", text, failures=failures))
            return True
        return False

    def _is_first_call(self, scope: Scope) -> bool:
        """Whether this is the first call; its sizes are kept, and compared with the second's."""
        if not self._changes.has_first_call:
            # A continuation belongs to a call that is being compiled.
            if self._made or self._is_continuation:
                return False
            self._changes.remember_first_call(scope)
            return True
        self._changes.compare_with_first_call(scope)
        return False

    def _compile(
        self,
        call: Call,
        *,
        backend: Backend | None = None,
        captured: Capture | None = None,
        place: background.Place | None = None,
    ) -> Any:
        """The entry for a call; with `backend`, one for this call only; of this capture, if there
        is one already. With a place in the queue, None: the entry is compiled in the background.
        """
        # One pause for all stages: after each of several, a collection visits what the stages
        # before have made.
        with collector_paused():
            return self._compile_paused(call, backend, captured, place)

    def _compile_paused(
        self,
        call: Call,
        backend: Backend | None,
        captured: Capture | None,
        place: background.Place | None,
    ) -> Any:
        started = time.perf_counter()
        violations = self._violated_lines.known(call.violated)
        if backend is None and captured is None:
            entry = self._stored(call.scope, violations)
            if entry is not None:
                seconds = time.perf_counter() - started
                because = "; ".join(map(str, call.reasons)) or self.function.__qualname__
                text = f"{because} (compiled by an earlier process)"
                self.note(Event("stored", text, seconds, failures=call.reasons, entry=entry.info))
                if (broken := entry.info.broken) is not None:
                    self.note(Event("break", str(broken), failures=call.reasons, reason=broken))
                self._made += 1
                call.compiled.entries = (entry, *call.entries)
                return entry

        def make() -> Made | Prepared:
            prepared = self._prepare(call.scope, captured)
            if place is not None or isinstance(prepared, Made):
                return prepared
            return self._finish(prepared, backend or self.backend)

        made = self._attempt(call.scope, make)
        if isinstance(made, Prepared):
            assert place is not None
            return self._submit(call, made, place, started)
        if made.entry is not None and (broken := unstable(made.entry, call.scope)) is not None:
            made = Made(None, broken, made.capture_seconds)
        if backend is None:
            self._store_entry(made, violations)
        return self._install(call, made, time.perf_counter() - started, keep=backend is None)

    def _install(self, call: Call, made: Made, seconds: float, *, keep: bool = True) -> Any:
        """Note what was made for a call, and keep the entry."""
        compiled, entries, scope, reasons = call.compiled, call.entries, call.scope, call.reasons
        broken, entry = made.broken, made.entry
        if broken is not None and broken.id == "dynamic-mark":
            raise CaptureError(broken)
        if entry is not None and not made.eager:
            kind = "recompile" if reasons else "capture"
            text = "; ".join(map(str, reasons)) or self.function.__qualname__
            self.note(Event(kind, text, seconds, made.capture_seconds, reasons, entry=entry.info))
            seconds = 0.0
        if broken is not None:
            self.note(
                Event("break", str(broken), seconds, made.capture_seconds, reasons, reason=broken)
            )
        if self.options.fullgraph and broken is not None:
            if broken.id == "exception-escapes":
                return _making().raising_entry(scope, broken)
            raise CaptureError(broken)
        if entry is None:
            assert broken is not None
            compiled.entries = (*entries, skip_entry(len(scope.arguments), broken))
            return None
        if not keep:
            return entry
        if any(same_graph(info, entry.info) for info in call.violated):
            compiled.entries = (*entries, self._eager_at_the_edge(entry))
            return None
        self._made += 1
        compiled.entries = (entry, *entries)
        return entry

    # ------------------------------------------------------------ compiles in the background

    def _submit(
        self, call: Call, prepared: Prepared, place: background.Place, started: float
    ) -> None:
        """Compile the entry in the worker thread; until it is there, its calls run eagerly."""
        scope, parts = call.scope, prepared.entry
        program = guard_program(parts.guards, (), len(scope.arguments))
        inputs = tuple((item.source, item.spec) for item in prepared.captured.inputs)
        pending = PendingEntry(EntryInfo(parts.guards, inputs), program)
        if (broken := unstable(pending, scope)) is not None:
            self._install(call, Made(None, broken, prepared.seconds), prepared.seconds)
            return
        parts.examples = stand_ins(parts.examples)
        state = torch_state.ThreadState()

        def run(job: background.Job) -> None:
            try:
                with state.taken_over():
                    differs = state.difference()
                    if not differs:
                        made = self._attempt(scope, lambda: self._finish(prepared, self.backend))
                        differs = state.difference()
                        if made.entry is not None and self._store() is not None:
                            made.entry.info.stored = str(NotStorable("background"))
            except background.Cancelled:
                raise
            except BaseException as error:
                self._fail(pending, error)
                return
            if differs:
                self._drop(pending, differs)
            else:
                self._switch(call, pending, made, time.perf_counter() - started)

        def forget() -> None:
            with self._lock:
                self._pending.discard(pending)

        self._pending.add(pending)
        place.submit(background.Job(self.owner, scope.function.__qualname__, run, forget))

    def _switch(self, call: Call, pending: PendingEntry, made: Made, seconds: float) -> None:
        """Serve calls with an entry from now on, unless it was cancelled."""
        with self._lock:
            if pending not in self._pending:
                return
            self._pending.discard(pending)
            kept = tuple(item for item in call.compiled.entries if not item.info.is_dead())
            try:
                self._install(replace(call, entries=kept), made, seconds)
            except CaptureError as error:
                self._pending.add(pending)
                self._fail(pending, error)

    def _fail(self, pending: PendingEntry, error: BaseException) -> None:
        """Have the next call that the entry was for raise its error."""
        with self._lock:
            if pending in self._pending:
                pending.error = error
                self.note(Event("failed", f"{type(error).__name__}: {error}"))

    def _drop(self, pending: PendingEntry, state: str) -> None:
        """Forget an entry that was compiled under another state of torch than its guards ask."""
        with self._lock:
            if pending in self._pending:
                self._pending.discard(pending)
                self._dropped += 1
                text = f"torch's {state} changed while {self.function.__qualname__} was compiled"
                self.note(Event("dropped", text))

    def _eager_at_the_edge(self, entry: Any) -> Any:
        """The last-resort entry for data whose assumption holds in eager but not in the graph."""
        broken = Break(
            "data-dependent",
            f"{self.function.__qualname__} runs eagerly for some data: of them its graph "
            f"finds other than eager what it assumes",
            entry.info.assumptions[-1].where,
            "compare with a margin",
        )
        self.note(Event("eager", str(broken), reason=broken))
        info = EntryInfo(entry.info.guards, entry.info.inputs, skipped=broken)
        return new_entry(entry.program, None, last_resort=True, info=info)

    def _attempt(self, scope: Scope, step: Callable[[], Any]) -> Any:
        """What a step of a compile gives, or a Made with the reason why there is no entry."""
        started = time.perf_counter()
        try:
            with capturing(), self.watch():
                return step()
        except NotResumable as error:
            broken = Break("not-resumable", str(error), defined_at(scope.function))
        except TooManyGuards:
            broken = Break(
                "guard-limit",
                f"the guards of {scope.function.__qualname__} do not fit a guard program",
                defined_at(scope.function),
            )
        return Made(None, broken, time.perf_counter() - started)

    def _prepare(self, scope: Scope, captured: Capture | Break | None) -> Prepared | Made:
        """Capture a call; what a backend is to compile, or what is made without it."""
        started = time.perf_counter()
        state = current_state()
        if captured is None:
            captured = self._capture(scope)
        seconds = time.perf_counter() - started
        broken = captured if isinstance(captured, Break) else self._violation(captured)
        if broken is not None or isinstance(captured, Break):
            return Made(None, broken, seconds)
        handler = self._hooked_frames().handler if captured.needs_hook else None
        if captured.eager:
            entry = _making().eager_entry(captured, state, handler)
            return Made(entry, captured.cause, seconds, eager=True)
        self._made_continuations()
        entry = _making().prepare_entry(captured, state, self.options.guard_filter_fn)
        return Prepared(captured, entry, seconds, handler, self._changes.dims())

    def _finish(self, prepared: Prepared, backend: Backend) -> Made:
        """Have the backend compile a graph."""
        captured = prepared.captured
        parts: list[EntryParts] = []
        entry = _making().finish_entry(
            prepared.entry,
            backend,
            self._made_continuations(),
            to_end=not self._is_continuation,
            handler=prepared.handler,
            note=self.note,
            violated=self._violated,
            changed=prepared.changed,
            keep=parts.append,
        )
        # The backend may have fixed a size, too.
        broken = self._violation(captured)
        if broken is not None:
            return Made(None, broken, prepared.seconds)
        return Made(entry, captured.cause, prepared.seconds, parts=parts[0])

    def _store_entry(self, made: Made, violations: Violations) -> None:
        """Keep what the backend of this callable has compiled for other processes, if asked to."""
        refused = self.options.fullgraph and made.broken is not None
        if made.entry is not None and made.parts is not None and not refused and self._store():
            store = _storing().store_entry
            made.entry.info.stored = store(self.entry_store, made.parts, violations)

    def _store(self) -> EntryStore | None:
        """The store, if this callable's entries are of a kind that may be kept."""
        return self.entry_store if self.options.guard_filter_fn is None else None

    def _stored(self, scope: Scope, violations: Violations) -> Any:
        """The entry of another process for a call, or None."""
        store = self._store()
        if store is None:
            return None
        with capturing(), self.watch():
            context = import_apart("flambeau_capture.stored.frames").EntryContext(
                self._frame_functions,
                lambda: self._hooked_frames().handler,
                self._violated,
                not self._is_continuation,
            )
            find = _storing().find_entry
            return find(store, scope, current_state(), self.note, context, violations)

    def _frame_functions(
        self, suspended: list[SuspendedFrame], changing: Callable[[int, int], Changing]
    ) -> list[types.FunctionType]:
        """The function that rebuilds each frame of an entry that was read."""
        stage = import_apart("flambeau_capture.entries.continuations")
        continuations = self._made_continuations()
        return stage.frame_functions(suspended, continuations, changing)  # type: ignore[no-any-return]

    def _made_continuations(self) -> Continuations:
        if self._continuations is None:
            stage = import_apart("flambeau_capture.entries.continuations")
            self._continuations = stage.Continuations(self._continuation)
        return self._continuations

    def _hooked_frames(self) -> HookedFrames:
        if self._hooked is None:
            module = import_apart("flambeau_capture.hooked_frames")
            self._hooked = module.HookedFrames(self._frame_state)
        return self._hooked

    def _violation(self, captured: Capture) -> Break | None:
        return violation(captured, self.options.dynamic_shapes)

    def on_frame(self, function: types.FunctionType, arguments: tuple[Any, ...]) -> Any:
        """`on_miss` for a frame that the hook offers; its function may have new cells."""
        if not self._lock.acquire(blocking=not self.options.background):
            return None
        try:
            self.function = function
            return self.on_miss(arguments)
        finally:
            self.function = _without_closure(function)
            self._lock.release()

    def _capture(self, scope: Scope) -> Capture | Break:
        changed = self._changes.dims()
        blocklisted = self._violated_lines.blocklisted
        dynamic = DynamicDims(self.options.dynamic, changed, blocklisted=blocklisted)
        captured = self.capture_frame(scope, self.options, dynamic)
        cause = captured if isinstance(captured, Break) else captured.cause
        retried = cause is not None and cause.id != "call-limit"
        if retried and self.options.dynamic is None and changed:
            # A size that was only guessed to be dynamic must not cost the graph.
            static = self.capture_frame(scope, self.options, replace(dynamic, mode=False))
            because = static if isinstance(static, Break) else static.cause
            if because is None or cause is None or because.where != cause.where:
                self._changes.forget()
                return static
        return captured

    def _at_limit(self, call: Call, place: background.Place | None = None) -> Any:
        """At the limit of compilations: once, an entry for all sizes and numbers; then none."""
        entries, scope, reasons = call.entries, call.scope, call.reasons
        failing = kept_failing(self.events, reasons)
        name, limit = self.function.__qualname__, self.options.recompile_limit
        captured = None
        if failing.kind in OF_NUMBERS:
            captured = self._capture_for_all(entries, scope, reasons)
        if captured is not None:
            text = (
                f"{name} was compiled {limit} times (recompile_limit); now once for all sizes and "
                f"numbers. The guard that kept failing: {failing.text}"
            )
            self.note(Event("generalise", text, failures=reasons))
            warnings.warn(f"flambeau: {text}", RuntimeWarning, stacklevel=3)
            return self._compile(call, captured=captured, place=place)
        broken = Break(
            "recompile-limit",
            f"{name} was compiled {max(limit, self._made)} times (recompile_limit); other "
            f"calls run eagerly. The guard that kept failing: {failing.text}",
            defined_at(self.function),
            "make the value that varies a tensor, or raise recompile_limit",
        )
        self.note(Event("limit", str(broken), failures=reasons, reason=broken))
        if self.options.fullgraph:
            raise CaptureError(broken)
        if not self._generalised:
            warnings.warn(f"flambeau: {broken}", RuntimeWarning, stacklevel=3)
        call.compiled.entries = (*entries, skip_entry(len(scope.arguments), broken))
        return None

    def _capture_for_all(
        self, entries: tuple[Any, ...], scope: Scope, reasons: tuple[GuardFailure, ...]
    ) -> Capture | None:
        """A capture with all sizes and changed numbers symbolic; None if it serves no others."""
        if self.options.dynamic is False or self._generalised:
            return None
        breaks = [entry.info.broken for entry in entries]
        with capturing(), self.watch():
            for numbers in (True, False):
                blocklisted = self._violated_lines.blocklisted
                dynamic = DynamicDims(True, self._changes.dims(), numbers, blocklisted)
                with collector_paused():
                    captured = self.capture_frame(scope, self.options, dynamic)
                if is_more_general(captured, reasons, breaks):
                    assert isinstance(captured, Capture)
                    self._generalised = True
                    return captured
        return None

    def _violated(self, info: EntryInfo, assumption: Assumption) -> None:
        """The graph contradicts an assumption. Unless `fullgraph` is set, the entry is dropped: the
        next one assumes the other way, which a counter keeps for ever. The second time the line is
        blocklisted.
        """
        recompiles = current_stance().name not in KEEPS_ENTRIES
        with self._lock:
            compiled = self._compiled()
            if not self.options.fullgraph and compiled is not None and recompiles:
                self._violated_lines.add(info, assumption)
                compiled.entries = tuple(
                    entry for entry in compiled.entries if entry.info is not info
                )
            VIOLATED.add(self, info, assumption_violated(assumption))

    def note(self, event: Event) -> None:
        """Keep an event, and tell the listener."""
        self.events.append(event)
        if self.listener is not None:
            self.listener(event)
        if self.options.verbose:
            print(f"flambeau: {event.kind} of {self.function.__qualname__}: {event.text}")


def _making() -> types.ModuleType:
    """`entries.entry`, which makes entries of captures, imported at the first capture."""
    return import_apart("flambeau_capture.entries.entry")


def _storing() -> types.ModuleType:
    """`stored.store`, imported if entries are kept for other processes."""
    return import_apart("flambeau_capture.stored.store")


def _without_closure(function: types.FunctionType) -> types.FunctionType:
    """A function that says as much in reports, and keeps no cells alive."""
    code = function.__code__
    cells = tuple(types.CellType() for _ in code.co_freevars) or None
    return types.FunctionType(code, function.__globals__, function.__name__, None, cells)


def _callable_backend(backend: Any) -> Backend:
    if not callable(backend):
        raise ValueError(f"the backend {backend!r} has a name that only flambeau.compile knows")
    return backend  # type: ignore[no-any-return]


# ---------------------------------------------------------------- making compiled callables


def bound_count(code: types.CodeType) -> int:
    """How many values the arguments of a call bind to: parameters, `*args` and `**kwargs`."""
    stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + stars


_NOT_A_CALL = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def compile_callable(
    fn: Callable[..., Any],
    capture_frame: CaptureFrame,
    backend: Backend,
    options: CaptureOptions | None = None,
) -> Callable[..., Any]:
    """A callable that behaves as `fn` and runs what `backend` makes of its graphs. Nothing is
    captured before the first call.

    `fn` is a function, a bound method, an nn.Module or any object whose type defines `__call__` in
    Python; other callables (builtins, classes, partials) are called from a small function of ours.
    """
    options = options or CaptureOptions()
    if isinstance(fn, Compiled):
        fn = fn.__wrapped__
    if isinstance(fn, types.MethodType):
        return types.MethodType(
            compile_callable(fn.__func__, capture_frame, backend, options), fn.__self__
        )
    if not isinstance(fn, types.FunctionType):
        call = getattr(type(fn), "__call__", None)  # noqa: B004 (its function is wanted, not whether there is one)
        operators = (type, torch._ops.OpOverload, torch._ops.OpOverloadPacket)
        if isinstance(call, types.FunctionType) and not isinstance(fn, operators):
            return types.MethodType(compile_callable(call, capture_frame, backend, options), fn)
        fn = _calling(fn)
    state = CompiledState(fn, capture_frame, backend, options)
    compiled = state.new_callable()
    if fn.__code__.co_flags & _NOT_A_CALL:
        reason = Break(
            "generator-frame",
            f"{fn.__qualname__} is a generator or coroutine function",
            defined_at(fn),
        )
        if options.fullgraph:
            raise CaptureError(reason)
        state.events.append(Event("break", str(reason), reason=reason))
        compiled.entries = (skip_entry(bound_count(fn.__code__), reason),)
        compiled.on_miss = None
    return compiled


def _calling(callable_object: Callable[..., Any]) -> types.FunctionType:
    def call(*args: Any, **kwargs: Any) -> Any:
        return callable_object(*args, **kwargs)

    call.__qualname__ = call.__name__ = getattr(
        callable_object, "__name__", type(callable_object).__name__
    )
    assert isinstance(call, types.FunctionType)
    return call


def state_of(compiled: Callable[..., Any]) -> CompiledState:
    """The state behind what `compile_callable` returned; TypeError for anything else."""
    function = getattr(compiled, "__func__", compiled)
    if not isinstance(function, Compiled):
        raise TypeError(f"{compiled!r} is not a compiled callable")
    return function.state
