"""Python's own semantics under compile: what a program does to objects it does once, in order, and
as eager does.

Each case makes a program and its world anew, twice: one is called compiled, one eagerly, several
times each, and what they returned, raised, printed and left behind must be equal.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import io
import itertools
import math
import types
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch

import flambeau
from tests.differential import compare_tensor

if TYPE_CHECKING:
    from collections.abc import Callable

CASES: dict[str, Callable[[], tuple[Callable[..., Any], Any]]] = {}


def case(
    make: Callable[[], tuple[Callable[..., Any], Any]],
) -> Callable[[], tuple[Callable[..., Any], Any]]:
    """`make()` gives a program of (tensor, number of the call), and the state it may change."""
    CASES[make.__name__] = make
    return make


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = 2
    tags: list[str] = dataclasses.field(default_factory=list)

    def norm(self) -> Any:
        return (self.x * self.x + self.y * self.y) ** 0.5


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float
    bias: Any


class Pair(NamedTuple):
    first: Any
    second: Any = 7


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a: Any) -> None:
        self.a = a
        self.b = []


class Box:
    count = 0

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def doubled(self) -> Any:
        return self.value * 2

    @doubled.setter
    def doubled(self, value: Any) -> None:
        self.value = value / 2

    @classmethod
    def of(cls, value: Any) -> Box:
        cls.count += 1
        return cls(value)

    @staticmethod
    def triple(value: Any) -> Any:
        return value * 3

    def __add__(self, other: Any) -> Box:
        return Box(self.value + (other.value if isinstance(other, Box) else other))

    def __call__(self, x: Any) -> Any:
        return x + self.value

    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: int) -> Any:
        return self.value * key

    def __contains__(self, item: Any) -> bool:
        return item == 3

    def __bool__(self) -> bool:
        return True


COUNTER = 0
REGISTER: list[Any] = []


@case
def list_append() -> Any:
    seen: list[Any] = []

    def program(x: torch.Tensor, call: int) -> Any:
        seen.append(x * 2)
        seen.append(call)
        return x + len(seen)

    return program, seen


@case
def list_methods() -> Any:
    items = [3, 1, 2]

    def program(x: torch.Tensor, call: int) -> Any:
        items.sort()
        items.insert(0, call)
        items.extend([7, 8])
        items.pop()
        items[1:2] = [9, 9]
        items.reverse()
        del items[0]
        items.remove(9)
        return x * items[0] + sum(items) + items.index(9)

    return program, items


@case
def dict_methods() -> Any:
    table: dict[Any, Any] = {"a": 1}

    def program(x: torch.Tensor, call: int) -> Any:
        table["b"] = x + call
        table.setdefault("c", []).append(call)
        table.update(d=4, a=table["a"] + 1)
        table.pop("d")
        out = {key: value for key, value in table.items() if key != "c"}
        return out, list(table), "zz" in table, table.get("q", 3)

    return program, table


@case
def set_and_deque() -> Any:
    state = [
        {1, 2},
        collections.deque([1, 2], maxlen=3),
        collections.OrderedDict(a=1),
        collections.defaultdict(list),
        collections.Counter("ab"),
    ]

    def program(x: torch.Tensor, call: int) -> Any:
        state[0].add(call + 10)
        state[1].append(call)
        state[2]["z"] = call
        state[2].move_to_end("a")
        state[3]["k"].append(call)
        state[4]["a"] += 1
        return x + len(state[0]) + state[1][0]

    return program, state


@case
def attributes() -> Any:
    box = Box(1.0)

    def program(x: torch.Tensor, call: int) -> Any:
        box.value = box.value + 1
        box.last = x * box.value
        box.doubled = 6
        setattr(box, f"call{call}", call)
        return x * box.value + box.doubled

    return program, box


@case
def attribute_of_nested() -> Any:
    state = types.SimpleNamespace(inner=types.SimpleNamespace(items=[1]), total=torch.zeros(3))

    def program(x: torch.Tensor, call: int) -> Any:
        state.inner.items.append(state.inner.items[-1] * 2)
        state.total = state.total + x.sum()
        state.inner.extra = {"k": x}
        del state.inner.extra
        return state.total * state.inner.items[-1]

    return program, state


@case
def module_global() -> Any:
    global COUNTER
    COUNTER = 0
    REGISTER.clear()

    def program(x: torch.Tensor, call: int) -> Any:
        global COUNTER
        COUNTER += 1
        REGISTER.append(COUNTER)
        return x * COUNTER

    return program, REGISTER


@case
def closure_counter() -> Any:
    count = 0
    last = None

    def program(x: torch.Tensor, call: int) -> Any:
        nonlocal count, last
        count += 1
        last = x * count
        return last + 1

    return program, lambda: (count, last)


@case
def dataclass_in_and_out() -> Any:
    point = Point(torch.ones(3), tags=["t"])

    def program(x: torch.Tensor, call: int) -> Any:
        point.y = call
        point.tags.append("u")
        made = Point(x, y=x * 2)
        return made, point.norm() + made.norm(), dataclasses.replace(Frozen(2.0, x), scale=3.0)

    return program, point


@case
def namedtuples() -> Any:
    def program(x: torch.Tensor, call: int) -> Any:
        pair = Pair(x, call)
        first, second = pair
        return pair._replace(second=first + second), Pair(x), torch.max(x, 0)

    return program, None


@case
def instances_made_inside() -> Any:
    Box.count = 0

    def program(x: torch.Tensor, call: int) -> Any:
        box = Box.of(x) + Box(call) + 1
        box.extra = [x]
        slots = Slots(x * 2)
        slots.b.append(box(x))
        return box.value, box.doubled, slots.a, slots.b, len(box), box[2], 3 in box, Box.count

    return program, lambda: Box.count


@case
def instance_returned() -> Any:
    def program(x: torch.Tensor, call: int) -> Any:
        box = Box(x + 1)
        box.self_reference = [box]
        return box, Slots(x), types.SimpleNamespace(a=x, b=call)

    return program, None


@case
def default_and_star_arguments() -> Any:
    def inner(a: Any, /, b: Any = 2, *rest: Any, c: Any = 3, **more: Any) -> Any:
        return a * b + sum(rest) + c + sum(more.values()), tuple(more), len(rest)

    def program(x: torch.Tensor, call: int) -> Any:
        extra = {"d": x, "e": call}
        return inner(x), inner(x, 3, 4, 5, c=6), inner(x, *[1, 2], **extra), inner(*(x,), c=x)

    return program, None


@case
def mutable_default() -> Any:
    def program(x: torch.Tensor, call: int, seen: list[Any] = []) -> Any:  # noqa: B006
        seen.append(call)
        return x + len(seen)

    return program, None


@case
def generators() -> Any:
    def rows(x: torch.Tensor) -> Any:
        for number, row in enumerate(x):
            sent = yield row * number
            if sent:
                yield row

    def delegating(x: torch.Tensor) -> Any:
        yield x
        result = yield from rows(x)
        return result

    def program(x: torch.Tensor, call: int) -> Any:
        generator = rows(x)
        first = next(generator)
        second = generator.send(True)
        return (
            first,
            second,
            list(delegating(x)),
            sum(v for v in rows(x)),
            [a + b for a, b in zip(x, rows(x), strict=True)],
        )

    return program, None


@case
def comprehensions_and_builtins() -> Any:
    def program(x: torch.Tensor, call: int) -> Any:
        parts = [x[i] * i for i in range(3) if i != 1]
        table = {i: v for i, v in enumerate(parts)}  # noqa: C416
        biggest = max(range(5), key=lambda v: -abs(v - 3))
        chained = list(itertools.chain([1], (2, 3), range(2)))
        mapped = list(map(lambda v: v + 1, parts))  # noqa: C417
        ordered = sorted([3, 1, 2], reverse=True)
        reduced = functools.reduce(lambda a, b: a * b, parts)
        return (
            parts,
            table,
            biggest,
            chained,
            mapped,
            ordered,
            reduced,
            any(v > 2 for v in chained),
            all([]),
            list(reversed(parts)),
            divmod(7, 2),
            round(2.567, 1),
            math.floor(2.5),
        )

    return program, None


@case
def exceptions_inside() -> Any:
    log: list[str] = []

    def risky(x: torch.Tensor, call: int) -> Any:
        if call % 2:
            raise ValueError(f"odd {call}")
        return x

    def program(x: torch.Tensor, call: int) -> Any:
        try:
            out = risky(x, call)
        except ValueError as error:
            log.append(str(error))
            out = x * -1
        else:
            log.append("fine")
        finally:
            log.append("finally")
        try:
            {}["missing"]
        except (KeyError, IndexError) as error:
            log.append(repr(error))
        with contextlib.suppress(ZeroDivisionError):
            out = out + 1 // 0
        return out

    return program, log


@case
def exceptions_outside() -> Any:
    log: list[int] = []

    class Custom(Exception):
        pass

    def program(x: torch.Tensor, call: int) -> Any:
        log.append(call)
        y = x * 2
        if call == 1:
            raise Custom("call one")
        if call == 2:
            assert y.shape[0] == 99, "no such size"
        return y

    return program, log


@case
def context_managers() -> Any:
    log: list[str] = []

    @contextlib.contextmanager
    def noted(name: str) -> Any:
        log.append(f"enter {name}")
        try:
            yield name.upper()
        finally:
            log.append(f"exit {name}")

    class Manager:
        def __enter__(self) -> Manager:
            log.append("in")
            return self

        def __exit__(self, *error: Any) -> bool:
            log.append(f"out {error[0]}")
            return True

    def program(x: torch.Tensor, call: int) -> Any:
        with noted("a") as name, Manager():
            x = x + 1
            raise RuntimeError("swallowed")
        with torch.no_grad():
            y = x * 2
        with torch.enable_grad():
            z = x * 3
        return x, y, z, name

    return program, log


@case
def printing() -> Any:
    def program(x: torch.Tensor, call: int) -> Any:
        print("before", call)
        y = x * 2
        print("after", y.shape, end="!\n")
        return y

    return program, None


@case
def recursion() -> Any:
    def power(x: torch.Tensor, n: int) -> Any:
        return x if n == 0 else power(x, n - 1) * 1.5

    def program(x: torch.Tensor, call: int) -> Any:
        return power(x, 5 + call), math.factorial(4)

    return program, None


@case
def partials_and_closures() -> Any:
    scales = [functools.partial(lambda a, b, c: a * b + c, c=n) for n in range(3)]
    adders = [lambda v, n=n: v + n for n in range(3)]

    def program(x: torch.Tensor, call: int) -> Any:
        made = lambda v: v * x  # noqa: E731
        for scale in scales:
            x = scale(x, 2)
        return made(adders[call % 3](x)), [adder(1) for adder in adders]

    return program, None


@case
def cached_function() -> Any:
    @functools.cache
    def table(n: int) -> int:
        return n * n

    def program(x: torch.Tensor, call: int) -> Any:
        return x * table(3) + table(call)

    return program, None


@case
def strings_and_formats() -> Any:
    def program(x: torch.Tensor, call: int) -> Any:
        text = f"{call:03d}|{x.shape[0]!r}|{'a' + 'b'}|{x.dtype}"
        return (
            x,
            text.upper().split("|"),
            "%s-%d" % ("k", call),  # noqa: UP031
            "x".join(["1", "2"]),
            text.startswith("0"),
            Color.RED,
            Color(2).name,
        )

    return program, None


@case
def match_statement() -> Any:
    def program(x: torch.Tensor, call: int) -> Any:
        match {"kind": call, "rest": [1, 2, x]}:
            case {"kind": 0, "rest": [a, *_]}:
                return x * a
            case {"kind": int(n), "rest": [_, b, t]} if n < 2:
                return t + b
            case _:
                return x - 1

    return program, None


@case
def loops_with_break() -> Any:
    def program(x: torch.Tensor, call: int) -> Any:
        total = 0
        for i in range(10):
            if i == 2:
                continue
            if i > 4 + call:
                break
            x = x + i
        else:
            total = 100
        while total < 3:
            total += 1
        return x, total, i

    return program, None


@case
def unpacking() -> Any:
    def program(x: torch.Tensor, call: int) -> Any:
        a, (b, *c), *d = 1, (x, 2, 3), call, 5
        first, *_, last = x
        a, b = b, a
        return [a, *c, *d], {"k": b, "l": first}, (last,), x.shape[0:1], tuple(x.size())

    return program, None


@case
def shared_identity() -> Any:
    shared = [1]
    state = {"a": shared, "b": shared}

    def program(x: torch.Tensor, call: int) -> Any:
        state["a"].append(call)
        made = [x]
        return made, (made, made), state["b"] is state["a"], x is made[0], len(state["b"])

    return program, state


@case
def tensor_in_container_replaced() -> Any:
    cache = {"k": torch.zeros(3, 4), "n": 0}

    def program(x: torch.Tensor, call: int) -> Any:
        cache["k"] = torch.cat([cache["k"], x])[-3:]
        cache["n"] += 1
        cache["k"][0] = call
        return cache["k"].sum()

    return program, cache


@case
def tensor_attribute_in_place() -> Any:
    box = Box(torch.zeros(3, 4))

    def program(x: torch.Tensor, call: int) -> Any:
        box.value += x
        box.value[0] = 1
        box.value.mul_(2)
        return box.value.clone(), box.value

    return program, box


@case
def isinstance_and_types() -> Any:
    def program(x: torch.Tensor, call: int) -> Any:
        kinds = (
            isinstance(x, torch.Tensor),
            type(call) is int,
            hasattr(x, "nope"),
            callable(program),
            issubclass(bool, int),
            x.ndim,
            x.numel(),
            x.is_contiguous(),
            x.dtype == torch.float32,
            x.device.type,
            x.requires_grad,
        )
        return x * 1, kinds, getattr(x, "nope", None), id(x) == id(x)

    return program, None


@case
def recompiles_on_values() -> Any:
    state = types.SimpleNamespace(mode="a", scale=1.0, flag=False, items=(1, 2))

    def program(x: torch.Tensor, call: int) -> Any:
        state.scale += 0.5
        state.flag = not state.flag
        if state.mode == "a" and state.flag:
            state.items = (*state.items, call)
        return x * state.scale * len(state.items)

    return program, state


def plain(value: Any) -> Any:
    """A value in a form that can be compared: objects by type and attributes."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, types.FunctionType):
        return plain(value())
    if isinstance(value, dict):
        return {
            "type": type(value).__name__,
            "items": [(key, plain(item)) for key, item in value.items()],
        }
    if isinstance(value, (list, tuple, collections.deque)):
        return [type(value).__name__, *(plain(item) for item in value)]
    if isinstance(value, Slots):
        return ["Slots", plain(value.a), plain(value.b)]
    if hasattr(value, "__dict__") and not isinstance(value, (type, enum.Enum)):
        return [
            type(value).__name__,
            [
                (key, plain(item) if item != [value] else "itself")
                for key, item in vars(value).items()
            ],
        ]
    return value


def assert_same(found: Any, expected: Any, where: str) -> None:
    """Equal structures, with tensors compared as results are."""
    if isinstance(expected, torch.Tensor) or isinstance(found, torch.Tensor):
        assert isinstance(found, torch.Tensor) and isinstance(expected, torch.Tensor), where
        text = compare_tensor(found, expected, None, 4.0)
        assert text is None, f"{where}: {text}"
        assert found.requires_grad == expected.requires_grad, where
    elif isinstance(expected, (list, tuple)):
        assert type(found) is type(expected) and len(found) == len(expected), (
            f"{where}: {found}, not {expected}"
        )
        for number, (mine, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(mine, other, f"{where}[{number}]")
    elif isinstance(expected, dict):
        assert list(found) == list(expected), where
        for key in expected:
            assert_same(found[key], expected[key], f"{where}[{key!r}]")
    else:
        assert type(found) is type(expected) and found == expected, (
            f"{where}: {found!r}, not {expected!r}"
        )


def story(program: Callable[..., Any], state: Any) -> list[Any]:
    """Calls of a program: what each returned or raised and printed, and the state after it."""
    told = []
    for call in range(4):
        torch.manual_seed(call)
        x = torch.randn(3, 4)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            try:
                result = plain(program(x, call))
            except Exception as error:
                result = f"{type(error).__name__}: {error}"
        told.append([result, out.getvalue(), copy.deepcopy(plain(state))])
    return told


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_as_python(name: str) -> None:
    program, state = CASES[name]()
    expected = story(program, state)
    program, state = CASES[name]()
    found = story(flambeau.compile(program), state)
    assert_same(found, expected, name)
