"""`Explanation.to_html`: an explanation as one page, with no script, style or picture elsewhere.

| file | what |
|---|---|
| `page.py` | the page: sections in order, style and script inlined (`page.css`, `page.js`) |
| `html.py` | elements and escaping: text becomes HTML there only |
| `summary.py` | the head: counts, what to do next |
| `timeline.py` | when each stage of each compile ran |
| `graphs.py` | one captured graph: its code, guards and Programs |
| `graph_picture.py`, `layered_layout.py` | the compiled graph as SVG, coloured by kernel |
| `kernels.py` | kernels and calls of ATen: source, user's lines, bytes, measured bandwidth |
| `memory_plot.py` | planned memory, step by step |
| `recompute.py` | what a forward saves, and what its backward recomputes |
| `compiles.py` | breaks, recompiles, other events |
| `autotune.py` | tables of measured candidates |
| `highlight.py`, `formats.py` | code in colours; bytes, seconds and places as text |
"""

from __future__ import annotations
