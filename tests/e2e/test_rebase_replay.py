"""The history of upstream, carried release by release by tools/rebase_patches.py as a maintainer would run it.

Here over three releases; over all of the lock, with docs/rebase-replay.md written from what happened, by

    python -m tests.e2e.test_rebase_replay [--wheels DIR]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from sglang_ext.patchset.diff import apply, make, render  # noqa: E402
from sglang_ext.patchset.lock import Lock, load_lock  # noqa: E402
from sglang_ext.patchset.series import load_patch_set, patch_names  # noqa: E402
from tools import check_patches  # noqa: E402

PAGE = ROOT / "docs" / "rebase-replay.md"
PATCHES = ROOT / "patches"
TOOL, CHECK = ROOT / "tools" / "rebase_patches.py", ROOT / "tools" / "check_patches.py"
FEW = ("0.5.9", "0.5.15", "0.5.23")
HUMAN_HOPS = 1  # of a whole replay, at most

Find = Callable[[str], Path]  # one wheel of a release

# Where the patches had their import before their context was made small: beside `from sglang.srt`, and the like. Each is
# one of the busiest places of its file. The line it stands before, in 0.5.23 (commit 6eb81c7 of this repository).
BUSY = {
    "sglang/srt/entrypoints/engine.py": b"from sglang.srt.arg_groups.overrides import (\n",
    "sglang/srt/managers/scheduler.py": b"from torch.distributed import barrier\n",
    "sglang/srt/models/deepseek_v2.py": b"from sglang.kernels.ops.activation.silu_and_mul_clamp import (\n",
}


class Hop(NamedTuple):
    """One run of the tool."""

    origin: str
    to: str
    states: Mapping[str, tuple[str, str, str]]  # patch family: state, how, detail
    landed: bool
    seconds: float


class Replay(NamedTuple):
    """One way through the releases."""

    title: str
    hops: tuple[Hop, ...]

    @property
    def human(self) -> int:
        return sum(not hop.landed for hop in self.hops)


# --- the starting points


def texts(version: str, find: Find, places: Mapping[str, bytes] | None = None, context: int = 3) -> dict[str, bytes]:
    """Family: the patch made from that release's own files, `context` lines around; with `places`, its import there."""
    made: dict[str, bytes] = {}
    with zipfile.ZipFile(find(version)) as wheel:
        for patch in load_patch_set(PATCHES, patch_names(PATCHES, version)).patches:
            family = patch.origin.split("/")[0]
            old = wheel.read(patch.target)
            new = apply(patch, old)
            if places:
                (line,) = (line for line in new.split(b"\n") if line.startswith(b"from sglang_ext"))
                before = places[patch.target]
                assert new.count(before) == 1
                new = new.replace(line + b"\n", b"").replace(before, line + b"\n" + before)
            made[family] = render(
                make(patch.target, old, new, f"{family}/{version}.patch", patch.header, context)
            ).encode()
    return made


def start(folder: Path, version: str, patches: Mapping[str, bytes], find: Find) -> Path:
    """A folder of patches that knows only that release."""
    root = folder / "patches"
    for family, text in patches.items():
        (root / family).mkdir(parents=True)
        (root / family / f"{version}.patch").write_bytes(text)
    (root / "series").write_text("".join(f"{family}/\n" for family in patches))
    command = [sys.executable, str(CHECK), "--patches", str(root), "--write", "--wheel", str(find(version))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return root


def present(version: str) -> dict[str, bytes]:
    """Family: the text of this checkout."""
    return {name.split("/")[0]: (PATCHES / name).read_bytes() for name in patch_names(PATCHES, version)}


# --- the way


def replay(title: str, root: Path, releases: Sequence[str], find: Find) -> Replay:
    """From the one release `root` knows to each of the others, in order; where a person is needed, that one is left out."""
    hops: list[Hop] = []
    for version in releases:
        lock = load_lock(root / "upstream.toml")
        origin = next((hop.to for hop in reversed(hops) if hop.landed), "") or lock.supported()[0]
        command = [sys.executable, str(TOOL), "--patches", str(root), "--to", version, "--from", origin, "--json", "-"]
        command += ["--wheel", str(find(origin)), str(find(version))]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
        assert done.returncode in (0, 1), done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        states = {t["patch"].split("/")[0]: (t["state"], t["how"], t["detail"]) for t in report["targets"]}
        hops.append(Hop(origin, version, states, done.returncode == 0, seconds))
        print(f"{title}: {origin} -> {version}: {states} {seconds:.1f} s", file=sys.stderr)
    return Replay(title, tuple(hops))


def holds(root: Path, find: Find) -> list[str]:
    """What tools/check_patches.py has against the folder at the end, over a wheel of each of its releases."""
    lock = load_lock(root / "upstream.toml")
    command = [sys.executable, str(CHECK), "--patches", str(root), "--json", "--wheel"]
    command += [str(find(version)) for version in lock.supported()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    faults: list[str] = json.loads(done.stdout)["faults"]
    return faults


def ways(folder: Path, releases: Sequence[str], find: Find) -> Iterator[tuple[Replay, Path]]:
    """Each way, and the folder it ends with."""
    first, last = releases[0], releases[-1]
    forward, back = list(releases[1:]), list(releases[-2::-1])
    root = start(folder / "1", first, present(first), find)
    yield replay(f"Forward from {first}, the texts of this checkout", root, forward, find), root
    root = start(folder / "2", last, texts(last, find), find)
    yield replay(f"Backward from {last}, the same places with three lines of context", root, back, find), root
    root = start(folder / "3", last, texts(last, find, BUSY), find)
    yield replay(f"Backward from {last}, imports among upstream's own, three lines of context", root, back, find), root
    oldest = load_lock(root / "upstream.toml").supported()[0]
    carried = {name.split("/")[0]: (root / name).read_bytes() for name in patch_names(root, oldest)}
    # Three lines again, as they are in the oldest release: what was carried there may have come as it is.
    with zipfile.ZipFile(find(oldest)) as wheel:
        for patch in load_patch_set(root, patch_names(root, oldest)).patches:
            old = wheel.read(patch.target)
            text = render(make(patch.target, old, apply(patch, old), patch.origin, patch.header))
            carried[patch.origin.split("/")[0]] = text.encode()
    root = start(folder / "4", oldest, carried, find)
    newer = [version for version in releases if releases.index(version) > releases.index(oldest)]
    yield (
        replay(f"Forward from {oldest}, imports among upstream's own, three lines of context", root, newer, find),
        root,
    )
    root = start(folder / "6", last, texts(last, find, BUSY), find)
    yield replay(f"From {last} to {first} in one step, imports among upstream's own", root, [first], find), root
    root = start(folder / "5", oldest, carried, find)
    yield replay(f"From {oldest} to {last} in one step, the same texts", root, [last], find), root


# --- the page


def render_page(found: Sequence[Replay]) -> str:
    parts = [
        "# The history of upstream, replayed\n\n"
        "`tools/rebase_patches.py`, run as a maintainer would, from a folder of patches whose lock knows one release only,"
        " to each other\nrelease in turn. Each hop is one command; its time is wall time of the whole command, with one wheel"
        " of either release at\nhand.\n\n"
        "*as it is*: the text fits, and only the lock grew. *merged*: a new variant was written. *seated*: the line merge"
        " stopped, and the\nsyntax tree said where the decorator or import goes. All of it is held to the same"
        " post-conditions, and a hop counts by the least\nsimple thing in it. A hop that needed a person lands nothing; the"
        " next one starts from the release before it. At the end of each\nway `tools/check_patches.py` found no fault in the"
        " folder, over a wheel of every release in it.\n\n"
        "The texts of this checkout have the least context that is unique in every release so far, chosen knowing those"
        " releases. So the\nway is also gone with the ordinary three lines, and with the import where it was at first, among"
        " upstream's own: that is\nwhat an unknown release may look like.\n",
        "| way | hops | as it is | merged | seated | needed a person | longest hop |\n|---|---|---|---|---|---|---|\n"
        + "\n".join(_summary(way) for way in found)
        + "\n",
    ]
    for way in found:
        families = list(way.hops[0].states)
        rows = [
            f"| {hop.origin} -> {hop.to} | "
            + " | ".join(_cell(hop.states[family]) for family in families)
            + f" | {'landed' if hop.landed else 'a person'} | {hop.seconds:.1f} s |"
            for hop in way.hops
        ]
        head = "| hop | " + " | ".join(families) + " | | time |\n" + "|---" * (len(families) + 3) + "|"
        parts.append(f"## {way.title}\n\n{head}\n" + "\n".join(rows) + "\n")
    parts.append(
        "Written by `python -m tests.e2e.test_rebase_replay` (`--wheels DIR`, or it fetches a wheel of each release).\n"
    )
    return "\n".join(parts)


def _summary(way: Replay) -> str:
    hows = [{how for _, how, _ in hop.states.values()} for hop in way.hops if hop.landed]
    seated = sum("seated" in how for how in hows)
    merged = sum("merged" in how and "seated" not in how for how in hows)
    longest = max(hop.seconds for hop in way.hops)
    simple = len(hows) - merged - seated
    return f"| {way.title} | {len(way.hops)} | {simple} | {merged} | {seated} | {way.human} | {longest:.1f} s |"


def _cell(state: tuple[str, str, str]) -> str:
    name, how, detail = state
    said = {"as_is": "as it is", "merged": "merged", "seated": "seated"}.get(how, detail)
    return f"{name}, {said}".replace("|", "\\|")


# --- run


def wheel_of(version: str) -> str:
    """One wheel of a release, the one other tests fetch, too; its files are those of all."""
    return next(name for name in sorted(lock().get(version).wheels) if name.endswith(("x86_64.whl", "any.whl")))


def fetched(version: str) -> Path:
    """One wheel of a release, by its hash in the lock, kept under .rig/wheels."""
    name = wheel_of(version)
    (path,) = check_patches._fetch(version, {name: lock().get(version).wheels[name]})
    return path


def lock() -> Lock:
    return load_lock(PATCHES / "upstream.toml")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Replay, Path]]:
    return list(ways(tmp_path_factory.mktemp("replay"), FEW, fetched))


def test_no_hop_needs_more_than_one_person(found: list[tuple[Replay, Path]]) -> None:
    for way, _ in found:
        assert way.human <= HUMAN_HOPS, way


def test_the_folder_at_the_end_is_good(found: list[tuple[Replay, Path]]) -> None:
    for _, root in found:
        assert holds(root, fetched) == []


def test_the_present_texts_need_no_new_variant(found: list[tuple[Replay, Path]]) -> None:
    way, root = found[0]
    assert {how for hop in way.hops for _, how, _ in hop.states.values()} == {"as_is"}
    assert sorted(path.name for path in root.rglob("*.patch")) == [f"{FEW[0]}.patch"] * 3
    # ... and come to the bytes the lock of this checkout has.
    made = load_lock(root / "upstream.toml")
    for version in FEW:
        assert made.get(version).files == lock().get(version).files


def main() -> int:
    import argparse

    parser = argparse.ArgumentParser(description="Replay every release of the lock and write docs/rebase-replay.md.")
    parser.add_argument("--wheels", type=Path, help="a folder with a wheel of each release (default: pip)")
    args = parser.parse_args()

    def find(version: str) -> Path:
        if not args.wheels:
            return fetched(version)
        path: Path = args.wheels / wheel_of(version)
        return path

    with tempfile.TemporaryDirectory() as folder:
        done: list[Replay] = []
        for way, root in ways(Path(folder), lock().supported(), find):
            faults = holds(root, find)
            assert not faults, faults
            done.append(way)
        PAGE.write_text(render_page(done), encoding="utf-8")
    for way in done:
        print(f"{way.title}: {way.human} of {len(way.hops)} hops needed a person")
    return int(any(way.human > HUMAN_HOPS for way in done))


if __name__ == "__main__":
    sys.exit(main())
