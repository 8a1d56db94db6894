"""Frames and code objects of every kind that capture makes, under everything that looks at frames:
run as a program, it prints what went wrong.

Each pair of a program and an observer runs in a process of its own (a fork), since what goes wrong
here ends the process.
"""

from __future__ import annotations

import bdb
import contextlib
import dis
import faulthandler
import gc
import inspect
import io
import os
import pdb  # noqa: T100  the debugger is what is tested
import signal
import sys
import tempfile
import threading
import traceback
import tracemalloc
import types
from collections.abc import Callable
from typing import Any

import torch

import flambeau_capture

Program = Callable[[torch.Tensor], Any]


def run_graph(module: Any, _inputs: Any) -> Any:
    return module.forward


# ---------------------------------------------------- programs: each breaks, then raises ValueError


def brk() -> None:
    torch._dynamo.graph_break()


def free_variables() -> Program:
    k, unused = 3, "later"

    def fn(x):
        y = x + k
        brk()
        if k:
            raise ValueError
        return y, unused

    return fn


def cells() -> Program:
    def fn(x, *rest, scale=2):
        total = x * scale

        def add(n):
            nonlocal total
            total = total + n + len(rest)
            return scale

        brk()
        add(1)
        brk()
        raise ValueError(lambda: (x, total))

    return fn


def handlers() -> Program:
    factor = 2

    def fn(x):
        for i in range(2):
            try:
                with torch.no_grad():
                    y = x * factor + i
                    brk()
                    y = y + int(y.sum()) * i
                    raise KeyError(i)
            except KeyError as error:
                brk()
                kept = error
            finally:
                brk()
        raise ValueError(kept) from kept

    return fn


def nested_calls() -> Program:
    offset = 1

    def inner(x):
        y = x + offset
        brk()
        raise ValueError(y, [offset for _ in range(2)])

    def outer(x):
        return inner(x + offset) + x

    def fn(x):
        y = x * offset
        return outer(y) + y

    return fn


def generators() -> Program:
    step = 2

    def numbers(x):
        total = x
        try:
            while True:
                total = total + step
                yield total
        finally:
            del total

    def fn(x):
        draw = numbers(x)
        y = next(draw)
        brk()
        y = y + next(draw)
        raise ValueError(y, draw)

    return fn


def called_by_c() -> Program:
    weight = 2

    def key(pair, *more, last=1, **named):
        brk()
        if pair[0] == 2:
            raise ValueError(weight)
        return weight * pair[0] + last

    def fn(x):
        brk()
        return sorted([(1, x), (2, x)], key=key)

    return fn


def classes() -> Program:
    name = "N"

    class Base:
        def __init__(self, x):
            self.x = x

        def read(self):
            return self.x

    class Derived(Base):
        def read(self):
            y = super().read() * 2
            brk()
            raise ValueError(super().read(), __class__, y, name)

    def fn(x):
        return Derived(x).read()

    return fn


PROGRAMS = [free_variables, cells, handlers, nested_calls, generators, called_by_c, classes]


# ---------------------------------------------------------------- observers


def frames_of(error: BaseException) -> list[Any]:
    found = []
    step = error.__traceback__
    while step is not None:
        found.append(step.tb_frame)
        step = step.tb_next
    for value in error.args:
        if inspect.isgenerator(value):
            found.append(value.gi_frame)
    return found


def is_ours(frame: Any) -> bool:
    """Whether it is a frame of the program or of an entry: those of capture itself are CPython's,
    and many.
    """
    code = frame.f_code
    return code.co_filename.startswith((__file__, "<flambeau")) and code.co_name not in (
        "raised",
        "run",
    )


def raised(run: Callable[[], Any]) -> BaseException:
    try:
        run()
    except ValueError as error:
        return error
    raise AssertionError("the program did not raise")


def read(frame: Any) -> None:
    """All that a frame tells of itself."""
    repr(sorted(frame.f_locals))
    repr(frame)
    [type(value) for value in frame.f_locals.values()]
    frame.f_lineno, frame.f_lasti, frame.f_builtins, frame.f_globals, frame.f_back
    code = frame.f_code
    list(code.co_positions())
    list(code.co_lines())
    code.co_lnotab
    hash(code), code == code.replace()
    assert frame.f_lineno is not None  # as `inspect` has it
    inspect.getframeinfo(frame, context=3)
    inspect.getargvalues(frame)
    for line in code.co_consts:
        type(line)


def locals_of_traceback(run):
    error = raised(run)
    for frame in frames_of(error):
        read(frame)
    shown = traceback.TracebackException.from_exception(error, capture_locals=True)
    "".join(shown.format())


def disassembly(run):
    for frame in frames_of(raised(run)):
        dis.dis(frame.f_code, file=io.StringIO())
        list(dis.get_instructions(frame.f_code, show_caches=True))


def trace(run, *, opcodes=False, rewrite=False):
    def observer(frame, event, argument):
        if not is_ours(frame):
            return None
        frame.f_trace_opcodes = opcodes
        read(frame)
        if rewrite:
            frame.f_locals.update(dict(frame.f_locals))
        return observer

    sys.settrace(observer)
    try:
        raised(run)
    finally:
        sys.settrace(None)


def trace_calls(run):
    trace(run)


def trace_opcodes(run):
    limit = sys.getrecursionlimit()
    trace(run, opcodes=True, rewrite=True)
    assert sys.getrecursionlimit() == limit


def profile(run):
    def observer(frame, event, argument):
        if is_ours(frame):
            read(frame)

    sys.setprofile(observer)
    try:
        raised(run)
    finally:
        sys.setprofile(None)


def jumps(run):
    """Another line is asked for in each frame, once: taken or refused."""
    asked = set()

    def observer(frame, event, argument):
        code = frame.f_code
        if event == "line" and code.co_filename == __file__ and code not in asked:
            asked.add(code)
            with contextlib.suppress(ValueError):
                frame.f_lineno = frame.f_lineno + 1
        return observer

    sys.settrace(observer)
    try:
        with contextlib.suppress(Exception):
            run()
    finally:
        sys.settrace(None)


def debugger(run):
    commands = "\n".join(
        [
            "b brk",
            "c",
            "up",
            "locals()",
            "where",
            "args",
            "s",
            "n",
            "r",
            "where",
            "up",
            "!x = 1",
            "down",
            "c",
        ]
        + ["n"] * 30
        + ["q"]
    )
    shown = io.StringIO()
    with contextlib.suppress(bdb.BdbQuit, ValueError):
        pdb.Pdb(stdin=io.StringIO(commands), stdout=shown, nosigint=True, readrc=False).runcall(run)
    error = raised(run)
    post = pdb.Pdb(
        stdin=io.StringIO("where\nlocals()\nup\nlocals()\nargs\nup\nargs\nq\n"),
        stdout=shown,
        readrc=False,
    )
    post.reset()
    post.interaction(None, error.__traceback__)
    assert "Error" in shown.getvalue() or shown.getvalue()


def fault_handler(run):
    with tempfile.TemporaryFile() as file:

        def observer(frame, event, argument):
            if is_ours(frame):
                faulthandler.dump_traceback(file=file, all_threads=True)

        sys.setprofile(observer)
        try:
            raised(run)
        finally:
            sys.setprofile(None)


def other_thread(run):
    """The frames of this thread, read from another while they run."""
    done = threading.Event()
    main = threading.get_ident()

    def watch():
        while not done.is_set():
            frame = sys._current_frames().get(main)
            while frame is not None:
                repr(frame)
                frame.f_lineno, list(frame.f_locals)
                frame = frame.f_back

    watcher = threading.Thread(target=watch)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    watcher.start()
    try:
        for _ in range(5):
            raised(run)
    finally:
        done.set()
        watcher.join()
        sys.setswitchinterval(before)


def collector(run):
    before = gc.get_threshold()
    gc.set_threshold(5)
    try:
        error = raised(run)
        for frame in frames_of(error):
            gc.get_referents(frame)
            gc.get_referrers(frame)
        for found in gc.get_objects():
            if type(found) is types.FrameType and found is not sys._getframe():
                found.f_lineno
    finally:
        gc.set_threshold(*before)
    gc.collect()


def cleared(run):
    error = raised(run)
    for frame in frames_of(error):
        with contextlib.suppress(RuntimeError):
            frame.clear()
        read(frame)
    del error
    gc.collect()


def allocations(run):
    tracemalloc.start(25)
    raised(run)
    for statistic in tracemalloc.take_snapshot().statistics("traceback")[:20]:
        statistic.traceback.format()
    tracemalloc.stop()


def interrupted(run):
    """Signals whose handler reads every frame below it."""

    def handler(_number, frame):
        while frame is not None:
            read_quickly(frame)
            frame = frame.f_back

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        for _ in range(20):
            raised(run)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def read_quickly(frame: Any) -> None:
    len(frame.f_locals), frame.f_lineno


def writes(run):
    """Each local of each frame is written, as a debugger writes it: on 3.13 the frame sees that."""

    def observer(frame, event, argument):
        if is_ours(frame):
            names = frame.f_locals
            for name in list(names):
                names[name] = names[name]
            names["a name of the debugger"] = event
            if isinstance(names.get("x"), torch.Tensor):
                names["x"] = names["x"] + 0
        return observer

    sys.settrace(observer)
    try:
        raised(run)
    finally:
        sys.settrace(None)


def nonsense(run):
    """Each local that a program can name is overwritten by what none expects: errors, no more."""

    def observer(frame, event, argument):
        name = frame.f_code.co_name
        if frame.f_code.co_filename == __file__ and name not in ("<lambda>", "raised"):
            names = frame.f_locals
            for name in filter(str.isidentifier, list(names)):
                names[name] = event
        return observer

    sys.settrace(observer)
    try:
        with contextlib.suppress(Exception):
            run()
    finally:
        sys.settrace(None)


class Stepper(bdb.Bdb):
    """A debugger that steps, returns and goes on by turns, and reads what it is shown."""

    turn = 0

    def user_line(self, frame):
        read_quickly(frame)
        self.get_stack(frame, None)
        self.turn += 1
        [
            self.set_step,
            lambda: self.set_next(frame),
            lambda: self.set_return(frame),
            self.set_step,
        ][self.turn % 4]()

    def user_return(self, frame, value):
        read_quickly(frame)
        self.set_step()

    def user_exception(self, frame, info):
        self.get_stack(frame, info[2])
        self.set_step()


def stepper(run):
    debugger = Stepper(skip=["torch*", "flambeau_*"])
    debugger.set_break(__file__, brk.__code__.co_firstlineno + 1)
    with contextlib.suppress(ValueError, bdb.BdbQuit):
        debugger.runcall(run)
    sys.settrace(None)


OBSERVERS = [
    locals_of_traceback,
    disassembly,
    trace_calls,
    trace_opcodes,
    profile,
    jumps,
    debugger,
    fault_handler,
    other_thread,
    collector,
    cleared,
    allocations,
    interrupted,
    writes,
    stepper,
    nonsense,  # the last: it leaves cells of the program overwritten
]


def in_a_process(program: Callable[[], Program], observers: list[Any], calls: int) -> str | None:
    """Compile the program and call it under each observer; what went wrong, or None."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        status = 1
        try:
            compiled = flambeau_capture.compile(program(), backend=run_graph)
            x = torch.ones(3)
            for _ in range(calls):
                raised(lambda: compiled(x))
            for observer in observers:
                os.write(write_end, f"{observer.__name__}\n".encode())
                observer(lambda: compiled(x))
            status = 0
        except BaseException:
            os.write(write_end, traceback.format_exc()[-3000:].encode())
        finally:
            os._exit(status)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    return None if status == 0 else f"status {status}\n{text}"


def main(names: list[str]) -> int:
    """How many programs went wrong, 1 at most; `names` of programs (none: all)."""
    failed = 0
    warm = flambeau_capture.compile(free_variables(), backend=run_graph)
    raised(lambda: warm(torch.ones(2)))  # once, before the forks
    for program in PROGRAMS:
        if names and program.__name__ not in names:
            continue
        for observers, calls in (([trace_calls], 0), (OBSERVERS, 2)):
            problem = in_a_process(program, observers, calls)
            if problem is not None:
                failed += 1
                print(f"{program.__name__} after {calls} calls: {problem}", flush=True)
    print(f"{failed} failed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
