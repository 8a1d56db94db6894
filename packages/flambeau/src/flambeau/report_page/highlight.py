"""Python, C++ and Triton in colours: comments, strings, numbers and words of the language."""

from __future__ import annotations

import re

from flambeau.report_page.html import Html, element, join

_PYTHON = (
    "and as assert async await break class continue def del elif else except False finally for "
    "from global if import in is lambda None nonlocal not or pass raise return True try while with "
    "yield"
)
_CPP = (
    "alignas auto bool break case char const constexpr continue default do double else enum extern "
    "false float for if int int32_t int64_t long namespace nullptr return short signed sizeof "
    "static struct switch template true typedef uint32_t uint64_t unsigned using void while"
)
_WORDS = {"python": _PYTHON, "triton": _PYTHON, "cpp": _CPP}
_COMMENTS = {"python": r"\#[^\n]*", "triton": r"\#[^\n]*", "cpp": r"//[^\n]*|^\#[^\n]*"}
_STRINGS = r"\"\"\".*?\"\"\"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
_NUMBER = r"\b(?:0x[0-9a-fA-F]+|\d+\.?\d*(?:e[+-]?\d+)?)f?\b"


def code_block(text: str, language: str) -> Html:
    """A box with code in colours."""
    return element("pre", element("code", highlight(text, language)), tabindex=0)


def highlight(text: str, language: str) -> Html:
    """The text, each token of a class in a span."""
    words = "|".join(_WORDS[language].split())
    pattern = re.compile(
        f"(?P<comment>{_COMMENTS[language]})|(?P<string>{_STRINGS})|(?P<number>{_NUMBER})"
        rf"|(?P<word>\b(?:{words})\b)",
        re.MULTILINE | re.DOTALL,
    )
    parts: list[str] = []
    end = 0
    for match in pattern.finditer(text):
        parts.append(text[end : match.start()])
        parts.append(element("span", match.group(), class_=f"hl-{match.lastgroup}"))
        end = match.end()
    return join(parts, text[end:])
