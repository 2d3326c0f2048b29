"""The cheap stand-ins for typing and hashlib do what the real ones do, as far as we use them."""

from __future__ import annotations

import copy
import hashlib
import pickle
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from sglang_ext.quick import NamedTuple, sha256

ROOT = Path(__file__).resolve().parents[2]


class Point(NamedTuple):
    """A point."""

    x: int
    y: int = 2

    @property
    def sum(self) -> int:
        return self.x + self.y

    def moved(self, by: int) -> Point:
        return self._replace(x=self.x + by)


class Real(typing.NamedTuple):
    """A point."""

    x: int
    y: int = 2

    @property
    def sum(self) -> int:
        return self.x + self.y


def test_it_is_a_named_tuple_like_the_real_one() -> None:
    ours, real = Point(1), Real(1)
    assert ours == real == (1, 2)
    assert (ours.sum, ours._asdict(), ours._fields, ours._field_defaults) == (
        real.sum, real._asdict(), real._fields, real._field_defaults,
    )  # fmt: skip
    assert repr(ours) == repr(real).replace("Real", "Point")
    assert (Point.__doc__, Point.__module__, hash(ours)) == (Real.__doc__, Real.__module__, hash(real))
    assert ours.moved(3) == (4, 2) and isinstance(ours.moved(3), Point)
    assert not hasattr(ours, "__dict__")
    with pytest.raises(AttributeError):
        ours.x = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        Point()  # type: ignore[call-arg]


def test_it_is_pickled_and_copied() -> None:
    point = Point(1, 3)
    assert pickle.loads(pickle.dumps(point)) == point and type(copy.deepcopy(point)) is Point


def test_the_digest_is_sha256() -> None:
    for data in (b"", b"abc", b"x" * 100_000):
        assert sha256(data).hexdigest() == hashlib.sha256(data).hexdigest()


def test_a_verifier_s_start_loads_none_of_the_dear_ones() -> None:
    code = (
        "import sys, sglang_ext.verify.check, sglang_ext.verify.select, sglang_ext.contract.decide; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"typing", "hashlib", "dataclasses", "inspect", "asyncio", "subprocess"}
