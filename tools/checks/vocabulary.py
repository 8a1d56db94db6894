"""The vocabulary check: terms that the code base gave up do not come back, in names or in prose.

`vocabulary.toml` lists them, each with the standard term to use.  Names are the identifiers of
Python files; prose is comments, docstrings and Markdown pages.  Other strings are data, and are not
read.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tools.checks.command import ROOT, CheckFailed

if TYPE_CHECKING:
    from pathlib import Path

TABLE = ROOT / "tools" / "checks" / "vocabulary.toml"
_EXEMPT = ("tools/checks/vocabulary", "tests/null/test_vocabulary", "docs/vocabulary.md")
_NEVER = re.compile(r"(?!)")


@dataclass(frozen=True)
class Term:
    """A term to avoid: patterns for identifiers and for prose, where they hold, and what to use."""

    use: str
    names: re.Pattern[str] = _NEVER
    prose: re.Pattern[str] = _NEVER
    where: tuple[str, ...] = ("",)

    def holds_in(self, path: str) -> bool:
        """Whether the term is refused in this file (a path relative to the root)."""
        return path.startswith(self.where)

    def may_be_in(self, words: set[str], text: str) -> bool:
        """Whether it is in a text with these words at all, if only as data."""
        return any(map(self.names.fullmatch, words)) or self.prose.search(text) is not None


def read_table(path: Path = TABLE) -> list[Term]:
    """The terms of a table; ValueError where an entry names neither a pattern nor a replacement."""
    terms = []
    for entry in tomllib.loads(path.read_text())["term"]:
        if not entry.get("use") or not (entry.get("names") or entry.get("prose")):
            raise ValueError(f"{path.name}: an entry needs `use`, and `names` or `prose`: {entry}")
        terms.append(
            Term(
                entry["use"],
                re.compile(entry["names"]) if "names" in entry else _NEVER,
                re.compile(entry["prose"]) if "prose" in entry else _NEVER,
                tuple(entry.get("in", ("",))),
            )
        )
    return terms


def names_and_prose(text: str) -> tuple[dict[str, int], list[tuple[int, str]]]:
    """The identifiers of a Python file, each with the line of its first use, and (line, text) of
    each comment and line of a docstring.
    """
    names: dict[str, int] = {}
    said: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            names.setdefault(token.string, token.start[0])
        elif token.type == tokenize.COMMENT:
            said.append((token.start[0], token.string))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            value = node.value.value
            if isinstance(value, str):
                said.extend(enumerate(value.split("\n"), node.lineno))
    return names, said


def violations(path: str, text: str, terms: list[Term]) -> list[str]:
    """What a file says that it should not: `path:line: 'found': use ...`."""
    words = set(re.findall(r"\w+", text))
    here = [term for term in terms if term.holds_in(path) and term.may_be_in(words, text)]
    if not here:
        return []
    names: dict[str, int] = {}
    lines = list(enumerate(text.split("\n"), 1))
    if path.endswith(".py"):
        names, lines = names_and_prose(text)
    found: dict[tuple[int, str], str] = {}
    for name, line in names.items():
        for term in here:
            if term.names.fullmatch(name):
                found[line, name] = term.use
    for line, sentence in lines:
        for term in here:
            for match in term.prose.finditer(sentence):
                found[line, match.group()] = term.use
    return [f"{path}:{line}: {word!r}: use {use}" for (line, word), use in sorted(found.items())]


def check() -> None:
    """Every Python file and Markdown page that is tracked, against the table."""
    terms = read_table()
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = [
        violation
        for path in listed.stdout.split()
        if not path.startswith(_EXEMPT) and (ROOT / path).is_file()
        for violation in violations(path, (ROOT / path).read_text(), terms)
    ]
    if found:
        raise CheckFailed("terms that were given up:\n" + "\n".join(found))
