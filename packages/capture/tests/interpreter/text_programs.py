# ruff: noqa: E711, UP031, UP032 (forms of formatting are what is tested)
"""Programs that format tensors and data-dependent numbers; each is `fn(x)` for a float tensor x of
shape (3,) and up to 3 dims.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any

import torch


@dataclasses.dataclass
class Result:
    loss: Any
    steps: int = 3


class Shown:
    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return f"<{self.value!r}>"

    def __format__(self, spec):
        return f"[{self.value.sum():{spec}}]"


Pair = collections.namedtuple("Pair", "a b")
STATE: dict[str, Any] = {}


class Failure(Exception):
    def __init__(self, value, text):
        super().__init__(text)
        self.value = value


def of_a_number(x):
    total = x.sum()
    return (
        f"{total}",
        f"loss {total:.3f}",
        f"{total:>12.2e}|{total:+g}|{total:08.1f}",
        format(total, ".2f"),
    )


def of_many_numbers(x):
    return f"{x}", str(x), repr(x * 2), ascii(x), f"{x!r:>60}|{x!s:<60}", f"{x.shape} {x.dtype}"


def of_dtypes(x):
    ints, bools, double = x.long(), x > 0, x.double()
    halves, mixed = x.half(), torch.complex(x, x + 1)
    return (
        f"{ints} {bools} {double} {halves} {mixed}",
        (
            f"{ints.sum()} {ints.sum():4d}|{ints.sum():x}|{bools.any()} {bools.all():d} "
            f"{double.sum():.12f}"
        ),
        f"{halves.max():.2f} {mixed.sum():.2f}",
        str(ints.sum()),
        repr(bools.any()),
    )


def of_empty_tensors(x):
    return f"{x[:0]} {x.new_zeros(2, 0)} {x.long()[:0]}"


def of_large_tensors(x):
    large = torch.arange(3000.0).reshape(3, 1000) * x.sum()
    return f"{large}\n{large.long()}"


def with_percent(x):
    total, table = x.sum(), {"total": x.sum(), "n": 3}
    return (
        "%s %r %a" % (total, x, "ä"),
        "%.3f|%10.2e|%d %%" % (total, x.max(), x.long().sum()),
        "%s" % total,
        "%(total).2f of %(n)d, %(n)s" % table,
        "%-50s|" % (x,),
        "%5.1f %x" % (x.max().reshape(1, 1), x.long().sum().abs()),
    )


def with_format(x):
    total = x.sum()
    return (
        "{} {!r} {:.2f}".format(total, x, total),
        "{1:.2f} {0} {name!r:>5}".format("a", total, name=x.max()),
        "{0[a]:.3f} {0[b][1]} {1.shape} {{}}".format({"a": total, "b": [1, x]}, x),
        "{:{}.{}f}|".format(total, 9, 2),
        "{:>{width}}".format(total, width=20),
    )


def of_containers(x):
    total = x.sum()
    return (
        str([x, total]),
        f"{(x,)} {(total, 'a')} { {'x': x, 1: [total]} }",
        repr(collections.deque([x, 1], 4)),
        str(collections.OrderedDict(a=x, b=2)),
        f"{[[]]} {[f'{total}', 'it is']!s}",
        "%s %s" % ([x], {"a": (total,)}),
    )


def of_objects(x):
    return (
        str(Result(x.sum())),
        f"{Result(x)!r:>80}",
        f"{[Result(x), 1]}",
        str(Pair(x, 1)),
        f"{Shown(x)} {Shown(x)!r:>70} {[Shown(x)]}",
        f"{Shown(x):.2f}",
        "%s %r" % (Shown(x), Result(x)),
        "{} {:.1f}".format(Shown(x), Shown(x)),
        str(torch.nn.Identity()),
    )


def of_exceptions(x):
    errors = ValueError("bad", x), ValueError(x.sum()), ValueError(f"{x.sum():.2f}"), KeyError()
    return [str(error) for error in errors], [repr(error) for error in errors]


def put_together(x):
    text = f"{x.sum():.2f}"
    text += "!"
    text = "loss: " + text + f" and {text}"
    lines = [f"{i}: {x[i]:.1f}" for i in range(3)]
    return text, "\n".join(lines), ", ".join(f"{v}" for v in (x.max(), 2)), f"{text:>60}|{text!r}"


def changed(x):
    text = f"{text_of(x)}"
    return (
        text.upper(),
        text[:5],
        text[2:-1:2],
        text.strip("t").ljust(90, "."),
        text.replace(" ", ""),
    )


def text_of(x):
    return f"{x}"


def as_a_str(x):
    text = f"a{x.max()}"
    other = f"{x}"
    return (
        isinstance(text, str),
        isinstance(text, (list, str)),
        type(text) is str,
        callable(text),
        not text,
        bool(other),
        text is text,
        text == None,
        text != 3,
        text in [text],
        text.__class__,
        hasattr(text, "upper"),
        hasattr(text, "item"),
        text if text else None,
    )


def before_and_after_writes(x):
    view = x[1:]
    texts = [f"{x} {x[0]:.3f} {view}"]
    x.add_(1)
    texts.append(f"{x} {view.sum()}")
    view.mul_(2)
    texts.append(str(x))
    y = x * 2
    texts.append(f"{y} {y.sum()}")
    y[0] = 5
    y.data.zero_()
    return texts, y


def in_a_loop(x):
    log = []
    for step in range(4):
        x = x * 1.5
        log.append(f"{step}: {x.sum():.3f}")
        if step % 2:
            log[-1] += f" ({x.max()})"
    return log, x


def in_places(x):
    result = Result(f"{x.sum()}")
    result.text = f"{x.max():.2f}"
    STATE["text"] = f"{x.min()}"
    STATE["all"] = [f"{x}"]
    table = {"a": {"b": f"{x[0]}"}}

    def inner():
        return table["a"]["b"] + result.text

    return result, table, inner(), [f"{x[1]}"] * 2, (f"{x[2]}", None)


def of_numbers_in_the_data(x):
    total, count, positive = x.sum().item(), (x > 0).sum().item(), (x > 0).any().item()
    return (
        (
            f"{total:.3f} {total} {count} {count:3d} {positive} {count + 1} {total / 2:.2e} "
            f"{float(x[0]):.1f}"
        ),
        str(total),
        repr(count),
        "%.2f|%4d|%s" % (total, count, positive),
        "{:.1f} {}".format(total, count),
        f"{count!r:>5}",
        str([total, count]),
    )


def raised_and_caught(x):
    try:
        raise ValueError(f"bad {x.sum():.2f}")
    except ValueError as error:
        first = str(error)
    try:
        raise Failure(x, f"{x}")
    except Failure as error:
        return first, error.args, f"{error}", error.value + 1


def made_and_returned(x):
    return ValueError(f"bad {x}", x.sum())


def errors_of_specifications(x):
    found = []
    for value, spec in ((x, ".3f"), (x.sum(), "d"), (x.sum(), "zz"), (x.long().sum(), "s")):
        try:
            found.append(f"{value:{spec}}")
        except (TypeError, ValueError) as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def unused(x):
    message = f"{x} {x.exp().sum()}"
    torch._check(x.shape[0] == 3, lambda: message)
    if message:
        x = x + 1
    return x


def of_parameters(x):
    weight = torch.nn.Parameter(x.clone()) if x.requires_grad else x
    leaf = x.detach().clone().requires_grad_()
    return f"{weight.detach()} {leaf}", f"{(leaf * 2).sum():.3f} {leaf.sum()}"


def kept_methods(x):
    upper = f"{x}".upper
    return upper(), upper


WHOLE = [
    of_a_number,
    of_many_numbers,
    of_dtypes,
    of_empty_tensors,
    of_large_tensors,
    with_percent,
    with_format,
    of_containers,
    of_objects,
    of_exceptions,
    put_together,
    changed,
    as_a_str,
    before_and_after_writes,
    in_a_loop,
    in_places,
    of_numbers_in_the_data,
    raised_and_caught,
    made_and_returned,
    errors_of_specifications,
    unused,
    of_parameters,
]


# ---------------------------------------------------------------- what needs the characters


def length(x):
    return len(f"{x}")


def compared(x):
    return f"{x.sum():.0f}" == "3", f"{x}" < "a"


def as_key(x):
    return {f"{x.sum()}": 1}


def in_a_set(x):
    return {f"{x.sum()}"} | {"a"}


def in_a_table(x):
    return {"a": 1}.get(f"{x.sum()}")


def searched(x):
    text = f"{x.sum():.3f}"
    return "3" in text, text.startswith("-"), text.find("."), text.split("."), text.isdigit()


def walked(x):
    return list(f"{x.sum():.2f}"), sorted([f"{x[0]}", f"{x[1]}"])


def read_back(x):
    return float(f"{x.sum():.2f}") + 1, x * 2


def perhaps_empty(x):
    text = f"{x}"[:0]
    return 1 if text else 2


def given_to_c(x):
    return "a".startswith(f"{x.sum()}"), math.isnan(x.sum()), "abc".find(f"{x.sum()}")


def as_specification(x):
    width = f"{x.long().abs().sum()}"
    return f"{3:{width}}"


def as_template(x):
    return f"{x.sum():.2f} %s" % 3


def with_a_history(x):
    y = x * torch.ones(3, requires_grad=True)
    return f"{y}", y.detach()


BREAKING = [
    length,
    compared,
    as_key,
    in_a_set,
    in_a_table,
    searched,
    walked,
    read_back,
    perhaps_empty,
    given_to_c,
    as_specification,
    as_template,
    with_a_history,
]
