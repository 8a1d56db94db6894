"""docs/graph_breaks.md: every reason for which a graph can break, from the registry.

python -m tools.checks reasons            compare
python -m tools.checks.reasons_page       rewrite the page
"""

from __future__ import annotations

from flambeau_capture.reasons import REASONS
from tools.checks.command import ROOT, CheckFailed

PAGE = ROOT / "docs" / "graph_breaks.md"
_HEAD = """# Graph breaks

Where something cannot be captured, the graph ends, the operation runs as it is, and capture goes on behind it (with `fullgraph=True` it is
an error). `flambeau.explain` and `FLAMBEAU_LOGS=graph_breaks` name the line, the cause and one of the ids below, which are stable.
"""


def check() -> None:
    """Fail if the page is not what the registry says."""
    if not PAGE.exists() or PAGE.read_text() != page():
        raise CheckFailed(f"{PAGE} is not up to date: python -m tools.checks.reasons_page")


def page() -> str:
    """The page's text."""
    parts = [_HEAD]
    for id, reason in sorted(REASONS.items()):
        parts.append(
            f"\n## {id}\n\n"
            f"- What happened: {reason.context}.\n"
            f"- Why that ends the graph: {reason.explanation}.\n"
            f"- What may help: {reason.hint}.\n"
        )
    return "".join(parts)


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
