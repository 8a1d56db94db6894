"""Record one call of a Program as a CUDA graph.

The executor runs once while its stream is captured: nothing is computed, the driver takes down what
is launched. Recordings of one stream never run at the same time, so they share the memory of their
intermediates. What a recording hands out in place must be no other's intermediate: it comes from a
new pool, which only later recordings share. A forward has a pool that only its backward shares, in
which it takes over the saved memory (`handover.py`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
import threading
from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch

from flambeau_runtime import random_state
from flambeau_runtime.dims import evaluate
from flambeau_runtime.dispatch import DTYPE_CODES
from flambeau_runtime.externs import argument_of
from flambeau_runtime.graph_launch.driver_objects import DriverObjects
from flambeau_runtime.graph_launch.eligibility import (
    attention_seeds,
    draws_random_numbers,
    draws_seeds,
    idle_tensors,
    may_call_blas,
    written_or_drawn_for,
)
from flambeau_runtime.graph_launch.handover import Handover, SavedMemory
from flambeau_runtime.graph_launch.memory import memory_of_tensors
from flambeau_runtime.graph_launch.pool import Pool, allocates_from_a_pool
from flambeau_runtime.graph_launch.streams import Arena
from flambeau_runtime.graph_launch.workspaces import plain_ones_given_back
from flambeau_runtime.peak_memory import live_bytes
from flambeau_runtime.program import Extern, Free, Launch, Program, Reserve, SizeExpr
from flambeau_runtime.random_state import GraphState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import ModuleType

    from flambeau_runtime.graph_launch.memory import Memory


class Input(IntEnum):
    """How a replay feeds an input. The numbers are those of csrc/recording.c."""

    UNUSED, FIXED, PATCHED, STAGED, WORD = range(5)


class Output(IntEnum):
    """How a replay makes an output. The numbers are those of csrc/recording.c."""

    NONE, INT, ARGUMENT, VIEW_OF_ARGUMENT, FRESH, WHOLE, PINNED, STATE, WORD = range(9)


class CannotRecord(Exception):
    """A call cannot be recorded; the text is the reason, in the user's terms."""


class NotNow(Exception):
    """A call cannot be recorded now, for a reason that may pass; the text is the reason."""


class NoRoom(Exception):
    """The memory of a recording cannot be had; the text says so."""


_DEFERRED: list[DriverObjects] = []
"""What could not be freed when it was dropped."""


class _Memory(DriverObjects):
    """Keeps a recording's graph and pools alive; dropped from the last to the first.

    Freeing them synchronises with the device, which ends a capture that the caller is in the middle
    of: what the collector drops there is freed by the next recording.
    """

    def __del__(self) -> None:
        super().__del__()
        if self.process != os.getpid():
            return
        with contextlib.suppress(Exception):  # at the interpreter's end torch may be gone
            if torch.cuda.is_current_stream_capturing():
                _DEFERRED.append(DriverObjects(*self.items))


@dataclass
class Tables:
    """What csrc/recording.c needs, as flat lists of ints in the order that it reads."""

    inputs: list[int] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)
    n_fresh: int = 0
    uses: list[tuple[int, int, int, int]] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    pinned: list[torch.Tensor] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    draws: list[tuple[int, int, int]] = field(default_factory=list)
    words: list[int] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recording and what its policy has to know of it.

    `pinned` are the addresses of outputs that stay in place, `storages` those of their memory;
    `in_place` numbers those outputs which the caller gets to see. `handover` is what it leaves to a
    backward, `borrowed` what a forward left to it.
    """

    recording: Any
    pinned: frozenset[int]
    in_place: frozenset[int]
    staged_bytes: int
    handover: Handover | None = None
    borrowed: Handover | None = None
    storages: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for shared in filter(None, (self.handover, self.borrowed)):
            shared.users.add(self)


class Recorder:
    """Records calls of one Program."""

    def __init__(self, program: Program, executor: Any, core: ModuleType, device: int) -> None:
        self.program = program
        self.executor = executor
        self.core = core
        self.device = device
        self.memory = memory_of_tensors(program)
        self.random = draws_random_numbers(program)
        reserves = [step for step in program.steps if isinstance(step, Reserve)]
        self.states = {step.name: number for number, step in enumerate(reserves)}
        self.words = _word_numbers(program, reserves)
        self.calls_libraries = any(memory.in_library for memory in self.memory.values())
        self.calls_blas = may_call_blas(program)
        self.public = len(program.outputs) - program.private_outputs
        self.idle = idle_tensors(program)
        self.seeds = attention_seeds(program) - self.idle
        self.seed_words = _seed_words(program, self.seeds, len(reserves))
        self.library_inputs = [
            memory.input
            for name, memory in self.memory.items()
            if memory.input is not None
            and memory.in_library
            and name in program.inputs
            and name not in self.idle | self.seeds
        ]
        returned = {
            self.memory[out].input
            for out in program.outputs
            if isinstance(out, str) and out in self.memory
        }
        freed = {step.name for step in program.steps if isinstance(step, Free)}
        self.freed = tuple(
            position
            for position, name in enumerate(program.inputs)
            if name in freed and position not in returned
        )
        """The inputs that are spent."""
        bound = {self.memory[name].input for name in written_or_drawn_for(program)}
        self.stageable = frozenset(self.library_inputs) - bound

    def held_bytes(self, symbols: bytes) -> int:
        """The memory that a recording holds as long as it lives, about; `symbols` are the sizes."""
        live = live_bytes(self.program, self.sizes(symbols))
        return max(live) - live[0]

    def sizes(self, symbols: bytes) -> dict[str, int]:
        """The values of symbolic sizes, by name."""
        names = (symbol.name for symbol in self.program.symbols if not symbol.is_element)
        return dict(zip(names, array("q", symbols), strict=True))

    def record(
        self,
        args: Sequence[Any],
        stream: int,
        settings: tuple[Any, ...],
        staged: frozenset[int],
        in_place: frozenset[int],
        handover: Handover | None = None,
    ) -> Recorded:
        """Record the call with these arguments, for replays on `stream` under these settings of
        libraries.

        Inputs in `staged` (positions) are copied into the graph's memory on each replay; of the
        outputs that the caller sees only those in `in_place` (numbers) may stay in place.
        `handover` is memory of the inputs that the recording may overwrite. Raises CannotRecord,
        NoRoom or NotNow.
        """
        _DEFERRED.clear()
        try:
            with torch.cuda.device(self.device):
                return self._record(args, stream, settings, staged, in_place, handover)
        except (CannotRecord, NotNow):
            raise
        except torch.OutOfMemoryError as error:
            raise NoRoom("there was no memory for a recording") from error
        except Exception as error:  # what a call raises in a capture alone is not the caller's
            first_line, _, _ = str(error).partition("\n")
            raise CannotRecord(f"recording failed: {first_line}") from error

    def _record(
        self,
        args: Sequence[Any],
        stream: int,
        settings: tuple[Any, ...],
        staged: frozenset[int],
        in_place: frozenset[int],
        handover: Handover | None,
    ) -> Recorded:
        if allocates_from_a_pool(self.device):
            raise NotNow("memory comes from the caller's pool")
        arena = Arena.of(self.core, self.device, stream)
        if not arena.side.busy.acquire(blocking=False):
            raise NotNow("another thread records for the stream")
        if handover is not None and handover.arena is not arena:
            handover = None
        try:
            pool = self._pool(arena, in_place, handover)
            shared = pool is arena.pool and not in_place
            with self._blas_workspace(arena, shared, stream):
                return self._capture(
                    arena, pool, args, stream, settings, staged, in_place, handover
                )
        finally:
            arena.side.busy.release()

    @contextlib.contextmanager
    def _blas_workspace(self, arena: Arena, shared: bool, home: int) -> Iterator[None]:
        """Have a handle of cuBLAS in this block, and a workspace if products are launched.

        Where the pool is shared by a stream's recordings and no other handle can be in use, the
        first product takes a workspace from the pool, in memory that is dead. A private pool would
        hold one for each recording: such recordings use the side stream's.
        """
        if not self.calls_blas:
            yield
            return
        arena.side.open_blas()
        with plain_ones_given_back(self.device, home):
            if not shared:
                arena.side.open_blas()
            yield

    def _pool(self, arena: Arena, in_place: frozenset[int], handover: Handover | None) -> Pool:
        if handover is not None:
            return handover.pool
        if self.program.private_outputs or self.random:
            return Pool(self.device)
        if in_place:
            arena.pool = Pool(self.device)
        return arena.pool

    def _capture(
        self,
        arena: Arena,
        pool: Pool,
        args: Sequence[Any],
        stream: int,
        settings: tuple[Any, ...],
        staged: frozenset[int],
        in_place: frozenset[int],
        handover: Handover | None,
    ) -> Recorded:
        capturing = _torch_graph if self.random else _own_graph
        with _collector_paused():
            with capturing(self.core, arena, pool) as graph:
                side = arena.side.stream.cuda_stream
                capture = _Capture(self, args, side, staged, in_place, handover)
            return capture.finish(graph, stream, settings, arena, pool)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Run no finalizers: they would be captured if they launch, and fail if they free memory."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass
class _Graph:
    """The graph of a capture: its executable's address, what replays it, what keeps it alive, what
    its library calls draw from.
    """

    exec: int = 0
    replay: Any = None
    keep: Any = None
    state: GraphState | None = None


@contextlib.contextmanager
def _own_graph(core: ModuleType, arena: Arena, pool: Pool) -> Iterator[_Graph]:
    """Capture what is launched in the block."""
    made = _Graph()
    stream = arena.side.stream.cuda_stream
    with torch.cuda.stream(arena.side.stream), pool.allocating():
        core.begin_capture(stream)
        try:
            yield made
        except BaseException:
            with contextlib.suppress(RuntimeError):
                core.end_capture(stream)
            raise
        made.keep = core.end_capture(stream)
    made.exec = made.keep.exec


_RANDOM_CAPTURES = threading.Lock()
"""The default generator has the state of one capture at a time."""


@contextlib.contextmanager
def _torch_graph(core: ModuleType, arena: Arena, pool: Pool) -> Iterator[_Graph]:
    """Capture what is launched in the block, random numbers too, which replays draw from a state
    that belongs to this graph alone (`random_state.GraphState`).
    """
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    home, side = torch.cuda.current_stream(), arena.side.stream
    with _RANDOM_CAPTURES, torch.cuda.stream(side):
        state = GraphState(home.device_index)
        try:
            with state.captured():
                graph.capture_begin(pool=pool.id, capture_error_mode="thread_local")
                made = _Graph(replay=graph.replay, keep=(graph, state), state=state)
                yield made
                graph.capture_end()
            graph.instantiate()
        except BaseException:
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            raise
        finally:
            home.wait_stream(side)  # which has written the state's memory
    made.exec = graph.raw_cuda_graph_exec()


class _Capture:
    """One call, while its stream is captured."""

    def __init__(
        self,
        recorder: Recorder,
        args: Sequence[Any],
        stream: int,
        staged: frozenset[int],
        in_place: frozenset[int],
        handover: Handover | None,
    ) -> None:
        self.recorder = recorder
        self.args = args
        self.stream = stream
        self.allowed_in_place = in_place
        self.tables = Tables()
        self.given = list(args)
        self.staged_bytes = 0
        self.in_place: set[int] = set()
        self.saved: list[list[int]] = []
        """The pinned tensors that a backward may take over, by their memory."""
        self.handover = handover
        for position in sorted(staged):
            self._stage(position)
        for position, name in enumerate(recorder.program.inputs):
            if name in recorder.seeds:
                self._stage_word(position)
        given = list(self.given)
        self.taken = self._take_over(given)
        self.reservations = random_state.Reservations(shared=recorder.random)
        with random_state.recorded(self.reservations):
            outputs, self.launches = recorder.executor.trace(given if self.taken else tuple(given))
        self._find_draws()
        self.drawn = random_state.captured_offset(recorder.device) if recorder.random else 0
        """What the library calls and the kernels advance a generator by."""
        if recorder.seed_words:
            self._find_attention()
        self.outputs = [
            self._output(*pair) for pair in zip(recorder.program.outputs, outputs, strict=True)
        ]
        self._bind_inputs(staged)
        self._bind_outputs()

    def _output(self, name: Any, traced: Any) -> Any:
        """What the trace returned; where nobody reads it, a tensor of the CPU as a plain call makes
        it: attention makes it on the GPU in a capture.
        """
        if name in self.recorder.idle:
            return torch.empty(traced.shape, dtype=traced.dtype)
        return traced

    def _find_draws(self) -> None:
        """List the kernel arguments that are words of a generator's state."""
        words = self.recorder.words
        launches = (step for step in self.recorder.program.steps if isinstance(step, Launch))
        for number, step in enumerate(launches):
            if self.launches[number] is not None:
                self.tables.draws += [
                    (number, position, words[dim])
                    for position, dim in enumerate(step.ints)
                    if dim in words
                ]

    def _find_attention(self) -> None:
        """Take down the draws of attention too, whose results are words of the generator's state:
        each advances the generator by the number of its weights.
        """
        recorder = self.recorder
        sizes = recorder.sizes(recorder.core.read_symbols(recorder.executor, *self.args))
        shapes = {tensor.name: tensor.shape for tensor in recorder.program.tensors}
        position, drawn = 0, []
        for step in recorder.program.steps:
            if isinstance(step, Reserve):
                position += random_state.rounded(evaluate(step.increment, sizes))
            elif isinstance(step, Extern) and draws_seeds(step):
                query, key = (shapes[argument_of(step, name).name] for name in ("query", "key"))
                weights = [evaluate(dim, sizes) for dim in (*query[:3], key[2])]
                drawn.append(position)
                position += random_state.rounded(math.prod(weights))
        if position != self.drawn:
            raise CannotRecord("attention with dropout draws beside other library calls")
        self.reservations.offsets += drawn

    # Inputs

    def _take_over(self, given: list[Any]) -> set[int]:
        """Replace inputs by the tensors that own their memory, which the trace drops where the
        Program frees them; their positions.
        """
        if self.handover is None:
            return set()
        taken = set()
        for position in self.recorder.freed:
            owner = self.handover.take(given[position])
            if owner is not None:
                given[position] = owner
                taken.add(position)
        return taken

    def _stage_word(self, position: int) -> None:
        """Have the graph write an input, which is one word of the CPU, to its own memory."""
        word = torch.empty((), dtype=torch.int64, device=f"cuda:{self.recorder.device}")
        self.given[position] = word
        nodes = self.recorder.core.captured_word(word.data_ptr(), self.stream)
        self.tables.words += [position, *nodes]

    def _stage(self, position: int) -> None:
        """Have the graph copy an input into its own memory before anything else."""
        source = self.args[position]
        bytes_spanned = _span(source) * source.element_size()
        if bytes_spanned == 0:
            return
        buffer = torch.empty_strided(
            source.shape, source.stride(), dtype=source.dtype, device=source.device
        )
        self.given[position] = buffer
        self.staged_bytes += bytes_spanned
        self._copy(position, buffer.data_ptr(), source.data_ptr(), bytes_spanned, to_fresh=False)

    def _copy(
        self, memory: int, destination: int, source: int, count: int, *, to_fresh: bool
    ) -> None:
        node = self.recorder.core.captured_copy(destination, source, count, self.stream)
        self.tables.copies += [memory, node, int(to_fresh)]

    def _bind_inputs(self, staged: frozenset[int]) -> None:
        program = self.recorder.program
        for position, name in enumerate(program.inputs):
            memory = self.recorder.memory.get(name)
            arg = self.args[position]
            if memory is None or not memory.used or name in self.recorder.idle or not arg.numel():
                kind, address = Input.UNUSED, 0
            elif name in self.recorder.seeds:
                kind, address = Input.WORD, 0
            else:
                address = arg.data_ptr()
                if memory.in_library or position in self.taken:
                    kind = Input.STAGED if position in staged else Input.FIXED
                else:
                    kind = Input.PATCHED
                    self._add_uses(position, memory, address)
            self.tables.inputs += [kind, address]

    def _add_uses(self, number: int, memory: Memory, address: int) -> None:
        """List the kernel arguments that point into this memory."""
        for launch, argument in memory.launches:
            note = self.launches[launch]
            if note is not None:
                pointer = array("q", note[3])[argument]
                self.tables.uses.append((number, launch, argument, pointer - address))

    # Outputs

    def _bind_outputs(self) -> None:
        program = self.recorder.program
        self.tables.outputs = [[Output.NONE, 0, 0, 0, 0] for _ in program.outputs]
        storages = {
            tensor.untyped_storage().data_ptr()
            for pair in zip(self.args, self.given, strict=True)
            for tensor in pair
            if isinstance(tensor, torch.Tensor) and tensor.numel()
        }
        storages -= {self.args[position].untyped_storage().data_ptr() for position in self.taken}
        groups: dict[int, list[int]] = defaultdict(list)
        for number, out in enumerate(program.outputs):
            if isinstance(out, SizeExpr):
                self.tables.outputs[number] = [Output.INT, 0, self.outputs[number], 0, 0]
            elif out in self.recorder.states:
                at = self.recorder.states[out]
                self.tables.outputs[number] = [Output.STATE, at, 0, 0, 0]
            elif out in self.recorder.seed_words:
                at = self.recorder.seed_words[out]
                self.tables.outputs[number] = [Output.WORD, at, 0, 0, 0]
            elif out is not None:
                memory = self.recorder.memory[out]
                storage = self.outputs[number].untyped_storage().data_ptr()
                if memory.input is not None:
                    self._bind_argument(number, out, memory.input)
                elif storage in storages and storage:
                    raise CannotRecord("a library call returns the memory of an input")
                else:
                    groups[storage or -number - 1].append(number)
        for numbers in groups.values():
            self._bind_memory(numbers)

    def _bind_argument(self, number: int, name: str, position: int) -> None:
        """An output that is an input, or a view of one."""
        if name == self.recorder.program.inputs[position]:
            self.tables.outputs[number] = [Output.ARGUMENT, position, 0, 0, 0]
            return
        view, base = self.outputs[number], self.given[position]
        if view.dtype != base.dtype:
            raise CannotRecord("an output is an input's memory read as another dtype")
        start = view.storage_offset() - base.storage_offset()
        layout = _layout(view)
        self.tables.outputs[number] = [Output.VIEW_OF_ARGUMENT, position, 0, start, *layout]

    def _bind_memory(self, numbers: list[int]) -> None:
        """The outputs that share one piece of memory which the call allocated."""
        recorder = self.recorder
        views = [self.outputs[number] for number in numbers]
        names = [recorder.program.outputs[number] for number in numbers]
        memory = [recorder.memory[name] for name in names if isinstance(name, str)]
        in_library = any(each.in_library for each in memory)
        size = views[0].untyped_storage().nbytes()
        private = all(number >= recorder.public for number in numbers)
        # In memory that is taken over, what kernels write costs nothing either.
        may_stay = (in_library or self.taken) and self.allowed_in_place.issuperset(numbers)
        kept = private or may_stay
        if kept and size > 0 and not torch.is_inference_mode_enabled():
            self._pin(numbers)
            if private and views[0].device.type != "cpu":
                last = len(self.tables.pinned)
                self.saved.append(list(range(last - len(numbers), last)))
        elif views[0].device.type == "cpu":
            raise CannotRecord("an output lives on the CPU")
        elif len({view.dtype for view in views}) > 1:
            raise CannotRecord("outputs share memory and differ in dtype")
        else:
            self._allocate(numbers, None if in_library else memory[0], size)

    def _pin(self, numbers: list[int]) -> None:
        for number in numbers:
            view = self.outputs[number]
            at = len(self.tables.pinned)
            self.tables.pinned.append(view)
            self.tables.outputs[number] = [Output.PINNED, at, 0, 0, *_layout(view)]
        self.in_place.update(number for number in numbers if number < self.recorder.public)

    def _allocate(self, numbers: list[int], patched: Memory | None, size: int) -> None:
        """Outputs in fresh memory of each call: written there by our kernels, whose arguments are
        patched, or copied there.
        """
        views = [self.outputs[number] for number in numbers]
        at = self.tables.n_fresh
        self.tables.n_fresh += 1
        memory = len(self.args) + at
        whole = next(
            (
                number
                for number, view in zip(numbers, views, strict=True)
                if view.storage_offset() == 0 and _span(view) * view.element_size() == size
            ),
            None,
        )
        if whole is None:
            length = size // views[0].element_size()
            layout = [1, length, 1]
        else:
            layout = _layout(self.outputs[whole])
        address = views[0].untyped_storage().data_ptr()
        if patched is not None:
            self._add_uses(memory, patched, address)
        elif size > 0:
            source = address
            address = torch.empty(size, dtype=torch.uint8, device=views[0].device).data_ptr()
            self._copy(memory, address, source, size, to_fresh=True)
        dtype = DTYPE_CODES[str(views[0].dtype).removeprefix("torch.")]
        self.tables.fresh += [address, dtype, *layout]
        for number, view in zip(numbers, views, strict=True):
            kind = Output.WHOLE if number == whole else Output.FRESH
            self.tables.outputs[number] = [kind, at, 0, view.storage_offset(), *_layout(view)]

    # The whole

    def finish(
        self, graph: _Graph, stream: int, settings: tuple[Any, ...], arena: Arena, pool: Pool
    ) -> Recorded:
        """The recording of the graph that was captured."""
        recorder, tables = self.recorder, self.tables
        handover = self._hand_over(arena, pool)
        patched = {launch for _, launch, _, _ in tables.uses}
        chosen = sorted(patched | {launch for launch, _, _ in tables.draws})
        site = {launch: number for number, launch in enumerate(chosen)}
        uses = [
            value
            for number, launch, argument, delta in sorted(tables.uses)
            for value in (number, site[launch], argument, delta)
        ]
        launches = tuple(self.launches[launch] for launch in chosen)
        self.outputs = []  # what is counted below are the pinned tensors alone
        self.given = []
        pinned = tuple((tensor, recorder.core.use_count(tensor)) for tensor in tables.pinned)
        recording = recorder.core.Recording(
            executor=recorder.executor,
            keep=_Memory(arena, pool, graph.keep),
            replay=graph.replay,
            exec=graph.exec,
            device=recorder.device,
            stream=stream,
            symbols=recorder.core.read_symbols(recorder.executor, *self.args),
            settings=settings,
            inputs=_pack(tables.inputs),
            n_fresh=tables.n_fresh,
            fresh=_pack(tables.fresh),
            launches=launches,
            uses=_pack(uses),
            copies=_pack(tables.copies),
            pinned=pinned,
            n_outputs=len(tables.outputs),
            outputs=_pack(value for output in tables.outputs for value in output),
            reserve=self._reserve(graph),
            n_elements=len(recorder.words) - 2 * len(recorder.states),
            offsets=_pack(self.reservations.offsets),
            draws=_pack(
                value
                for launch, position, word in tables.draws
                for value in (site[launch], position, word)
            ),
            words=_pack(tables.words),
            spends=bool(self.taken),
        )
        if handover is not None:
            handover.recording = recording
        if self.handover is not None:
            self.handover.complete(pinned)
        addresses = frozenset(tensor.data_ptr() for tensor in tables.pinned)
        return Recorded(
            recording,
            addresses,
            frozenset(self.in_place),
            self.staged_bytes,
            handover,
            self.handover,
            frozenset(tensor.untyped_storage().data_ptr() for tensor in tables.pinned),
        )

    def _hand_over(self, arena: Arena, pool: Pool) -> Handover | None:
        """Have aliases of saved tensors handed out, whose owners a backward may drop."""
        if not self.saved:
            return None
        pinned, memories = self.tables.pinned, []
        for numbers in self.saved:
            memory = SavedMemory(pool, [pinned[number] for number in numbers])
            memories.append(memory)
            for number, alias in zip(numbers, memory.aliases(), strict=True):
                pinned[number] = alias
        return Handover(arena, pool, memories)

    def _reserve(self, graph: _Graph) -> Any:
        """What a replay calls for the seed and offset that its draws count from; None if it draws
        nothing.
        """
        if graph.state is not None:
            return functools.partial(graph.state.reserve, self.drawn)
        if not self.reservations.offsets:
            return None
        return functools.partial(
            random_state.reserve, self.recorder.device, self.reservations.total
        )


def _word_numbers(program: Program, reserves: Sequence[Reserve]) -> dict[Any, int]:
    """The symbols that are words of a generator's state, numbered: of inputs, then of draws."""
    names = [symbol.name for symbol in program.symbols if symbol.is_element]
    names += [name for step in reserves for name in step.symbols]
    return {name: number for number, name in enumerate(names)}


def _seed_words(program: Program, seeds: frozenset[str], reserves: int) -> dict[str, int]:
    """For each seed and offset that an attention draws, by name, which word it is of what is
    reserved: first for the `reserves`, then for each attention.
    """
    drawing = [step for step in program.steps if isinstance(step, Extern) and draws_seeds(step)]
    return {
        name: 2 * (reserves + number) + word
        for number, step in enumerate(drawing)
        for word, name in enumerate(step.outputs[2:])
        if name in seeds
    }


def _layout(view: torch.Tensor) -> list[int]:
    return [view.dim(), *view.shape, *view.stride()]


def _span(tensor: torch.Tensor) -> int:
    """How many elements lie between a tensor's first and last, both counted."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def _pack(values: Iterable[int]) -> bytes:
    return array("q", values).tobytes()
