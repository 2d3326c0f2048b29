"""Placeholders for the parts of the native library that are imported but never called on a CPU.

SGLang imports many CUDA kernels at module level, from the package and from its submodules. Such an import
has to succeed; a call must not silently do nothing, so it raises and says which kernel was missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def attribute(module: str, name: str) -> Callable[..., Any]:
    """Answer `module.name` with a function that raises NotImplementedError (a module's `__getattr__`)."""
    if name.startswith("__"):
        # Python probes modules for dunders (__path__, __wrapped__, ...); inventing them breaks imports.
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    def missing(*_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(f"{module}.{name} has no CPU stand-in")

    missing.__name__ = missing.__qualname__ = name
    missing.__module__ = module
    return missing


class _SubmoduleFinder(MetaPathFinder, Loader):
    """Makes every submodule of one package importable, at any depth, as a module of placeholders."""

    def __init__(self, package: str) -> None:
        self._prefix = package + "."

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(self._prefix):
            return None
        # A package, so that a submodule of this submodule is looked up here as well.
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        # Assigned in the module's own dictionary: that is where Python looks for a module's __getattr__.
        module.__dict__["__getattr__"] = partial(attribute, module.__name__)


def install(package: str) -> None:
    """Serve the missing submodules of `package`. Last in line: modules that exist as files come first."""
    sys.meta_path.append(_SubmoduleFinder(package))
