"""Operators that raise when the graph runs: the program's handlers, effects, writes and random
draws are eager's.
"""

from __future__ import annotations

import contextlib
import copy
import io
import threading
import traceback

import pytest
import torch

import flambeau
from flambeau_capture import state_of

BACKENDS = ("eager", "aot_eager", "inductor")
COUNT = 0


class Meter:
    """What programs leave traces in."""

    def __init__(self):
        self.log = []
        self.table = {"kept": 0}
        self.total = 0
        self.buffer = torch.zeros(3)
        self.steps = torch.zeros((), dtype=torch.int64)
        self.generator = torch.Generator().manual_seed(4)


def escapes(x, i, m):
    m.log.append("before")
    y = x[i] * 2
    m.log.append("after")
    return y


def every_kind_of_effect(x, i, m):
    global COUNT
    COUNT += 1
    m.total += 1
    m.table["kept"] = x.sum()
    m.table.pop("gone", None)
    m.log += [1, 2]
    print("before", m.total)
    y = x.index_select(0, i)
    print("after")
    COUNT += 10
    m.table["later"] = y
    return y


def handled(x, i, m):
    try:
        m.log.append("trying")
        y = torch.gather(x, 0, i)
        m.log.append("fine")
    except (RuntimeError, IndexError) as error:
        m.log.append(type(error).__name__)
        y = x - 1
    return y * 2


def handled_further_up(x, i, m):
    def inner(x):
        m.log.append("inner")
        return torch.nn.functional.embedding(i, x[:, None])

    try:
        return inner(x) + 1
    except IndexError as error:
        m.log.append(str(error))
        return inner(x * 0 + 1) if m.total else x


def cleaned_up(x, i, m):
    try:
        m.log.append(1)
        return x.take(i)
    finally:
        m.log.append("finally")
        m.total = len(m.log)


def suppressed(x, i, m):
    with contextlib.suppress(IndexError):
        m.log.append("in")
        x = x[i]
        m.log.append("out")
    return x + 1


class Recording:
    """A with-block that keeps what was raised in it, and suppresses IndexErrors."""

    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, error, trace):
        self.log.append(None if kind is None else kind.__name__)
        return kind is IndexError


def with_a_block_of_its_own(x, i, m):
    with Recording(m.log) as block:
        y = x.cos()
        block.log.append("inside")
        y = y[i]
        return y * 2
    return x


def in_a_loop(x, i, m):
    y = x
    for at in range(4):
        m.log.append(at)
        if at == 2:
            y = y + x[i].sum()
        y = y + 1
    return y


def tried_in_a_loop(x, i, m):
    found = 0
    for at in range(3):
        try:
            m.log.append(at)
            found = found + x[i - at].sum()
        except IndexError:
            m.log.append("out")
            continue
        m.total += at
    return x + found


def written_before(x, i, m):
    x.mul_(2)
    m.buffer[0] += 1
    m.steps += 1
    m.log.append(len(m.log))
    y = x[i]
    x.add_(100)
    m.buffer[1] += 1
    return y


def written_and_handled(x, i, m):
    try:
        x.mul_(2)
        m.steps += 1
        y = x[i]
        x.add_(100)
    except IndexError:
        y = x * 3
        m.steps += 10
    return y


def written_in_part(x, i, m):
    m.log.append(1)
    m.buffer.index_add_(0, i, x)
    m.log.append(2)
    return x + 1


def put_in_part(x, i, m):
    m.log.append(1)
    x[i] = 7.0
    return x + 1


def drawn(x, i, m):
    noise = torch.rand(3)
    m.log.append(1)
    y = (x + noise)[i]
    return y + torch.rand(1)


def drawn_and_handled(x, i, m):
    try:
        y = torch.nn.functional.dropout(x, 0.5)
        m.log.append(1)
        y = y[i] + torch.rand(3)
    except IndexError:
        y = x + torch.randn(3)
    return y


def drawn_from_a_generator(x, i, m):
    try:
        m.log.append(1)
        y = x + torch.rand(3, generator=m.generator)
        return y[i]
    except IndexError:
        return x + torch.rand(3, generator=m.generator)


def seeded(x, i, m):
    m.log.append(torch.initial_seed())
    torch.manual_seed(11)
    m.generator.manual_seed(5)
    y = x + torch.rand(3) + torch.rand(3, generator=m.generator)
    y = y[i]
    torch.manual_seed(12)
    return y


def inferred(x, i, m):
    with torch.inference_mode():
        m.log.append(torch.is_inference_mode_enabled())
        y = (x * 2).index_select(0, i)
    return y.clone() + 1


def in_double(x, i, m):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        m.log.append(1)
        y = torch.ones(3)[i]
    finally:
        torch.set_default_dtype(before)
    return y


def in_double_for_good(x, i, m):
    torch.set_default_dtype(torch.float64)
    return torch.ones(3)[i]


def without_gradients(x, i, m):
    with torch.no_grad():
        m.log.append(torch.is_grad_enabled())
        return (x * 2)[i]


def under_autocast(x, i, m):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x[:, None] @ x[None]
        m.log.append(1)
        return y[i]


def unused(x, i, m):
    m.log.append(1)
    x[i]
    m.log.append(2)
    return x + 1


def after_a_break(x, i, m):
    m.log.append("first")
    m.total = float(x.sum())
    m.log.append("second")
    y = x[i] + m.total
    m.log.append("third")
    return y


def before_a_break(x, i, m):
    m.log.append("first")
    y = x[i]
    m.log.append("second")
    m.total = float(y.sum())
    return y


def broken_in_a_handler(x, i, m):
    try:
        m.total = float(x.sum())
        m.log.append("trying")
        y = x[i]
    except IndexError:
        m.log.append("out")
        y = x * m.total
    finally:
        m.log.append("finally")
    return y


def divided(x, i, m):
    m.log.append(1)
    return i // (i - i.max())


def remainder(x, i, m):
    m.log.append(1)
    return (i % (i - i.max())) + 1


def divided_and_dropped(x, i, m):
    try:
        torch.div(i, i - i.max(), rounding_mode="trunc")
        m.log.append("fine")
    except RuntimeError as error:
        m.log.append(str(error))
    return x + 1


def factored(x, i, m):
    m.log.append(1)
    y = torch.linalg.cholesky(torch.diag(x - i))
    m.log.append(2)
    return y


def tried_to_factor(x, i, m):
    try:
        torch.linalg.cholesky(torch.diag(x - i))
        m.log.append("positive")
    except torch.linalg.LinAlgError:
        m.log.append("not positive")
    return x * 2


def asserted(x, i, m):
    m.log.append(1)
    torch._assert_async((i < 3).all())
    m.log.append(2)
    return x + 1


def sampled(x, i, m):
    m.log.append(1)
    y = torch.multinomial(x - i, 2)
    m.log.append(2)
    return y + torch.randint(0, 5, (2,))


def encoded(x, i, m):
    m.log.append(1)
    return torch.nn.functional.one_hot(i, 3) * x


def measured(x, i, m):
    m.log.append(1)
    return torch.nn.functional.binary_cross_entropy(i / 4, x / 4)


def lossy(x, i, m):
    m.log.append(1)
    return torch.nn.functional.cross_entropy(torch.stack([x, x, x]), i)


PROGRAMS = [
    value
    for value in list(globals().values())
    if callable(value) and getattr(value, "__code__", None) and value.__module__ == __name__
]
GOOD = torch.tensor([0, 2, 1])
BAD = [torch.tensor([0, 7, 1]), torch.tensor([1, 1, 5])]


def _outcome(function, i, *, gradients):
    """Everything that can be seen of a call."""
    global COUNT
    COUNT = 0
    torch.manual_seed(3)
    meter = Meter()
    leaf = torch.tensor([1.0, 2.0, 3.0], requires_grad=gradients)
    x = leaf * 1 if gradients else leaf
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            result = function(x, i.clone(), meter)
    except Exception as error:
        place = [
            (frame.name, frame.lineno)
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == __file__
        ]
        seen = (type(error), str(error), error.__cause__, error.__context__, place[1:])
        if x.requires_grad:
            x.sum().backward()
    else:
        seen = result.detach().clone()
        if result.requires_grad:
            result.sum().backward()
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    return {
        "seen": seen,
        "log": meter.log,
        "table": meter.table,
        "total": meter.total,
        "buffer": meter.buffer,
        "steps": meter.steps,
        "x": x.detach(),
        "tracked": x.requires_grad,
        "grad": leaf.grad,
        "count": COUNT,
        "printed": printed.getvalue(),
        "drawn": (torch.rand(2).tolist(), torch.rand(2, generator=meter.generator).tolist()),
        "default dtype": default_dtype,
        "inference": torch.is_inference_mode_enabled(),
        "grad mode": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "nesting": (torch.autocast_increment_nesting(), torch.autocast_decrement_nesting()),
    }


def _assert_same(got, want, what):
    """Equal, value by value; exceptions in everything that tells them apart."""
    assert got.keys() == want.keys()
    for name, expected in want.items():
        if isinstance(expected, (torch.Tensor, dict)) and isinstance(got[name], type(expected)):
            torch.testing.assert_close(
                got[name], expected, msg=lambda text, name=name: f"{what}, {name}: {text}"
            )
        else:
            assert got[name] == expected, (what, name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_goes_as_eager_goes(program, backend):
    for gradients in (False, True):
        compiled = flambeau.compile(program, backend=backend)
        for i in (GOOD, *BAD, GOOD):
            want = _outcome(program, i, gradients=gradients)
            got = _outcome(compiled, i, gradients=gradients)
            _assert_same(got, want, f"{i.tolist()}")


def test_it_is_an_event_and_told_once():
    compiled = flambeau.compile(escapes, backend="eager")
    for _ in range(3):
        with pytest.raises(IndexError):
            compiled(torch.ones(3), BAD[0], Meter())
    events = [event for event in state_of(compiled).events if event.kind == "eager_replay"]
    assert len(events) == 1
    assert "escapes ran again eagerly: its graph raised IndexError: index 7" in events[0].text


def test_errors_of_a_graph_that_cannot_raise_are_the_backends():
    def failing(gm, inputs):
        def run(*args):
            raise ValueError("a backend's own")

        return run

    def program(x, log):
        log.append(1)
        return x * 2

    log = []
    with pytest.raises(ValueError, match="a backend's own"):
        flambeau.compile(program, backend=failing)(torch.ones(3), log)
    assert log == []


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), MemoryError(), SystemExit(3),
     torch.OutOfMemoryError("CUDA out of memory"),
     RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")],
    ids=repr,
)  # fmt: skip
def test_what_is_not_run_again(error):
    def failing(gm, inputs):
        def run(*args):
            gm(*args)
            raise error

        return run

    def program(x, i, log):
        log.append(1)
        with torch.no_grad():
            return x[i]

    log = []
    with pytest.raises(type(error)) as caught:
        flambeau.compile(program, backend=failing)(torch.ones(3), GOOD, log)
    assert caught.value is error
    assert log == []
    assert torch.is_grad_enabled()


def test_state_is_left_as_it_was_when_a_graph_is_interrupted():
    """Also by errors that no operator raises, and in a graph whose operators cannot raise."""

    def failing(gm, inputs):
        def run(*args):
            torch._C._set_grad_enabled(False)
            raise KeyboardInterrupt

        return run

    def program(x):
        with torch.no_grad():
            return x * 2

    with pytest.raises(KeyboardInterrupt):
        flambeau.compile(program, backend=failing)(torch.ones(3))
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("backend", BACKENDS)
def test_keyword_arguments_defaults_and_stars(backend):
    def program(x, *rest, i, log=None, **named):
        log.append((len(rest), sorted(named)))
        return x[i] + rest[0]

    compiled = flambeau.compile(program, backend=backend)
    for i in (GOOD, BAD[0]):
        for function in (program, compiled):
            log = []
            with contextlib.suppress(IndexError):
                function(torch.ones(3), 1, 2, i=i, log=log, extra=3)
            assert log == [(2, ["extra"])]


@pytest.mark.parametrize("backend", BACKENDS)
def test_methods_and_modules(backend):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(4, 2)
            self.register_buffer("steps", torch.zeros(()))
            self.calls = []

        def forward(self, i):
            self.steps += 1
            self.calls.append(tuple(i.shape))
            y = self.table(i)
            self.steps += 1
            return y

    model = Model()
    twin = copy.deepcopy(model)
    compiled = flambeau.compile(model, backend=backend)
    for i in (GOOD, BAD[0], GOOD, BAD[1]):
        if i is GOOD:
            torch.testing.assert_close(compiled(i), twin(i))
        else:
            with pytest.raises(IndexError) as got:
                compiled(i)
            with pytest.raises(IndexError) as want:
                twin(i)
            assert str(got.value) == str(want.value)
        assert model.calls == twin.calls
        assert model.steps == twin.steps


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sequence_of_reruns_in_many_threads(backend):
    compiled = flambeau.compile(drawn_and_handled, backend=backend)
    compiled(torch.ones(3), GOOD, Meter())
    failures = []

    def work(number):
        for at in range(20):
            i = BAD[at % 2] if (at + number) % 3 == 0 else GOOD
            meter = Meter()
            y = compiled(torch.ones(3), i, meter)
            if meter.log != [1] or y.shape != (3,):
                failures.append((number, at, meter.log))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_custom_operator_that_raises(backend):
    @torch.library.custom_op(f"flambeau_tests::picky_{backend}", mutates_args=())
    def picky(x: torch.Tensor) -> torch.Tensor:
        if x.sum() < 0:
            raise ValueError("too picky")
        return x * 2

    @picky.register_fake
    def _(x):
        return torch.empty_like(x)

    def program(x, log):
        log.append("before")
        try:
            y = picky(x)
            log.append("after")
        except ValueError as error:
            log.append(str(error))
            return x
        return y + 1

    compiled = flambeau.compile(program, backend=backend)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        want, got = [], []
        torch.testing.assert_close(compiled(x, got), program(x, want))
        assert got == want


@pytest.mark.stages
def test_the_writes_of_a_program_come_last():
    """Inductor writes to inputs behind all that may raise; kernels that check indices are not fused
    with such writes.
    """

    def program(x, i, steps):
        steps.add_(x.sum())
        return x[i] * steps

    compiled = flambeau.compile(program, backend="inductor")
    steps = torch.zeros(3)
    compiled(torch.ones(3), GOOD, steps)
    assert steps.tolist() == [3.0] * 3
    with pytest.raises(IndexError):
        compiled(torch.ones(3), BAD[0], steps)
    assert steps.tolist() == [6.0] * 3
    (entry,) = state_of(compiled).entries
    assert entry.info.graph_module.meta["writes_last"]
