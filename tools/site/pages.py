"""Which file of the repository is which page of the site, and links between them.

A link in a page leads to a file of the repository, as on a code host. If that file is a page of the
site, the site's link leads to the page, else to the file on the code host:

    ../packages/capture/README.md  ->  packages/capture.md
    ../tools/bench/__main__.py     ->  https://github.com/.../tools/bench/__main__.py
"""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://github.com/flambeau-project/flambeau/tree/main"
PACKAGES = ("flambeau", "capture", "autograd", "prims", "inductor", "runtime")
READMES = {f"packages/{name}/README.md": f"packages/{name}.md" for name in PACKAGES} | {
    "CONTRIBUTING.md": "contributing.md"
}
"""Pages that are files outside docs/: from the file to the page."""
NOTEBOOKS = {
    f"docs/notebooks/{path.name}": f"notebooks/{path.stem}.md"
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.py"))
}
PAGES = READMES | NOTEBOOKS | {"docs/tour.py": "tour.md"}
_SOURCES = {page: source for source, page in PAGES.items()}
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
_FENCE = re.compile(r"^```(\w+) \S.*$", re.MULTILINE)


def translate_links(markdown: str, page: str) -> str:
    """The text of a page with links that hold on the site."""
    folder = Path(_SOURCES.get(page, f"docs/{page}")).parent

    def translated(link: re.Match[str]) -> str:
        path, anchor = link[1], link[2] or ""
        if "://" in path or path.startswith("mailto:"):
            return link[0]
        target = os.path.normpath(folder / path)
        if f"{target}/README.md" in PAGES:
            target = f"{target}/README.md"
        if target in PAGES:
            found = PAGES[target]
        elif target.startswith("docs/"):
            found = target.removeprefix("docs/")
        elif (ROOT / target).exists():
            return f"{REPOSITORY}/{target}{anchor}"
        else:
            return link[0]  # mkdocs reports it
        return os.path.relpath(found, Path(page).parent) + anchor

    return _LINK.sub(translated, markdown)


def one_word_fences(markdown: str) -> str:
    """Fences that name their language only: what the tests read there is no option of mkdocs."""
    return _FENCE.sub(r"```\1", markdown)
