"""Argument binding: Compiled and its Python twin bind every call as CPython does, and raise what
CPython raises.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import random
import sys
import types

import pytest

from flambeau_capture.core import core
from flambeau_capture.entries.new_entry import new_entry
from flambeau_capture.guards.program import PythonProgram, guard_program
from flambeau_capture.python_core import PythonCompiled, PythonEntry
from flambeau_capture.sources import Argument

COMPILED = [pytest.param(PythonCompiled, id="python")]
if core is not None:
    COMPILED.append(pytest.param(core.Compiled, id="c"))


def flat_entry(cls, count: int):
    """An entry that returns the bound arguments as a tuple, reversed, so that it takes an order of
    its own.
    """
    sources = [Argument(f"a{at}", at) for at in reversed(range(count))]
    if cls is PythonCompiled:
        return PythonEntry(PythonProgram((), sources), lambda *values: values)
    return new_entry(guard_program((), sources, count), lambda *values: values)


def compiled_flat(cls, function):
    count = function.__code__.co_argcount + function.__code__.co_kwonlyargcount
    count += bool(function.__code__.co_flags & inspect.CO_VARARGS) + bool(
        function.__code__.co_flags & inspect.CO_VARKEYWORDS
    )
    entry = flat_entry(cls, count)
    return cls(function, lambda arguments: entry)


def random_function(rng: random.Random) -> types.FunctionType:
    names = [f"p{at}" for at in range(rng.randint(0, 6))]
    keywords = [f"k{at}" for at in range(rng.randint(0, 3))]
    positional_only = rng.randint(0, len(names)) if rng.random() < 0.4 else 0
    first_default = rng.randint(0, len(names))
    parts = [f"{name}={at * 10}" if at >= first_default else name for at, name in enumerate(names)]
    if positional_only:
        parts.insert(positional_only, "/")
    varargs = rng.random() < 0.3
    if varargs:
        parts.append("*args")
    elif keywords:
        parts.append("*")
    parts += [f"{name}='{name}'" if rng.random() < 0.5 else name for name in keywords]
    varkeywords = rng.random() < 0.3
    if varkeywords:
        parts.append("**kwargs")
    flat = names + keywords + ["args"] * varargs + ["kwargs"] * varkeywords
    returned = "".join(f"{name}, " for name in reversed(flat))
    source = f"def function({', '.join(parts)}): return ({returned})"
    namespace: dict = {}
    exec(source, namespace)
    return namespace["function"]


def outcome(function, args, kwargs):
    try:
        return function(*args, **kwargs)
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize("cls", COMPILED)
def test_random_signatures_and_calls(cls):
    rng = random.Random(7)
    errors = values = 0
    for _ in range(400):
        function = random_function(rng)
        compiled = compiled_flat(cls, function)
        for _ in range(10):
            args = [object() for _ in range(rng.randint(0, 7))]
            candidates = ["p0", "p1", "p2", "p3", "p5", "k0", "k1", "k2", "other", "args", "self"]
            kwargs = {name: object() for name in rng.sample(candidates, rng.randint(0, 4))}
            expected, found = outcome(function, args, kwargs), outcome(compiled, args, kwargs)
            assert found == expected, (inspect.signature(function), args, kwargs)
            errors += isinstance(expected, str)
            values += not isinstance(expected, str)
    assert errors > 200 and values > 200, (errors, values)


@pytest.mark.parametrize("cls", COMPILED)
def test_defaults_are_read_at_each_call(cls):
    def function(a, b=1, *, c=2):
        return (c, b, a)

    compiled = compiled_flat(cls, function)
    assert compiled(0) == (2, 1, 0)
    function.__defaults__ = (10,)
    function.__kwdefaults__ = {"c": 20}
    assert compiled(0) == (20, 10, 0)
    function.__defaults__ = None
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        compiled(0)


@pytest.mark.parametrize("cls", COMPILED)
def test_keyword_names_that_are_not_interned(cls):
    def function(alpha, beta=0):
        return (beta, alpha)

    compiled = compiled_flat(cls, function)
    name = "".join(["al", "pha"])
    assert compiled(**{name: 5}) == (0, 5)


@pytest.mark.parametrize("cls", COMPILED)
def test_methods_attributes_and_copies(cls):
    def function(self, x):
        """Doc."""
        return (x, self)

    function.mark = "seen"
    compiled = compiled_flat(cls, function)

    class Owner:
        method = compiled

    owner = Owner()
    assert owner.method(3) == (3, owner)
    assert Owner.method(owner, 3) == (3, owner)
    assert (compiled.__name__, compiled.__doc__, compiled.__module__, compiled.mark) == (
        "function",
        "Doc.",
        __name__,
        "seen",
    )
    assert compiled.__wrapped__ is function
    assert inspect.signature(compiled) == inspect.signature(function)
    compiled.other = 4
    assert function.other == 4
    assert copy.deepcopy(compiled) is compiled and copy.copy(compiled) is compiled
    with pytest.raises(AttributeError):
        compiled.nothing
    assert "function" in repr(compiled)


@pytest.mark.parametrize("cls", COMPILED)
def test_pickled_by_name(cls, monkeypatch):
    compiled = cls(outcome)
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(compiled)  # the name leads to another object
    monkeypatch.setitem(globals(), "outcome", compiled)
    monkeypatch.setitem(sys.modules, __name__, types.SimpleNamespace(outcome=compiled))
    assert pickle.loads(pickle.dumps(compiled)) is compiled


@pytest.mark.parametrize("cls", COMPILED)
def test_a_function_given_other_code_is_run_as_it_is(cls):
    def function(x):
        return (x,)

    compiled = compiled_flat(cls, function)
    assert compiled(1) == (1,)
    function.__code__ = (lambda x, y: (y, x)).__code__
    assert compiled(1, 2) == (2, 1)


@pytest.mark.parametrize("cls", COMPILED)
def test_without_an_entry_the_function_itself_runs(cls):
    def function(x, *, y=1):
        return x + y

    assert cls(function)(1, y=5) == 6
    assert cls(function, lambda arguments: None)(1) == 2
    with pytest.raises(ZeroDivisionError):
        cls(function, lambda arguments: 1 // 0)(1)
