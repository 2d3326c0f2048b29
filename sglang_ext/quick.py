"""What `typing` and `hashlib` would give, at a tenth of what they cost: a verifier's whole start has 60 ms.

`import typing` costs 4 ms and each class of `typing.NamedTuple` 0.3 ms, as it compiles every annotation; of `namedtuple` 0.06
ms, as it compiles a constructor; there are fifty of them on the way to a verdict. `import hashlib` loads OpenSSL, 4 ms, for one
digest. Type checkers see the real ones.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take this name for true
if TYPE_CHECKING:
    from hashlib import sha256 as sha256
    from typing import Any as Any
    from typing import NamedTuple as NamedTuple
else:
    from _collections import _tuplegetter  # what namedtuple's own fields are
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

    class _Row(tuple):
        """What every class made below shares: namedtuple's behaviour, without compiling a constructor for each."""

        __slots__ = ()
        _fields, _field_defaults = (), {}

        def __new__(cls, *values, **named):
            fields = cls._fields
            if named or len(values) != len(fields):
                if len(values) > len(fields):
                    raise TypeError(f"{cls.__name__}() takes {len(fields)} values, {len(values)} given")
                for field in fields[len(values) :]:
                    if field in named:
                        values += (named.pop(field),)
                    elif field in cls._field_defaults:
                        values += (cls._field_defaults[field],)
                    else:
                        raise TypeError(f"{cls.__name__}() misses {field!r}")
                if named:
                    raise TypeError(f"{cls.__name__}() got an unexpected or second {next(iter(named))!r}")
            return tuple.__new__(cls, values)

        @classmethod
        def _make(cls, values):
            return cls(*values)

        def _replace(self, **named):
            return type(self)(**dict(zip(self._fields, self, strict=True)) | named)

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self):
            inside = ", ".join(f"{field}={value!r}" for field, value in zip(self._fields, self, strict=True))
            return f"{type(self).__name__}({inside})"

        def __getnewargs__(self):
            return tuple(self)

    class _Maker(type):
        """Makes such a class of a class body's annotations and defaults, with the body's methods on it."""

        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = tuple(intern(field) for field in body.get("__annotations__", ()))
            made = {key: value for key, value in body.items() if key != "__dict__"}
            made |= {field: _tuplegetter(at, f"Alias for field number {at}") for at, field in enumerate(fields)}
            made |= {"__slots__": (), "_fields": fields, "__match_args__": fields}
            made["_field_defaults"] = {field: body[field] for field in fields if field in body}
            return type(name, (_Row,), made)

    class NamedTuple(metaclass=_Maker):
        """As `typing.NamedTuple`; defaults only behind fields without, as there."""
