"""`python -m flambeau minify DIR`: cut a failing graph to the smallest one that still fails.

| file | what |
|---|---|
| `command.py` | the command: which script, options, what is written |
| `script.py` | a captured graph's script as data, and back: inputs, statements, outputs |
| `reduce.py` | delta debugging: outputs, statements, inputs, sizes |
| `trials.py`, `trial_server.py` | runs a script in another process; says how it failed |
| `check.py` | what each script does: eager, compiled, and float64 where the two differ |
"""

from __future__ import annotations
