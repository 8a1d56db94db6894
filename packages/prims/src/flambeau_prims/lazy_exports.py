"""Packages whose public names are imported when they are first read, so that importing a package
costs nothing.

    lazy_exports(__name__, {"flambeau_prims.graph": ("Graph", "Node")})

    flambeau_prims.Graph  ->  imports flambeau_prims.graph, and keeps Graph in the package

A public name may be that of a submodule, too (`decompose`): importing the submodule does not hide
the public object. Threads may read names at the same time: each import happens once.
"""

from __future__ import annotations

import importlib
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from flambeau_prims.collector import collector_paused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class LazyPackage(types.ModuleType):
    """The type of such a package; `_lazy_exports` says in which module each name is."""

    _lazy_exports: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        module_name = self._lazy_exports.get(name)
        if module_name is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if module_name == self.__name__:
            return importlib.import_module(f"{module_name}.{name}")
        with collector_paused():
            module = importlib.import_module(module_name)
        value = self.__dict__[name] = getattr(module, name)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        hidden = isinstance(value, types.ModuleType) and self._lazy_exports.get(name)
        if not hidden or hidden == self.__name__:
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self._lazy_exports} - {"_lazy_exports"})


def lazy_exports(package: str, exports: Mapping[str, Sequence[str]]) -> None:
    """Make the names of `exports` (module: names in it) public names of a package; the names of the
    package itself are submodules.
    """
    module = sys.modules[package]
    module._lazy_exports = {  # type: ignore[attr-defined]
        name: module_name for module_name, names in exports.items() for name in names
    }
    module.__class__ = LazyPackage


def import_apart(name: str) -> types.ModuleType:
    """Import a module in a separate thread, if it is not imported yet.

    A call of the program that needs a module may be inside modes of torch (a default device,
    inference mode), near the recursion limit, or observed by a frame hook. Another thread is in
    none of these, so modules are the same whenever they are imported.
    """
    (module,) = import_all_apart((name,))
    return module


def import_all_apart(names: Sequence[str]) -> list[types.ModuleType]:
    """Import modules, in order, as `import_apart` does one: in one thread, which costs as much to
    start as a small module to import.
    """
    known = [sys.modules.get(name) for name in names]
    modules = [module for module in known if module is not None and _is_imported(module)]
    if len(modules) == len(names):
        return modules
    with collector_paused(), ThreadPoolExecutor(1, "flambeau-import") as executor:
        return executor.submit(lambda: [importlib.import_module(name) for name in names]).result()


def _is_imported(module: types.ModuleType) -> bool:
    """Whether a module's import has come to its end."""
    return not getattr(module.__spec__, "_initializing", False)
