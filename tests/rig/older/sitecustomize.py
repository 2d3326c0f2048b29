"""What releases of SGLang before the newest need, to run beside the newest one's libraries. First on PYTHONPATH with the rig.

Two things changed under them, both set right here when they are imported, so that a process without SGLang pays nothing:

* transformers 5 knows models which those releases register themselves, and refuses the second one. Theirs wins.
* `torch.ops.sgl_kernel`'s attention took no quantization scales up to 0.5.19, and the callers pass by position.
"""

from __future__ import annotations

import functools
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


def _transformers(module: ModuleType) -> None:
    """`AutoConfig.register` of a name that is taken replaces it."""
    register = module.AutoConfig.register

    @functools.wraps(register)
    def replacing(model_type: str, config: Any, exist_ok: bool = False) -> None:
        register(model_type, config, exist_ok=True)

    module.AutoConfig.register = staticmethod(replacing)


def _sgl_kernel(module: ModuleType) -> None:
    """Give the attention the two scales, 1.0 each, where they are missing: a tensor stands in their place then."""
    import torch

    for name, at in (("extend_attention_cpu", 6), ("decode_attention_cpu", 3)):
        native = getattr(module, name)

        @functools.wraps(native)
        def scaled(*given: Any, native: Any = native, at: int = at) -> Any:
            if torch.is_tensor(given[at]) and given[at].dim() >= 2:
                given = (*given[:at], 1.0, 1.0, *given[at:])
            return native(*given)

        setattr(torch.ops.sgl_kernel, name, scaled)


_CHANGES = {"transformers.models.auto.configuration_auto": _transformers, "sgl_kernel": _sgl_kernel}


class _AfterImport:
    """A finder that finds nothing itself: it lets the others find and has the change made once the module has run."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        change = _CHANGES.get(name)
        if change is None:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_change(module: ModuleType) -> None:
            run(module)
            change(module)

        spec.loader.exec_module = run_and_change  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(len(sys.meta_path[:1]), _AfterImport())
