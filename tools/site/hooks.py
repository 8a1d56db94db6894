"""What mkdocs calls: pages are added, then the links of all pages are translated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

from tools.checks import pictures
from tools.site import notebooks, reference
from tools.site.pages import PACKAGES, READMES, ROOT, one_word_fences, translate_links

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

MODULES = """
## Its modules in floors

Each module stands above all that it imports. Folders end in a slash.

![The modules of {name}](../pictures/{picture})
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the READMEs of the packages, the reference, the notebooks, the tour and the pictures."""
    added = {page: (ROOT / source).read_text() for source, page in READMES.items()}
    for name in PACKAGES:
        picture = f"modules-{name}.svg"
        added[f"pictures/{picture}"] = pictures.modules_picture(name)
        added[f"packages/{name}.md"] += MODULES.format(name=name, picture=picture)
    added |= reference.pages() | notebooks.pages()
    for page, text in added.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Translate a page's links and fences."""
    return one_word_fences(translate_links(markdown, page.file.src_uri))


def on_post_build(config: MkDocsConfig) -> None:
    """Say where the site is."""
    print(f"site: {Path(config.site_dir) / 'index.html'}")
