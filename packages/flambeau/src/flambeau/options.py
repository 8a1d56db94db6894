"""Options: the frozen values that travel with one compiled callable, and how `mode` and `options` are resolved into them.

Each package declares its own frozen dataclass; `Options` holds one of each.  A key of `flambeau.compile(options={...})` is the
name of a field of one of them ("elide_cast_pairs"); when two packages have a field of the same name, the key sets both.
"""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flambeau.environment import Environment
from flambeau_autograd import AutogradOptions
from flambeau_capture import CaptureOptions
from flambeau_capture.marks import marks_by_origin
from flambeau_inductor import InductorOptions
from flambeau_runtime import RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {},
    "max-autotune": {},
    "max-autotune-no-cudagraphs": {},
}
"""What each mode sets.  torch.compile's names are accepted; what is empty here compiles as the default mode does."""


@dataclass(frozen=True)
class Options:
    """One options value a package."""

    capture: CaptureOptions = field(default_factory=CaptureOptions)
    autograd: AutogradOptions = field(default_factory=AutogradOptions)
    inductor: InductorOptions = field(default_factory=InductorOptions)
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    environment: Environment = field(default_factory=Environment)


STAGES = ("capture", "autograd", "inductor", "runtime")
_NOT_OPTIONS = frozenset({"fullgraph", "dynamic", "dynamic_shapes", "exporting"})
"""Fields of CaptureOptions that are arguments of `compile`, or that `export` sets."""


def known_options() -> dict[str, list[str]]:
    """Each option key and the stages it belongs to."""
    known: dict[str, list[str]] = {}
    default = Options()
    for stage in STAGES:
        for option in dataclasses.fields(getattr(default, stage)):
            if option.name not in _NOT_OPTIONS:
                known.setdefault(option.name, []).append(stage)
    return known


def resolve(
    *,
    fullgraph: bool,
    dynamic: bool | None,
    mode: str | None,
    options: Mapping[str, Any] | None,
    environment: Environment,
    recompile_limit: int | None = None,
    dynamic_shapes: Mapping[str, Mapping[int, Any]] | None = None,
) -> Options:
    """The Options that `compile`'s arguments and the environment ask for.

    Raises ValueError for an unknown mode or option, or both given; TypeError for a value of the wrong type.
    """
    if mode is not None and options is not None:
        raise ValueError(
            "either mode or options can be given, not both (a mode is a set of options)"
        )
    if mode is not None and mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}; known: {', '.join(MODES)}")
    chosen = dict(MODES[mode or "default"]) | dict(options or {})
    changes: dict[str, dict[str, Any]] = {stage: {} for stage in STAGES}
    changes["capture"] |= {"fullgraph": fullgraph, "dynamic": dynamic}
    if chosen.get("guard_filter_fn") is not None and not callable(chosen["guard_filter_fn"]):
        raise TypeError("option 'guard_filter_fn' takes a function of a list of guards")
    if environment.cache_dir is not None:
        changes["runtime"]["cache_dir"] = environment.cache_dir
    if environment.cxx is not None:
        changes["runtime"]["cxx"] = environment.cxx
    if environment.isa is not None:
        changes["runtime"]["isa"] = environment.isa
    if environment.sanitize:
        changes["runtime"]["sanitize"] = True
    if environment.check:
        changes["autograd"]["check"] = True
        changes["inductor"]["debug_checks"] = True
        changes["runtime"]["debug"] = True
    if dynamic_shapes is not None:
        changes["capture"]["dynamic_shapes"] = marks_by_origin(dynamic_shapes)
    if recompile_limit is not None:
        chosen["recompile_limit"] = recompile_limit
    known = known_options()
    for key, value in chosen.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"unknown option {key!r}{hint} known: {', '.join(sorted(known))}")
        for stage in known[key]:
            _check_type(key, value, getattr(getattr(Options(), stage), key))
            changes[stage][key] = value
    defaults = Options()
    return Options(
        **{
            stage: dataclasses.replace(getattr(defaults, stage), **changes[stage])
            for stage in STAGES
        },
        environment=environment,
    )


def _check_type(key: str, value: Any, default: Any) -> None:
    """A value must be of its default's type (an int will do for a float); None defaults accept anything."""
    wanted = type(default)
    if default is None or isinstance(value, wanted) or (wanted is float and isinstance(value, int)):
        return
    raise TypeError(
        f"option {key!r} takes {wanted.__name__}, not {type(value).__name__} ({value!r})"
    )
