"""The rig's own pieces that a test run leans on."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from tests.rig.server import runs


def test_a_process_that_ends_between_two_questions_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = psutil.Process(child.pid)
        assert runs(process)
    monkeypatch.setattr(process, "is_running", lambda: True)  # as it was a moment ago
    assert not runs(process)
