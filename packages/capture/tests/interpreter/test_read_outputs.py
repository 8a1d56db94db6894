# ruff: noqa: UP006, UP045 (the forms of typing are what is tested)
"""Programs that read what they have printed, warned or logged themselves, and what typing makes:
compiled they see what eager sees.
"""

from __future__ import annotations

import builtins
import io
import logging
import sys
import typing
import warnings

import pytest
from captured import compiled

T = typing.TypeVar("T")
LOGGER = logging.getLogger("flambeau_capture.tests.read_outputs")
LOGGER.propagate = False


class Writer:
    def __init__(self):
        self.texts = []

    def write(self, text):
        self.texts.append(text)


class Keeper(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


WRITER, KEEPER = Writer(), Keeper()
LOGGER.addHandler(KEEPER)


def recorded_warnings():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.warn("one", stacklevel=1)
        first = len(found)
        warnings.warn("two", stacklevel=1)
    return first, [str(item.message) for item in found]


def warnings_shown_by_the_program():
    found = []
    shown = warnings.showwarning
    warnings.showwarning = lambda *args, **kwargs: found.append(args[0])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("one", stacklevel=1)
    finally:
        warnings.showwarning = shown
    return [str(message) for message in found]


def warning_as_error():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            warnings.warn("one", DeprecationWarning, stacklevel=1)
        except DeprecationWarning as error:
            return str(error)
    return "not raised"


def written_by_a_method():
    writer = Writer()
    print("a", 1, file=writer)
    before = len(WRITER.texts)
    print("b", file=WRITER)
    return writer.texts, WRITER.texts[before:]


def warning_of_an_attribute():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        kind = getattr(typing, "io", typing).IO
    return kind, len(found)


def kept_records():
    before = len(KEEPER.records)
    LOGGER.error("a %s", 1)
    return [record.getMessage() for record in KEEPER.records[before:]]


def revealed():
    text, old = io.StringIO(), sys.stderr
    sys.stderr = text
    try:
        typing.reveal_type(3)
    finally:
        sys.stderr = old
    return text.getvalue()


def replaced_builtin():
    original = len
    try:
        builtins.len = lambda items: 7
        return len([1, 2]), original([1, 2])
    finally:
        builtins.len = original


def wrong_format():
    try:
        return format(3, None)
    except TypeError as error:
        return str(error)


def aliases_called():
    found = []
    for alias in (typing.List, typing.List[int], typing.FrozenSet):
        try:
            alias()
        except TypeError as error:
            found.append(str(error))
    return found


def modules_of_made_types():
    made = (
        typing.TypeVar("T"),
        typing.ParamSpec("P"),
        typing.NewType("N", int),
        typing.TypedDict("D", {"a": int}),
        typing.NamedTuple("P", [("a", int)]),
    )
    return [item.__module__ for item in made]


@pytest.mark.parametrize(
    "fn",
    [
        recorded_warnings,
        warnings_shown_by_the_program,
        warning_as_error,
        written_by_a_method,
        warning_of_an_attribute,
        kept_records,
        revealed,
        replaced_builtin,
        wrong_format,
        aliases_called,
        modules_of_made_types,
    ],
)
def test_reads_what_eager_reads(fn):
    expected, run = fn(), compiled(fn)
    assert [run(), run()] == [expected, expected]


def test_an_error_filter_set_later_raises_in_the_frame():
    def warns():
        try:
            warnings.warn("one", UserWarning, stacklevel=1)
        except UserWarning:
            return "raised"
        return "shown"

    run = compiled(warns)
    for action in ("ignore", "error", "ignore"):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            assert run() == warns()


def test_what_typing_caches_leaves_a_frame_as_it_is():
    def forms():
        return typing.List[typing.Optional[int]], typing.Dict[str, T], typing.Union, typing.List

    run = compiled(forms)
    for _ in range(2):
        assert all(made is same for made, same in zip(run(), forms(), strict=True))


def test_forms_given_to_typing_are_guarded():
    def optional(form):
        return typing.Optional[form]

    run = compiled(optional)
    for form in (typing.List[int], typing.Tuple[int, int], typing.List[int]):
        assert run(form) == optional(form)
