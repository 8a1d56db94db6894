"""The documentation site: pages that mkdocs takes from READMEs, docstrings and notebooks.

hooks.py        what mkdocs calls
pages.py        the pages that are not files of docs/, and links between all pages
notebooks.py    notebooks, executed; the tour and its output
reference.py    one page for each package's public names

They run in the environment `docs`, which holds mkdocs and neither torch nor Flambeau.
"""
