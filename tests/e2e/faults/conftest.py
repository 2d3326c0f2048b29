"""The matrix, and the places faults are planted in."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .matrix import Matrix
from .places import Place

_matrix = Matrix()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The page is compared last, whatever ran before."""
    items.sort(key=lambda item: item.name.startswith("test_the_page"))


@pytest.fixture(scope="session")
def matrix() -> Matrix:
    _matrix.names |= {sys.executable: "PYTHON", str(Path(__file__).parents[3]): "CHECKOUT"}
    return _matrix


@pytest.fixture
def open_place() -> Iterator[Path]:
    """An empty folder everybody may enter; pytest's own are closed to other users."""
    folder = Path(tempfile.mkdtemp(prefix="sglang-ext-fault-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Python with sglang-ext and the files it patches, nothing else: what a launch looks at before it starts anything."""
    folder = Path(tempfile.mkdtemp(prefix="sglang-ext-template-", dir="/tmp"))
    folder.chmod(0o755)
    Place.make(folder / "venv")
    yield folder / "venv"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def place(template: Path, open_place: Path) -> Place:
    """A copy of the template that may be damaged."""
    shutil.copytree(template, open_place / "venv", symlinks=True)
    return Place(open_place)
