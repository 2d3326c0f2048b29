"""Who may import whom: read from the source, so that lazy imports count too; and what importing us costs others."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "sglang_ext"

# Room -> the rooms it may import besides itself. A room is a folder or module right below sglang_ext.
ALLOWED: dict[str, set[str]] = {
    "quick": set(),  # it and the next: every room may import them
    "hide": set(),
    "run": set(),
    "nccl": set(),
    "contract": set(),
    "patchset": set(),
    "reasons": set(),
    "console": set(),
    "bootstrap": {"patchset"},
    "verify": {"contract", "nccl", "run", "reasons"},
    "delivery": {"contract", "nccl", "patchset", "run", "reasons", "bootstrap", "console"},
    "bench": {"verify", "delivery", "contract", "nccl", "run", "reasons"},
    "study": {"bench", "reasons"},
    "compare": {"bench", "verify", "contract", "nccl", "run", "reasons"},
    "doctor": {"bootstrap", "contract", "delivery", "nccl", "patchset", "run", "reasons", "verify"},
    "linting": {"contract", "nccl", "reasons", "verify"},
    "explain": {"console", "contract", "nccl", "reasons"},
    "patches_verb": {"bootstrap", "console", "patchset"},
    "launch": {"console", "bench", "bootstrap", "contract", "delivery", "patchset", "reasons", "run", "verify"},
    "build_wheel": {"patchset"},
    "arguments": {"delivery", "console"},
    "grammar": {"arguments"},
    "cli": {"console", "grammar", "launch", "verbs"},
    "asking": {"contract", "verify"},
    "verbs": {
        "asking",
        "bench",
        "bootstrap",
        "build_wheel",
        "compare",
        "console",
        "contract",
        "delivery",
        "doctor",
        "explain",
        "linting",
        "nccl",
        "patches_verb",
        "patchset",
        "reasons",
        "run",
        "study",
        "verify",
    },
    "__main__": {"cli"},
    "__init__": set(),
}
OUTSIDE = {"tests", "tools"}
HEAVY = {"torch", "sglang"}
SEAMS = ("delivery", "seams")


class Import(NamedTuple):
    """One imported module, and whether importing the file imports it."""

    file: Path
    line: int
    module: str
    at_import: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.module}"


def imports_of(file: Path, text: str | None = None) -> Iterator[Import]:
    """Every import in a file. What stands under TYPE_CHECKING is for type checkers only: still bound by the rules."""
    tree = ast.parse(file.read_text(encoding="utf-8") if text is None else text)

    def walk(node: ast.AST, at_import: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                continue  # an import is a statement, and none stands in an expression
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            typing_only = isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING"
            yield from walk(child, at_import and not inside and not typing_only)
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(file, child.lineno, alias.name, at_import)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{file}:{child.lineno}: relative import"
                assert child.module is not None
                # `from sglang_ext.delivery import agreement` names a module; so may any other.
                if child.module.partition(".")[0] == "sglang_ext":
                    for alias in child.names:
                        yield Import(file, child.lineno, f"{child.module}.{alias.name}", at_import)
                else:
                    yield Import(file, child.lineno, child.module, at_import)

    yield from walk(tree, True)


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    """All of the package."""
    return [found for file in sources() for found in imports_of(file)]


def broken(found: Import) -> str | None:
    """Which rule an import breaks, or None."""
    parts = found.module.split(".")
    own, room = room_of(found.file), parts[1] if len(parts) > 1 else ""
    if parts[0] in OUTSIDE:
        return f"{found}: the package never imports {parts[0]}"
    if parts[0] in HEAVY:
        if found.file.relative_to(PACKAGE).parts[:2] != SEAMS:
            return f"{found}: only the seams know {parts[0]}"
        return f"{found}: only inside a function" if found.at_import else None
    # `from sglang_ext import bootstrap` names a room, `from sglang_ext import __version__` none.
    if parts[0] == "sglang_ext" and room in ALLOWED and room not in {own, "quick", "hide"} | ALLOWED[own]:
        return f"{found}: {own} may not import {room}"
    return None


def test_every_room_has_a_rule() -> None:
    assert {room_of(file) for file in sources()} <= ALLOWED.keys()


def test_the_rules_hold(imports: list[Import]) -> None:
    assert imports and [fault for found in imports if (fault := broken(found))] == []


def test_nothing_but_the_entry_points_imports_cli_or_launch(imports: list[Import]) -> None:
    importers = {
        (room_of(found.file), found.module.split(".")[1])
        for found in imports
        if found.module.startswith(("sglang_ext.cli", "sglang_ext.launch", "sglang_ext.verbs"))
    }
    assert importers <= {("__main__", "cli"), ("cli", "launch"), ("cli", "verbs")}


@pytest.mark.parametrize(
    ("file", "text", "part"),
    [
        ("run/x.py", "from sglang_ext.contract.model import Contract", "run may not import contract"),
        ("run/x.py", "def f():\n    from sglang_ext.contract.model import Contract", "run may not import contract"),
        ("contract/x.py", "from sglang_ext import reasons", "contract may not import reasons"),
        ("verify/x.py", "import sglang_ext.delivery.context", "verify may not import delivery"),
        ("verify/x.py", "from sglang_ext.cli import main", "verify may not import cli"),
        ("delivery/x.py", "from sglang_ext.verify.check import verify", "delivery may not import verify"),
        (
            "patchset/x.py",
            "if TYPE_CHECKING:\n    from sglang_ext.run.process import Stat",
            "patchset may not import run",
        ),
        ("bootstrap.py", "from sglang_ext.delivery import context", "bootstrap may not import delivery"),
        ("verify/x.py", "def f():\n    import torch", "only the seams know torch"),
        ("delivery/x.py", "def f():\n    import sglang.srt", "only the seams know sglang"),
        ("delivery/seams/x.py", "import torch.distributed", "only inside a function"),
        ("delivery/seams/x.py", "try:\n    from sglang import srt\nexcept ImportError:\n    pass", "only inside a function"),
        ("cli.py", "from tools.check_patches import main", "the package never imports tools"),
        ("run/x.py", "import tests.rig", "the package never imports tests"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_found(file: str, text: str, part: str) -> None:
    (found,) = imports_of(PACKAGE / file, text)
    assert part in (broken(found) or "")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("delivery/seams/x.py", "def f():\n    import torch"),
        ("verify/x.py", "from sglang_ext.run.process import stat"),
        ("verify/x.py", "from sglang_ext.verify import elf"),
        ("run/x.py", "from sglang_ext import __version__"),
        ("cli.py", "from sglang_ext.launch import main"),
        ("run/x.py", "import json"),
    ],
)
def test_what_is_allowed_is_not_called_broken(file: str, text: str) -> None:
    (found,) = imports_of(PACKAGE / file, text)
    assert broken(found) is None


def loaded_by(statement: str, *folders: Path) -> set[str]:
    """The modules a bare Python has after ``statement`` and had not before."""
    code = f"""
import sys
sys.path[:0] = {[str(ROOT), *map(str, folders)]!r}
before = set(sys.modules)
{statement}
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_else() -> None:
    assert loaded_by("import sglang_ext") == {"sglang_ext"}


def test_the_hook_loads_no_slow_module() -> None:
    loaded = loaded_by("import sglang_ext.bootstrap")
    assert "sglang_ext.bootstrap" in loaded
    assert loaded & {"re", "typing", "dataclasses", "json", "tomllib", "pathlib", "collections", "argparse"} == set()
    assert {name for name in loaded if name.startswith("sglang_ext")} == {"sglang_ext", "sglang_ext.bootstrap"}


@pytest.mark.parametrize(
    "module", ["cli", "launch", "verify.check", "bench.gate", "delivery.supervisor", "delivery.seams.scheduler"]
)
def test_no_torch_and_no_sglang_come_along(tmp_path: Path, module: str) -> None:
    for name in HEAVY:  # both can be imported here: whoever does is found
        (tmp_path / f"{name}.py").write_text("")
    assert loaded_by("import torch, sglang", tmp_path) == HEAVY
    loaded = loaded_by(f"import sglang_ext.{module}", tmp_path)
    assert f"sglang_ext.{module}" in loaded and loaded & HEAVY == set()


def test_the_command_line_is_parsed_without_its_verbs() -> None:
    code = "from sglang_ext.cli import parser_of; parser_of('verify-env').parse_args(['--pid', '1'])"
    loaded = loaded_by(code)
    assert "sglang_ext.cli" in loaded
    assert {name for name in loaded if name.startswith(("sglang_ext.verify", "sglang_ext.bench", "hashlib"))} == set()
