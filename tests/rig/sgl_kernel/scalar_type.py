"""Names of the native library's packed number formats, which SGLang's quantization tables use as keys.

Those tables are built at import time (`{4: scalar_types.uint4b8, ...}`), also where nothing is quantized,
so every format name has to exist and has to be the same object each time it is asked for.
"""

from __future__ import annotations


class ScalarType:
    """A number format. Here only an identity with a name: no kernel of the rig reads it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"ScalarType({self.name})"


class _ScalarTypes:
    """Creates each format on first use and keeps it."""

    def __getattr__(self, name: str) -> ScalarType:
        if name.startswith("__"):
            raise AttributeError(name)
        created = ScalarType(name)
        setattr(self, name, created)
        return created


scalar_types = _ScalarTypes()
