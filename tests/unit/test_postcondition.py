"""Where the seams are in a patched module, and every way in which they can be elsewhere."""

from __future__ import annotations

import pytest

from sglang_ext.patchset.postcondition import Seam, check_seams, seams

SOURCE = b'''\
import os
from sglang_ext.delivery.seams import scheduler as _sx
from sglang_ext.delivery.seams import entry as _entry


class Scheduler:
    """A class."""

    @_sx.built
    def __init__(self, args):
        def inner():
            _entry("inner")
        inner()

    async def loop(self):
        """First comes the docstring."""
        token = _sx.first(self)
        return token


@functools.wraps(os)
@_sx.wraps("x")
def run(args, port=1):
    """Docstring."""
    _entry()
    return args
'''
FOUND = [
    Seam("Scheduler.__init__", "decorator", "built", 9),
    Seam("Scheduler.__init__.<locals>.inner", "call", "_entry", 12),
    Seam("Scheduler.loop", "call", "first", 17),
    Seam("run", "decorator", "wraps", 22),
    Seam("run", "call", "_entry", 25),
]
EXPECTED = [(seam.qualname, seam.name) for seam in FOUND]


def _faults(*changes: tuple[bytes, bytes]) -> list[str]:
    source = SOURCE
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    return check_seams(source, EXPECTED)


def test_seams_are_found_where_they_are() -> None:
    assert seams(SOURCE) == FOUND
    assert check_seams(SOURCE, EXPECTED) == []


def test_a_module_without_us_has_none() -> None:
    assert seams(b"import os\n@os.x\ndef f():\n    os.y()\n") == []
    assert check_seams(b"", []) == []


def test_imports_in_try_and_plain_imports_count() -> None:
    source = b"try:\n    import sglang_ext.seams as s\nexcept ImportError:\n    s = None\n@s.f\ndef g(): ...\n"
    assert seams(source) == [Seam("g", "decorator", "f", 5)]
    assert check_seams(source, [("g", "f")]) == ["Line 4: `s` is rebound in <module>."]
    dotted = b"import sglang_ext.seams\n@sglang_ext.seams.f\ndef g(): ...\n"
    assert check_seams(dotted, [("g", "f")]) == []


def test_missing() -> None:
    (fault,) = _faults((b"    @_sx.built\n", b""))
    assert fault == "Seam built is missing: expected in Scheduler.__init__, found nowhere."


def test_missing_with_its_function() -> None:
    faults = check_seams(b"x = 1\n", [("run", "wraps")])
    assert faults == ["Seam wraps is missing: expected in run, found nowhere, and the file has no run."]


def test_moved_to_another_class() -> None:
    source = b"from sglang_ext.a import s\n\nclass Engine:\n    def launch(self): ...\n"
    (fault,) = check_seams(source, [("launch", "s")])
    assert fault == (
        "Seam s is missing: expected in launch, found nowhere, and the file has no launch, but has Engine.launch: upstream"
        " moved it."
    )
    (fault,) = check_seams(source, [("Other.__init__", "s")])  # every class has one of these
    assert fault.endswith("and the file has no Other.__init__.")


def test_in_the_wrong_function() -> None:
    """GNU patch with fuzz puts a change meant for one function into its twin; the text looks applied."""
    twin = b"from sglang_ext.a import s\ndef launch_a():\n    pass\n\n@s\ndef launch_b():\n    pass\n"
    (fault,) = check_seams(twin, [("launch_a", "s")])
    assert fault == "Seam s is in the wrong place: expected in launch_a, found in launch_b (line 5)."


def test_twice() -> None:
    (fault,) = _faults((b"@_sx.wraps", b'@_sx.wraps("y")\n@_sx.wraps'))
    assert "Seam wraps is in run 2 times (lines 22, 23), expected once" in fault


def test_not_first_any_more() -> None:
    faults = _faults((b'    """Docstring."""\n', b'    """Docstring."""\n    print()\n'))
    assert any("_entry is used in run, but neither as a decorator nor in the first statement" in f for f in faults)


def test_not_promised() -> None:
    faults = _faults((b"def run(", b"@_sx.extra\ndef run("))
    assert faults == ["Line 23: seam extra in run is promised by no Probe line."]


@pytest.mark.parametrize(
    "line",
    [b"_sx = None\n", b"def _sx(): ...\n", b"for _sx in (): ...\n", b"def g(_sx): ...\n", b"del _sx\n"],
)
def test_rebound_name(line: bytes) -> None:
    faults = check_seams(SOURCE + line, EXPECTED)
    assert len(faults) == 1
    assert "`_sx` is rebound" in faults[0]


def test_not_python() -> None:
    (fault,) = check_seams(b"def f(:\n", [])
    assert "is no Python (line 1" in fault
