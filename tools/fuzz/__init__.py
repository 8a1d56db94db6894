"""Random tensor programs, compiled and eager, compared: `python -m tools.fuzz --programs N --seed S`."""
