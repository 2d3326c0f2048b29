"""What `typing` and `hashlib` would give, at a tenth of what they cost: a verifier's whole start has 60 ms.

`import typing` costs 4 ms and each class of `typing.NamedTuple` 0.3 ms, as it compiles every annotation; there are fifty of
them on the way to a verdict. `import hashlib` loads OpenSSL, 4 ms, for one digest. Type checkers see the real ones.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take this name for true
if TYPE_CHECKING:
    from hashlib import sha256 as sha256
    from typing import Any as Any
    from typing import NamedTuple as NamedTuple
else:
    from collections import namedtuple
    from sys import intern

    try:
        from _sha2 import sha256  # CPython 3.12 on; hashlib itself falls back on it
    except ImportError:
        try:
            from _sha256 import sha256  # 3.11
        except ImportError:  # no CPython
            from hashlib import sha256  # noqa: F401

    class Any:
        """Stands in annotations, which nobody evaluates."""

    class _Maker(type):
        """Makes a namedtuple of a class body's annotations and defaults, and puts the body's methods on it."""

        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = [intern(field) for field in body.get("__annotations__", ())]
            defaults = [body[field] for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            for key, value in body.items():
                if key not in fields and key not in ("__annotations__", "__module__", "__qualname__", "__dict__"):
                    setattr(made, key, value)
            made.__annotations__ = body.get("__annotations__", {})
            return made

    class NamedTuple(metaclass=_Maker):
        """As `typing.NamedTuple`; defaults only behind fields without, as there."""
