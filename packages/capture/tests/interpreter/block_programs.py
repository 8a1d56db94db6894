# ruff: noqa
"""Programs of with-blocks, handlers, finally, except*, match and loops in each other, to be
suspended anywhere. (Not a test module.)
"""

from __future__ import annotations

import contextlib
import dataclasses

import torch

X = torch.arange(12.0).reshape(3, 4)
PROGRAMS = []


def program(*args):
    def declare(fn):
        PROGRAMS.append((fn, args))
        return fn

    return declare


class CM:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, k, e, t):
        self.log.append(None if k is None else (k.__name__, str(e)))
        return self.swallow


@program()
def comp_raises(x):
    i = 3
    log = []
    try:
        y = [10 // (2 - i) for i in range(4)]
    except ZeroDivisionError as e:
        log.append((i, str(e)))
    try:
        y = [[1 // q for q in (1, p)] for p in (1, 0)]
    except ZeroDivisionError:
        log.append("inner")
        try:
            p
        except NameError as e:
            log.append(str(e))
    return x + i, log


@program()
def comp_in_try_with(x):
    log = []
    with CM(log):
        try:
            ys = [x + v for v in range(3) if v != 1]
        finally:
            log.append([len(log) for _ in range(2)])
    return ys, log


@program()
def nested_with(x):
    log = []
    with CM(log) as a, CM(log, True) as b:
        x = x + 1
        with CM(log):
            x = x * 2
            raise KeyError("k")
    with CM(log, True):
        with CM(log):
            {}["z"]
    return x, log


@program()
def with_return(x):
    log = []

    def f(n):
        for i in range(3):
            with CM(log):
                if i == n:
                    return i * 10
                if i == 0:
                    continue
                try:
                    log.append(i)
                finally:
                    log.append("f")
        return -1

    return x, [f(0), f(1), f(5)], log


@program()
def try_all(x):
    log = []
    for n in range(5):
        try:
            try:
                if n == 0:
                    raise ValueError("v")
                if n == 1:
                    raise KeyError("k") from ValueError("c")
                if n == 2:
                    [][1]
                if n == 3:
                    continue
                log.append("ok")
            except ValueError as e:
                log.append(str(e))
                raise RuntimeError("again") from e
            except (KeyError, IndexError) as e:
                log.append(
                    (type(e).__name__, type(e.__cause__).__name__, type(e.__context__).__name__)
                )
            else:
                log.append("else")
            finally:
                log.append(("fin", n))
                x = x + n
        except RuntimeError as e:
            log.append((str(e.__cause__), str(e.__context__)))
    return x, log


@program()
def bare_raise(x):
    log = []

    def f():
        try:
            raise ValueError("a")
        except ValueError:
            try:
                raise KeyError("b")
            except KeyError:
                log.append("kb")
            raise

    try:
        f()
    except ValueError as e:
        log.append((str(e), e.__context__))
        try:
            try:
                raise
            finally:
                log.append("fin")
        except ValueError as e2:
            log.append(e2 is e)
    try:
        e
    except NameError as err:
        log.append(str(err))
    return x, log


@program()
def groups(x):
    log = []

    def f(errs):
        try:
            if errs:
                raise ExceptionGroup("g", errs)
            log.append("none")
        except* ValueError as g:
            log.append(("v", [str(e) for e in g.exceptions]))
        except* (KeyError, TypeError) as g:
            log.append(("kt", len(g.exceptions)))
            if len(g.exceptions) > 1:
                raise OSError("o")
        else:
            log.append("else")
        finally:
            log.append("fin")

    for errs in (
        [],
        [ValueError(1)],
        [ValueError(1), KeyError(2)],
        [KeyError(1), TypeError(2), IndexError(3)],
        [IndexError(3)],
    ):
        try:
            f(errs)
        except BaseExceptionGroup as g:
            log.append((str(g), [type(e).__name__ for e in g.exceptions]))
    return x, log


@program()
def matches(x):
    out = []

    @dataclasses.dataclass
    class P:
        a: int
        b: object = None

    for s in (
        1,
        "s",
        (1, 2),
        [1, 2, 3],
        {"k": 1, "z": 2},
        P(3),
        P(4, P(5)),
        None,
        2.5,
        {"q": [1, {"r": 4}]},
        (1, (2, 3)),
    ):
        match s:
            case int(n) if n == 1:
                out.append(("int", n))
            case str() as t:
                out.append(t)
            case (a, (b, c)):
                out.append((a, b, c))
            case (a, b) | [a, b, _]:
                out.append((a, b))
            case {"k": v, **rest}:
                out.append((v, rest))
            case {"q": [p, {"r": r}]}:
                out.append((p, r))
            case P(a=3):
                out.append("p3")
            case P(q, P(r)):
                out.append((q, r))
            case None:
                out.append("none")
            case _:
                out.append("other")
    return x + len(out), out


@program()
def whiles(x):
    n, out = 5, []
    while n := n - 1:
        if n == 3:
            continue
        for k in range(n):
            if k == 2:
                break
            out.append((n, k))
        else:
            out.append("e")
    else:
        out.append("w")
    while True:
        try:
            if len(out) > 12:
                break
        finally:
            out.append("z")
    return x * n, out


@program()
def decorated(x):
    @contextlib.contextmanager
    def cm(tag):
        log.append(("in", tag))
        try:
            yield tag * 2
        except KeyError as e:
            log.append(("err", str(e)))
        finally:
            log.append(("out", tag))

    log = []
    with cm("a") as p, cm("b") as q:
        log.append(p + q)
        raise KeyError("oops")
    with contextlib.ExitStack() as st:
        st.enter_context(cm("c"))
        st.callback(log.append, "cb")
    with contextlib.suppress(ValueError):
        raise ValueError
    return x, log


@program()
def finally_returns(x):
    def f(n):
        try:
            if n == 0:
                return "try"
            if n == 1:
                raise ValueError
            if n == 2:
                return 1 / 0
        except ZeroDivisionError:
            return "zd"
        finally:
            log.append(n)
            if n == 1:
                return "fin"
        return "end"

    log = []
    return x, [f(n) for n in range(4)], log


@program()
def asserts(x):
    out = []
    for n in range(3):
        try:
            assert n != 1, f"bad {n}"
            assert n < 2
        except AssertionError as e:
            out.append(str(e))
    return x, out


def told(e):
    if e is None:
        return None
    return (
        type(e).__name__,
        str(e),
        [told(i) for i in e.exceptions] if isinstance(e, BaseExceptionGroup) else None,
        told(e.__cause__),
        type(e.__context__).__name__,
        getattr(e, "__notes__", None),
    )


@program()
def star_reraise(x):
    log = []

    def f(errs, how):
        try:
            raise ExceptionGroup("g", errs)
        except* ValueError as g:
            log.append(len(g.exceptions))
            if how == 1:
                raise
            if how == 2:
                raise g
            if how == 3:
                raise ExceptionGroup("new", [TypeError(len(log))]) from g
        except* KeyError:
            if how:
                raise
            log.append("k")

    nested = [ValueError(1), ExceptionGroup("in", [KeyError(2), ValueError(3)]), OSError(4)]
    for how in range(4):
        try:
            f(nested, how)
        except BaseExceptionGroup as e:
            e.add_note("n")
            log.append(told(e))
    return x, log


@program()
def star_single(x):
    log = []
    try:
        try:
            raise ValueError("one")
        except* ValueError as g:
            log.append(told(g))
            raise
    except ExceptionGroup as e:
        log.append(told(e))
    try:
        try:
            raise KeyError("two")
        except* ValueError as g:
            pass
    except KeyError as e:
        log.append(told(e))
    return x, log


@program()
def match_more(x):
    class P:
        __match_args__ = ("a", "b")

        def __init__(self, a, b):
            self.a, self.b = a, b

    out = []
    for s in (
        P(1, [2, 3]),
        {"a": {"b": (1, 2)}},
        [1, [2, [3]]],
        3.0,
        True,
        b"x",
        {"a": 1},
        (),
        range(2),
        x,
    ):
        match s:
            case P(1, [y, *z]) if y < z[0]:
                out.append((y, z))
            case {"a": {"b": (p, q) as t}}:
                out.append((p, q, t))
            case [a, [b, [c]]]:
                out.append(a + b + c)
            case float(v) | bool(v):
                out.append(v)
            case bytes():
                out.append("b")
            case {**kw} if kw:
                out.append(kw)
            case ():
                out.append("empty")
            case torch.Tensor(shape=(3, w)):
                out.append(w)
            case object():
                out.append(type(s).__name__)
    return x.sin(), out


@program()
def nested_comp_try(x):
    log = []

    def g(i):
        if i == 2:
            raise ValueError(i)
        return i

    for n in (2, 4):
        try:
            with CM(log):
                r = [[g(i) + j for j in range(2) if j or i] for i in range(n)]
        except ValueError as e:
            log.append(str(e))
        else:
            log.append(r)
    i = {i: [i for i in range(i)] for i in range(3)}
    return (
        x,
        log,
        i,
        [(lambda: i)() for i in range(2)],
        [(j, k) for j in range(2) for k in (lambda: [j])()],
    )


@program()
def with_many(x):
    log = []

    class Bad:
        def __enter__(self):
            raise OSError("enter")

        def __exit__(self, *a):
            log.append("never")

    class BadExit(CM):
        def __exit__(self, *a):
            raise TypeError("exit")

    for mk in (Bad, lambda: BadExit(log), lambda: CM(log, True)):
        try:
            with CM(log), mk() as m:
                log.append(type(m).__name__)
                if x.shape[0] == 3:
                    raise ValueError("body")
        except Exception as e:
            log.append(told(e))
        for i in range(3):
            with CM(log):
                if i == 1:
                    break
    with contextlib.nullcontext(3) as (k), torch.no_grad():
        y = x + k
    return y, log


@program()
def loops_else(x):
    out = []
    for i, (a, b) in enumerate(zip([1, 2, 3], "abc")):
        for j in range(3):
            if j == i:
                break
        else:
            out.append("else")
            continue
        try:
            if i == 1:
                continue
            out.append((a, b))
        finally:
            out.append("f")
    else:
        out.append("done")
    it = iter(range(5))
    for v in it:
        if v == 2:
            break
    return x, out, list(it), [*map(lambda q: q * 2, range(3))]
