"""The frame hook: with every Python function replaced by its flat copy, programs behave as without
it.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import random
import sys
import threading
import traceback
import types
import weakref

import pytest

from flambeau_capture.core import core
from flambeau_capture.entries.new_entry import new_entry
from flambeau_capture.frame_hook import call_with_handler, flat_function, hook_works
from flambeau_capture.guards import kinds
from flambeau_capture.guards.program import guard_program
from flambeau_capture.record import Guard
from flambeau_capture.sources import Argument, CapturedFunction

pytestmark = pytest.mark.skipif(core is None, reason="the C core is not built")


class Replacing:
    """A handler that serves every function by its flat copy, one entry a function object; counts
    what it was offered.
    """

    def __init__(self, decide=lambda function: True):
        self.decide = decide
        self.offered: list[types.FunctionType] = []
        self.handler = core.FrameHandler(self.on_miss)

    def on_miss(self, function, arguments):
        self.offered.append(function)
        if not self.decide(function):
            return False
        flat = flat_function(function)
        count = flat.__code__.co_argcount
        guards = [kinds.prepared(Guard("IS", CapturedFunction("f"), function))]
        return new_entry(
            guard_program(guards, [Argument("a", at) for at in range(count)], count),
            flat,
            handler=self.handler,
        )

    def call(self, function, *args, **kwargs):
        return core.call_with_handler(self.handler, function, *args, **kwargs)

    def names(self):
        return [function.__name__ for function in self.offered]


def test_the_trial_succeeds_here():
    assert hook_works()


def test_signatures():
    rng = random.Random(11)
    replacing = Replacing()
    for _ in range(150):
        names = [f"p{at}" for at in range(rng.randint(0, 4))]
        keywords = [f"k{at}" for at in range(rng.randint(0, 2))]
        parts = [f"{name}={at}" if at >= len(names) // 2 else name for at, name in enumerate(names)]
        star = rng.random() < 0.4
        parts += ["*args"] if star else ["*"] if keywords else []
        parts += [f"{name}='{name}'" for name in keywords]
        kwargs = rng.random() < 0.4
        parts += ["**kw"] if kwargs else []
        flat = names + keywords + ["args"] * star + ["kw"] * kwargs
        inner = f"lambda: ({flat[0]},)" if flat else "lambda: ()"
        names = "".join(f"{name}, " for name in flat)
        source = f"def f({', '.join(parts)}):\n made = {inner}\n return ({names}made())"
        namespace: dict = {}
        exec(source, namespace)
        function = namespace["f"]
        for _ in range(5):
            args = [object() for _ in range(rng.randint(0, 5))]
            named = {
                name: object()
                for name in rng.sample(["p0", "p1", "p3", "k0", "k1", "z"], rng.randint(0, 3))
            }
            outcomes = []
            for call in (function, lambda *a, f=function, **k: replacing.call(f, *a, **k)):
                try:
                    outcomes.append(call(*args, **named))
                except TypeError as error:
                    outcomes.append(str(error))
            assert outcomes[0] == outcomes[1], source
    assert replacing.names().count("f") > 100


def test_closures_cells_and_recursion():
    def counter(start):
        def step(by=1):
            nonlocal start
            start += by
            return start

        def total(n):
            return n and n + total(n - 1)

        return step, total

    replacing = Replacing()
    step, total = replacing.call(counter, 3)
    assert [replacing.call(step), replacing.call(step, by=5), step()] == [4, 9, 10]
    assert replacing.call(total, 50) == sum(range(51))
    assert set(replacing.names()) == {"counter", "step", "total"}


def test_functions_that_share_code_are_told_apart():
    def make(n):
        def f():
            return n

        return f

    replacing = Replacing()
    functions = [make(at) for at in range(5)]
    for _ in range(2):
        assert [replacing.call(f) for f in functions] == list(range(5))
    assert replacing.names() == ["f"] * 5


def test_exceptions_and_tracebacks():
    def fails(x):
        return 1 // x

    def middle(x):
        try:
            return fails(x)
        finally:
            done.append(x)

    done: list[int] = []
    replacing = Replacing()
    with pytest.raises(ZeroDivisionError) as caught:
        replacing.call(middle, 0)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.name for frame in frames][-2:] == ["middle", "fails"] and done == [0]
    assert (
        frames[-1].lineno == fails.__code__.co_firstlineno + 1 and frames[-1].filename == __file__
    )
    assert replacing.call(middle, 1) == 1

    def locals_and_frames(a):
        b = a + 1  # noqa: F841 (read through the frame)
        return sys._getframe().f_locals["b"], sys._getframe().f_back.f_code.co_name

    def caller():
        return locals_and_frames(1)

    assert replacing.call(caller) == (2, "caller")


def test_generators_coroutines_classes_and_exec_are_left_alone():
    def generate(n):
        received = yield n
        yield received
        return "end"

    async def awaits(n):
        await asyncio.sleep(0)
        return n * 2

    def program():
        made = generate(1)
        first, second = next(made), made.send("sent")
        with pytest.raises(StopIteration, match="end"):
            next(made)

        class Local:
            value = 3

            def method(self):
                return super().__repr__()[:1] + str(self.value)

            def __del__(self):
                died.append(1)

        namespace: dict = {}
        exec("y = [z for z in range(3)]", namespace)
        return (
            first,
            second,
            Local().method(),
            namespace["y"],
            eval("2 + 2"),
            asyncio.run(awaits(4)),
        )

    died: list[int] = []
    replacing = Replacing()
    assert replacing.call(program) == (1, "sent", "<3", [0, 1, 2], 4, 8)
    assert died == [1]
    names = replacing.names()
    assert "method" in names and "__del__" in names and "program" in names
    assert not {"generate", "awaits", "Local", "<module>"} & set(names)


def test_frames_may_be_declined_once_or_for_ever():
    calls = []

    def inner():
        calls.append(1)

    def outer():
        for _ in range(3):
            inner()

    handler = core.FrameHandler(lambda function, arguments: None)
    core.call_with_handler(handler, outer)
    assert len(calls) == 3 and handler.table == {}
    replacing = Replacing(lambda function: False)
    replacing.call(outer)
    assert len(calls) == 6 and replacing.names() == ["outer", "inner"]


def test_errors_of_the_handler_reach_the_caller():
    def inner():
        return 1

    def outer():
        return inner() + 1

    def broken(function, arguments):
        if function is inner:
            raise RuntimeError("from the handler")

    with pytest.raises(RuntimeError, match="from the handler"):
        core.call_with_handler(core.FrameHandler(broken), outer)
    with pytest.raises(TypeError, match="must return an Entry"):
        core.call_with_handler(core.FrameHandler(lambda function, arguments: 3), outer)
    with pytest.raises(TypeError):
        core.call_with_handler(3, outer)
    assert not core.hook_installed()


def test_entries_turn_the_hook_on_and_off():
    states = []

    def inner():
        states.append(core.hook_installed())
        return 7

    replacing = Replacing()
    program = guard_program((), [], 0)
    on = core.Entry(program=program, target=inner, handler=replacing.handler)
    off = core.Entry(program=program, target=inner)
    outside = core.Compiled(lambda: None)
    outside.entries = (on,)
    assert outside() == 7 and replacing.names() == ["inner"]
    within = core.Compiled(lambda: None)
    within.entries = (off,)
    assert replacing.call(lambda: within()) == 7
    assert states == [True, False] and replacing.names() == ["inner", "<lambda>"]
    assert call_with_handler(None, inner) == 7


def test_tracing_tools_and_other_hooks_are_respected():
    def inner():
        return 1

    replacing = Replacing()
    events = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        replacing.call(inner)
    finally:
        sys.setprofile(None)
    assert replacing.names() == [] and "call" in events


def test_recursion_stays_bounded():
    def deep(n):
        return deep(n + 1)

    replacing = Replacing()
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        with pytest.raises(RecursionError):
            replacing.call(deep, 0)
    finally:
        sys.setrecursionlimit(limit)
    assert not core.hook_installed()


def test_data_stack_chunks_are_popped():
    def wide(*args):
        return len(args) + (wide(*args[: len(args) // 2]) if len(args) > 4 else 0)

    replacing = Replacing()
    for _ in range(20):
        assert replacing.call(wide, *range(5000)) == wide(*range(5000))


def test_threads_have_handlers_of_their_own():
    def work(n):
        return n + 1

    wrong: list[int] = []
    handlers = [Replacing() for _ in range(6)]

    def run(replacing, hooked):
        for at in range(2000):
            if (replacing.call(work, at) if hooked else work(at)) != at + 1:
                wrong.append(at)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [
            threading.Thread(target=run, args=(replacing, at % 2))
            for at, replacing in enumerate(handlers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong and not core.hook_installed()
    assert [len(replacing.offered) for replacing in handlers] == [0, 1] * 3


def test_nothing_leaks():
    class Token:
        pass

    def outer(token, *rest, key=None):
        def closed():
            return token

        return closed()

    replacing = Replacing(lambda function: function.__name__ == "outer")
    token = Token()
    before = sys.getrefcount(token)
    for _ in range(200):
        assert replacing.call(outer, token, token, key=token) is token
    replacing.offered.clear()  # it holds a closure over the token
    gc.collect()
    assert sys.getrefcount(token) == before
    gone = weakref.ref(token)
    del token
    assert gone() is None
    handler = weakref.ref(outer)
    del outer, replacing
    gc.collect()
    assert handler() is None


def test_the_standard_library_runs_replaced():
    import collections
    import dataclasses
    import json
    import re
    import textwrap

    def program():
        point = dataclasses.make_dataclass("Point", ["x", "y"])(1, [2])
        text = json.dumps(
            {"a": dataclasses.asdict(point), "b": list(map(str, range(5)))},
            indent=1,
            sort_keys=True,
        )
        words = collections.Counter(re.findall(r"\w+", text))
        return (
            textwrap.fill(text, 20),
            sorted(words.items()),
            str(inspect.signature(textwrap.fill)),
            json.loads(text),
        )

    replacing = Replacing()
    assert replacing.call(program) == program()
    assert len(replacing.offered) > 50


def test_recursion_that_a_raised_limit_allows_is_not_bounded_by_the_c_stack():
    def count(n):
        return 1 + count(n - 1) if n else 0

    seen = []
    handler = core.FrameHandler(lambda function, arguments: seen.append(function))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        assert call_with_handler(handler, count, 60_000) == 60_000
    finally:
        sys.setrecursionlimit(limit)
    assert seen
    assert call_with_handler(handler, count, 5) == 5
