"""docs/graph_breaks.md: every reason for which a graph can break or run uncompiled, from the
registries, each with a program that gives it.

python -m tools.checks reasons            compare
python -m tools.checks.reasons_page       rewrite the page
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import TYPE_CHECKING, Any

from flambeau.engines.refusals import REASONS as ENGINE_REASONS
from flambeau_autograd.reasons import REASONS as AUTOGRAD_REASONS
from flambeau_capture.reasons import REASONS
from flambeau_prims import unsupported
from flambeau_runtime.environment_errors import REASONS as ENVIRONMENT_REASONS
from tests.programs import graph_breaks
from tests.programs.graph_breaks import EXAMPLES, WITHOUT_EXAMPLE
from tools.checks.command import ROOT, CheckFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.programs.graph_breaks import Example

PAGE = ROOT / "docs" / "graph_breaks.md"
_HEAD = """# Graph breaks

Where an operation cannot be captured, the graph ends, the operation runs eagerly, and capture
continues after it (with `fullgraph=True` it is an error). `flambeau.explain` and
`FLAMBEAU_LOGS=graph_breaks` name the line, the cause and one of the ids below, which are stable.

Each program here gives its reason when it is compiled and called (`flambeau.compile(program)()`);
the test suite checks that (`tests/programs/graph_breaks.py`). `python -m tools.checks.reasons_page`
writes this page. The programs need

```python
{imports}
```

## Breaks
"""
_EXPORT = """
## Errors of an export

`flambeau_capture.export` raises a `CaptureError` for all of the above, and for these. The programs
are whole.
"""
_EAGER = """
## Graphs that run operator by operator

These graphs are captured whole, but the backend cannot compile them: `flambeau.explain` says
"runs eagerly", with the id.
"""
_ENGINES = """
## Graphs that another compiler does not take

With a backend such as `onnxrt` ([docs/engines.md](engines.md)), these graphs run eagerly.
"""
_ENVIRONMENT = """
## Graphs that cannot be built on this machine

These graphs run operator by operator, too, because no kernel can be built or loaded. The program is
correct; a warning says what to do.
"""


def check() -> None:
    """Fail if the page is not what the registries say."""
    if not PAGE.exists() or PAGE.read_text() != page():
        raise CheckFailed(f"{PAGE} is not up to date: python -m tools.checks.reasons_page")


def eager_reasons() -> dict[str, type[unsupported.Unsupported]]:
    """The reasons of autograd and prims, which are exceptions, by id; without those that capture
    has, too.
    """
    ours = [kind for kind in vars(unsupported).values() if isinstance(kind, type)]
    prims = {kind.reason: kind for kind in ours if issubclass(kind, unsupported.Unsupported)}
    return {id: kind for id, kind in {**prims, **AUTOGRAD_REASONS}.items() if id not in REASONS}


def page() -> str:
    """The page's text."""
    exports = {id for id in REASONS if id.startswith(("export-", "size-"))}
    head = _HEAD.replace("{imports}", _imports())
    parts = [head, *_sections(REASONS.keys() - exports), _EXPORT, *_sections(exports), _EAGER]
    parts += _eager_sections(eager_reasons())
    parts += [_ENGINES, *_eager_sections(ENGINE_REASONS)]
    parts += [_ENVIRONMENT, *_eager_sections(ENVIRONMENT_REASONS)]
    return "".join(parts)


def _eager_sections(kinds: Mapping[str, Any]) -> Iterator[str]:
    for id, kind in sorted(kinds.items()):
        hint = f"- What may help: {kind.hint}.\n" if kind.hint else ""
        what = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        yield f"\n### {id}\n\n- What happened: {what}\n{hint}{_example(id)}"


def _sections(ids: Iterable[str]) -> list[str]:
    return [
        f"\n### {id}\n\n"
        f"- What happened: {REASONS[id].context}.\n"
        f"- Why that cannot be captured: {REASONS[id].explanation}.\n"
        f"- What may help: {REASONS[id].hint}.\n"
        f"{_example(id)}"
        for id in sorted(ids)
    ]


def _example(id: str) -> str:
    """The program that gives the reason, or why there is none."""
    found = EXAMPLES.get(id)
    if found is None:
        return f"- No example: {WITHOUT_EXAMPLE.get(id, 'none is known')}\n"
    return "\n```python\n" + "\n\n\n".join(_sources(found)) + "\n```\n"


def _sources(example: Example) -> list[str]:
    return [_source(item) for item in (*example.needs, example.program)]


def _imports() -> str:
    """The imports of the examples' file that the examples use."""
    read = {
        node.id
        for found in EXAMPLES.values()
        for source in _sources(found)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name)
    }
    imports = []
    for node in ast.parse(inspect.getsource(graph_breaks)).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            used = [alias for alias in node.names if (alias.asname or alias.name) in read]
            if used:
                node.names = used
                imports.append(ast.unparse(node))
    return "\n".join(imports)


def _source(item: Any) -> str:
    """A definition's text, without the decorator that declares it as an example."""
    function = getattr(item, "_torchdynamo_orig_callable", item)
    text = textwrap.dedent(inspect.getsource(function)).strip()
    return re.sub(r"^@example\(.*?\)\n", "", text, flags=re.DOTALL)


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
