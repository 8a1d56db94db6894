"""Options: the frozen values that travel with one compiled callable, and how `mode` and `options`
are resolved into them.

Each package declares its own frozen dataclass; `Options` holds one of each. A key of
`flambeau.compile(options={...})` is the name of a field of one of them ("elide_cast_pairs"); when
two packages have a field of the same name, the key sets both. A key of torch's
(`torch._inductor.list_options()`) sets the option that it corresponds to (`torch_options`).
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import warnings
from collections import abc
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flambeau.environment import Environment
from flambeau.torch_options import VARIABLES, option_of_variable, translate
from flambeau_autograd.options import AutogradOptions
from flambeau_capture.marks import marks_by_source
from flambeau_capture.options import CaptureOptions
from flambeau_inductor.options import InductorOptions
from flambeau_runtime.object_stores import cache_of
from flambeau_runtime.options import RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": "always"},
    "max-autotune": {"cuda_graphs": "always", "max_autotune": True},
    "max-autotune-no-cudagraphs": {"cuda_graphs": "never", "max_autotune": True},
}
"""What each mode sets, under torch.compile's names."""


@dataclass(frozen=True)
class Options:
    """One options value a package."""

    capture: CaptureOptions = field(default_factory=CaptureOptions)
    autograd: AutogradOptions = field(default_factory=AutogradOptions)
    inductor: InductorOptions = field(default_factory=InductorOptions)
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    environment: Environment = field(default_factory=Environment)


STAGES = ("capture", "autograd", "inductor", "runtime")
_NOT_OPTIONS = frozenset({"fullgraph", "dynamic", "dynamic_shapes", "exporting", "own_frames"})
"""Fields of CaptureOptions set by an argument of `compile`, by `export` or by the environment."""


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

    Raises ValueError for an unknown mode or option, or both given; TypeError for a value of the
    wrong type.
    """
    if mode is not None and options is not None:
        raise ValueError(
            "either mode or options can be given, not both (a mode is a set of options)"
        )
    if mode is not None and mode not in MODES:
        instead = '; backend="aot_eager" is its counterpart' if mode == "lite" else ""
        raise ValueError(f"unknown mode {mode!r}{instead}; known: {', '.join(MODES)}")
    chosen = dict(MODES[mode or "default"]) | _without_torchs_names(options or {})
    environment = _environment_of(chosen, environment)
    changes: dict[str, dict[str, Any]] = {stage: {} for stage in STAGES}
    changes["capture"] |= {"fullgraph": fullgraph, "dynamic": dynamic}
    if chosen.get("guard_filter_fn") is not None and not callable(chosen["guard_filter_fn"]):
        raise TypeError("option 'guard_filter_fn' takes a function of a list of guards")
    if environment.cache_dir is not None:
        changes["runtime"]["cache_dir"] = environment.cache_dir
    for name in ("shared_cache", "remote_cache", "remote_cache_key"):
        if (text := getattr(environment, name)) is not None:
            chosen.setdefault(name, text)
    if environment.cxx is not None:
        changes["runtime"]["cxx"] = environment.cxx
    if environment.isa is not None:
        changes["runtime"]["isa"] = environment.isa
    if environment.freezing:
        chosen.setdefault("freezing", True)
    if environment.gemm_backends is not None:
        chosen.setdefault("max_autotune_gemm_backends", environment.gemm_backends)
    for name in ("graph_cache", "cache_limit"):
        if (asked := getattr(environment, name)) is not None:
            chosen.setdefault(name, asked)
    for name, value in _options_of_variables(environment.torch_variables):
        chosen.setdefault(name, value)
    if environment.sanitize:
        changes["runtime"]["sanitize"] = True
    if environment.check:
        changes["capture"]["own_frames"] = True
        changes["autograd"]["check"] = True
        changes["inductor"]["debug_checks"] = True
        changes["runtime"]["debug"] = True
    if dynamic_shapes is not None:
        changes["capture"]["dynamic_shapes"] = marks_by_source(dynamic_shapes)
    if recompile_limit is not None:
        chosen["recompile_limit"] = recompile_limit
    known, defaults = known_options(), Options()
    for key, value in chosen.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"unknown option {key!r}{hint} known: {', '.join(sorted(known))}")
        for stage in known[key]:
            default = getattr(defaults, stage)
            option = next(field for field in dataclasses.fields(default) if field.name == key)
            _check_value(key, value, option, getattr(default, key))
            changes[stage][key] = value
    resolved = Options(
        **{
            stage: dataclasses.replace(getattr(defaults, stage), **changes[stage])
            for stage in STAGES
        },
        environment=environment,
    )
    cache_of(resolved.runtime)  # refuses a remote store without a secret
    return resolved


def _without_torchs_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, each under Flambeau's name."""
    result: dict[str, Any] = {}
    known = known_options()
    for key, value in options.items():
        try:
            option = (key, value) if key in known else translate(key, value)
        except KeyError:
            option = (key, value)  # an unknown one, which is refused
        if option is not None:
            result[option[0]] = option[1]
    return result


def _environment_of(chosen: dict[str, Any], environment: Environment) -> Environment:
    """The environment, with the settings that are options of torch's; these are taken out."""
    folder = chosen.pop("trace.debug_dir", None)
    if chosen.pop("trace.enabled", False) and environment.debug_dir is None:
        root = Path(folder) if folder else Path.cwd() / "torch_compile_debug"
        environment = dataclasses.replace(environment, debug_dir=root)
    if chosen.pop("disable_progress", False):
        environment = dataclasses.replace(environment, progress=False)
    return environment


_OF_TORCH_ALONE = frozenset({"TORCHINDUCTOR_CACHE_DIR"})
"""Variables that say nothing to this compiler; torch sets them itself."""


def _options_of_variables(variables: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    """What torch's variables set; a warning names each that sets nothing here."""
    for name, text in variables:
        if name in VARIABLES:
            if (option := option_of_variable(name, text)) is not None:
                yield option
        elif name not in _OF_TORCH_ALONE:
            warnings.warn(
                f"{name} is set, which Flambeau does not read; docs/options.md says what replaces "
                "it",
                RuntimeWarning,
                stacklevel=4,
            )


def list_options() -> list[str]:
    """The keys of `compile(options={...})`: Flambeau's own; torch's names of some work, too."""
    return sorted(known_options())


def list_mode_options(mode: str | None = None) -> dict[str, dict[str, Any]] | dict[str, Any]:
    """What each mode of `compile` sets, or what one mode sets. ValueError for an unknown mode."""
    if mode is None:
        return {name: dict(options) for name, options in MODES.items()}
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}; known: {', '.join(MODES)}")
    return dict(MODES[mode])


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of `compile` of the wrong type, by a TypeError that names them."""
    for name in ("fullgraph", "disable", "isolate_recompiles"):
        _expect(name, arguments[name], (bool,), "True or False")
    _expect("dynamic", arguments["dynamic"], (bool, type(None)), "True, False or None")
    for name in ("mode", "name"):
        _expect(name, arguments[name], (str, type(None)), "a str")
    for name in ("options", "dynamic_shapes"):
        _expect(name, arguments[name], (abc.Mapping, type(None)), "a dict")
    backend = arguments["backend"]
    if not callable(backend):
        _expect("backend", backend, (str, type(None)), "a name or a function")
    limit = arguments["recompile_limit"]
    if limit is not None and type(limit) is not int:
        _expect("option 'recompile_limit'", limit, (), "int")


def _expect(name: str, value: Any, types: tuple[type, ...], wanted: str) -> None:
    if not isinstance(value, types):
        raise TypeError(f"{name} takes {wanted}, not {type(value).__name__} ({value!r})")


_PLAIN: dict[str, type] = {"bool": bool, "float": float, "int": int, "str": str, "None": type(None)}


def _check_value(key: str, value: Any, option: dataclasses.Field[Any], default: Any) -> None:
    """TypeError unless a value is what the option's annotation says; ValueError for a literal."""
    annotation = str(option.type)
    if annotation.startswith("Literal["):
        choices = ast.literal_eval(f"({annotation[8:-1]},)")
        if value not in choices:
            raise ValueError(f"option {key!r} takes one of {choices}, not {value!r}")
        return
    names = annotation.split(" | ")
    if all(name in _PLAIN for name in names):
        wanted = {_PLAIN[name] for name in names}
        if float in wanted:
            wanted.add(int)  # an int will do for a float
        fits = type(value) in wanted
    else:
        fits = default is None or isinstance(value, type(default))
    if not fits:
        text = f"{type(value).__name__} ({value!r})"
        raise TypeError(f"option {key!r} takes {annotation}, not {text}")
    if type(value) is int and value < 0:
        raise ValueError(f"option {key!r} takes no negative number ({value})")
