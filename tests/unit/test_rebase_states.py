"""What becomes of a patch in releases that do not exist yet: each made from a file by one change upstream may make.

The file is a small one, and the real ones of the newest release where its wheel lies in .rig/wheels. These are thousands of
lines long, and a change of one takes up to two seconds: they are among the end-to-end tests.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from sglang_ext.patchset.diff import apply, make
from sglang_ext.patchset.lock import load_lock
from sglang_ext.patchset.model import Patch
from sglang_ext.patchset.postcondition import check_seams
from sglang_ext.patchset.rebase.carry import Release, Resolution, carry
from sglang_ext.patchset.rebase.outcome import CARRIED, Missing, Outcome, promised_by
from sglang_ext.patchset.rebase.places import lines_of, places
from sglang_ext.patchset.series import load_patch_set, patch_names
from tools import check_patches

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "patches"
OTHER = "sglang/srt/elsewhere.py"
TARGET = "sglang/srt/worker.py"
BODY = "".join(f"    value = step_{number}(value)\n" for number in range(12))
STOCK = f"""\
import os
import sys

import zmq

from sglang.srt.utils import helper

LIMIT = 3


def prepare(args):
{BODY}    return value


class Worker:
    kind = "worker"
    names = {{}}

    def __init__(self, args):
        self.args = args
{BODY.replace("    ", "        ")}
    def run(self):
        return self.args


def run_worker(args, port):
    value = Worker(args)
{BODY}    return value
""".encode()
HEADER = "Subject: x\nReason: local\nWhy-Not-A-Plugin: x\nForwarded: no: x\nRetire-When: x\nProbe: {}\n\n"
IMPORT = b"from sglang_ext.delivery.seams import worker as _ext\n"


def small(seam: str, anchor: bytes, name: str, indent: bytes = b"") -> Patch:
    patched = STOCK.replace(b"import zmq\n", IMPORT + b"import zmq\n").replace(
        anchor, indent + b"@_ext." + name.encode() + b"\n" + anchor
    )
    return make(TARGET, STOCK, patched, "worker/1.patch", HEADER.format(f"seam {seam} {name}"))


class Sample(NamedTuple):
    """A file, a patch of it, and the function that it decorates last."""

    target: str
    stock: bytes
    patch: Patch
    qualname: str

    @property
    def key(self) -> str:
        """What a rename would rename: the function, or the class of an __init__."""
        return self.qualname.split(".")[0]

    @property
    def lines(self) -> tuple[int, int]:
        """First and last line of what `key` names, from 0 and without the last."""
        place = next(place for place in places(self.stock) if place.qualname == self.key)
        return place.first - 1, place.last


def samples() -> list[Sample]:
    found = [
        Sample(TARGET, STOCK, small("run_worker", b"def run_worker(", "entry"), "run_worker"),
        Sample(TARGET, STOCK, small("Worker.__init__", b"    def __init__(", "built", b"    "), "Worker.__init__"),
    ]
    releases = load_lock(PATCHES / "upstream.toml").releases
    kept = [
        (r.version, path)
        for r in releases
        for name, sha in r.wheels.items()
        if (path := check_patches._kept(name, sha))
    ]
    if kept:
        version, path = kept[-1]
        with zipfile.ZipFile(path) as wheel:
            for patch in load_patch_set(PATCHES, patch_names(PATCHES, version)).patches:
                found.append(Sample(patch.target, wheel.read(patch.target), patch, promised_by(patch)[0][0]))
    return found


SAMPLES = samples()
REAL = len(SAMPLES) > 2
each = pytest.mark.parametrize(
    "sample",
    [
        pytest.param(
            sample,
            marks=() if sample.target == TARGET else pytest.mark.e2e,
            id=f"{sample.target.rpartition('/')[2]}-{sample.qualname}",
        )
        for sample in SAMPLES
    ],
)


def carried(sample: Sample, new: bytes | None, old: bool = True, **more: bytes) -> Outcome:
    """The one patch, carried to a release that has `new` for its file, and the other files."""
    files = {name.replace("__", "/") + ".py": data for name, data in more.items()}
    if new is not None:
        files[sample.target] = new
    before = Release("1", [sample.target], {sample.target: sample.stock}.get) if old else None
    (outcome,) = carry([sample.patch], before, Release("2", list(files), files.get), "1", (3, 11), {})
    if outcome.state in CARRIED:
        # Whatever the state is called: what is carried is right.
        assert outcome.result is not None and outcome.carried is not None and new is not None
        assert apply(outcome.carried, new) == outcome.result
        assert check_seams(outcome.result, promised_by(sample.patch)) == []
        compile(outcome.result, "x", "exec")
    else:
        assert outcome.result is None and outcome.carried is None
    return outcome


def rename(sample: Sample) -> bytes:
    return sample.stock.replace(sample.key.encode(), sample.key.encode() + b"V2")


def without(sample: Sample) -> tuple[bytes, bytes]:
    """The file without the function, and the function."""
    lines = lines_of(sample.stock)
    first, last = sample.lines
    return b"".join(lines[:first] + lines[last:]), b"".join(lines[first:last])


def quoted(sample: Sample) -> bytes:
    """The anchors of the patch, quoted in a string."""
    hunks = b"".join(b"".join(hunk.old) for hunk in sample.patch.hunks)
    return b"\nEXAMPLE = '''\n" + hunks.replace(b"'''", b"").replace(b"\\", b"") + b"'''\n"


def test_the_real_files_are_among_them() -> None:
    if not REAL:
        pytest.skip("no wheel of the lock lies in .rig/wheels: tools/check_patches.py --fetch brings them")
    assert {sample.target for sample in SAMPLES} > {"sglang/srt/managers/scheduler.py"}


@each
def test_nothing_changed(sample: Sample) -> None:
    outcome = carried(sample, sample.stock)
    assert outcome.how == "as_is" and outcome.carried is sample.patch
    assert outcome.spots and [spot.before for spot in outcome.spots] == [spot.after for spot in outcome.spots]


@each
def test_lines_were_added_above(sample: Sample) -> None:
    outcome = carried(sample, b"# a license\n" * 3 + sample.stock)
    assert (outcome.state, outcome.how) == ("offset", "as_is")


@each
def test_a_neighbour_line_changed(sample: Sample) -> None:
    """The last line of context before the import is another one: no exact fit, and a merge that is right."""
    hunk = sample.patch.hunks[0]
    first = hunk.old[0]
    new = sample.stock.replace(b"".join(hunk.old), first.rstrip(b"\n") + b"  # noqa\n" + b"".join(hunk.old[1:]))
    outcome = carried(sample, new)
    if hunk.lines[1][:1] == b" ":  # else the changed line is the anchor itself
        assert (outcome.state, outcome.how) == ("offset", "merged")
        assert outcome.carried is not None and outcome.carried.header == sample.patch.header


@each
def test_the_function_was_renamed(sample: Sample) -> None:
    outcome = carried(sample, rename(sample))
    assert outcome.state == "moved", outcome.detail
    assert f"{sample.key}V2" in outcome.detail


@each
def test_the_function_moved_to_another_module(sample: Sample) -> None:
    rest, function = without(sample)
    outcome = carried(sample, rest, sglang__srt__elsewhere=b"import os\n\n\n" + function)
    assert outcome.state == "moved", outcome.detail
    assert f"{OTHER}: {sample.qualname} (line " in outcome.detail


@each
def test_the_function_went_into_a_class(sample: Sample) -> None:
    rest, function = without(sample)
    indented = b"".join(b"    " + line if line.strip() else line for line in lines_of(function))
    outcome = carried(sample, rest + b"\n\nclass Holder:\n" + indented)
    assert outcome.state == "moved", outcome.detail
    assert f"Holder.{sample.qualname}" in outcome.detail


@each
def test_the_function_is_gone(sample: Sample) -> None:
    outcome = carried(sample, without(sample)[0], sglang__srt__elsewhere=b"# " + sample.key.encode() + b" was here\n")
    assert outcome.state == "gone", outcome.detail
    assert f"{sample.qualname} is nowhere in the release" in outcome.detail


@each
def test_the_file_is_gone(sample: Sample) -> None:
    outcome = carried(sample, None)
    assert outcome.state == "gone" and f"the release has no file {sample.target}" in outcome.detail


@each
def test_the_file_was_moved(sample: Sample) -> None:
    outcome = carried(sample, None, sglang__srt__elsewhere=sample.stock)
    assert outcome.state == "moved" and f"in {OTHER}: {sample.qualname}" in outcome.detail


@each
def test_upstream_has_the_change(sample: Sample) -> None:
    outcome = carried(sample, apply(sample.patch, sample.stock))
    assert outcome.state == "upstreamed"


@each
def test_reversing_alone_does_not_make_it_upstreamed(sample: Sample) -> None:
    """Its lines are there, but the seam is bound to something else: the reverse applies and the Probe fails."""
    there = apply(sample.patch, sample.stock)
    outcome = carried(sample, there + b"\n_ext = _sglang_ext = None\n")
    assert outcome.state == "conflict" and "proves nothing" in outcome.detail


@each
def test_the_function_is_there_twice(sample: Sample) -> None:
    """The second definition would replace the first: one seam is not enough, wherever it landed."""
    outcome = carried(sample, sample.stock + b"\n\n" + without(sample)[1])
    assert outcome.state == "conflict", outcome
    assert "defined 2 times" in outcome.detail


@pytest.mark.parametrize("twin_first", [False, True])
@each
def test_a_twin_of_the_anchor_under_another_name(sample: Sample, twin_first: bool) -> None:
    """The same lines in another class: only the one that the Probe names counts."""
    if "." not in sample.qualname:
        pytest.skip("the anchor holds the name")
    function = without(sample)[1]
    twin = function.replace(b"class " + sample.key.encode(), b"class Twin" + sample.key.encode(), 1) + b"\n\n"
    first = sample.lines[0]
    lines = lines_of(sample.stock)
    new = b"".join(lines[:first]) + twin + b"".join(lines[first:]) if twin_first else sample.stock + b"\n\n" + twin
    outcome = carried(sample, new)
    assert outcome.state in CARRIED, outcome.detail  # and right, by `carried`


def anchor_changed(sample: Sample) -> bytes:
    """The `def` line right below our decorator has another argument; where its arguments lie below it, it is cut in two."""
    last = sample.patch.hunks[-1]
    old = b"".join(last.old)
    anchor = last.lines[[line[:1] for line in last.lines].index(b"+") + 1][1:]
    assert anchor.lstrip().startswith(b"def ") and sample.stock.count(old) == 1
    name = anchor.partition(b"(")[0]
    other = anchor.replace(b"(", b"(*extra_, ", 1) if b")" in anchor else anchor.replace(name, name + b"\\\n", 1)
    return sample.stock.replace(old, old.replace(anchor, other))


@each
def test_an_argument_was_added_on_the_anchor(sample: Sample) -> None:
    """A line merge cannot tell the two changes apart; the syntax tree can, where a Probe says what the patch is about."""
    outcome = carried(sample, anchor_changed(sample))
    assert (outcome.state, outcome.how) == ("offset", "seated"), outcome.detail
    assert "changed the line beside it" in outcome.detail


@each
def test_a_new_decorator_on_the_anchor_is_for_a_person(sample: Sample) -> None:
    last = sample.patch.hunks[-1]
    old = b"".join(last.old)
    anchor = last.lines[[line[:1] for line in last.lines].index(b"+") + 1][1:]
    indent = anchor[: len(anchor) - len(anchor.lstrip())]
    outcome = carried(sample, sample.stock.replace(old, old.replace(anchor, indent + b"@wrapped\n" + anchor)))
    assert outcome.state == "conflict", outcome
    assert outcome.marked is not None and b"<<<<<<< sglang 1, patched" in outcome.marked


@each
def test_an_async_function_is_another_one(sample: Sample) -> None:
    """A wrapper of a function is none of a coroutine."""
    name = sample.qualname.rpartition(".")[2].encode()
    lines = lines_of(sample.stock)
    place = next(place for place in places(sample.stock) if place.qualname == sample.qualname)
    at = next(n for n in range(place.first - 1, place.last) if lines[n].lstrip().startswith(b"def " + name))
    lines[at] = lines[at].replace(b"def ", b"async def ", 1)
    outcome = carried(sample, b"".join(lines))
    assert outcome.state == "conflict", outcome


@each
def test_the_function_was_indented(sample: Sample) -> None:
    function = without(sample)[1]
    indented = b"".join(b"    " + line if line.strip() else line for line in lines_of(function))
    lines = lines_of(sample.stock)
    first, last = sample.lines
    new = b"".join([*lines[:first], b"if FLAG:\n", indented, *lines[last:]])
    outcome = carried(sample, new)
    assert outcome.state == "conflict", outcome.detail


@each
def test_crlf(sample: Sample) -> None:
    outcome = carried(sample, sample.stock.replace(b"\n", b"\r\n"))
    assert outcome.state == "conflict" and "CRLF" in outcome.detail


@each
def test_a_string_quotes_the_anchors(sample: Sample) -> None:
    outcome = carried(sample, sample.stock + quoted(sample))
    assert outcome.state in CARRIED  # and in the function, by `carried`
    lines = lines_of(sample.stock)
    lines.insert(sample.lines[0], quoted(sample) + b"\n\n")  # above the function, below the imports
    assert carried(sample, b"".join(lines)).state in CARRIED


@each
def test_only_a_string_quotes_the_anchors(sample: Sample) -> None:
    """The text would fit, in the string alone; the syntax tree says no."""
    outcome = carried(sample, without(sample)[0].replace(b"import os\n", b"") + quoted(sample))
    assert outcome.state == "gone", outcome.detail


@each
def test_the_imports_went_below_type_checking(sample: Sample) -> None:
    """A merge would put our import where it is never run: it goes to the top level, or to a person."""
    patched = lines_of(apply(sample.patch, sample.stock))
    at = next(number for number, line in enumerate(patched) if line.startswith(b"from sglang_ext"))
    lines = lines_of(sample.stock)
    before, after = lines[at - 1], lines[at]
    if before.strip().endswith(b"(") or not before.strip() or b"import" not in before or b"import" not in after:
        pytest.skip("the neighbours are no whole imports")
    guarded = b"if TYPE_CHECKING:\n    " + before + b"    " + after
    outcome = carried(sample, b"".join([*lines[: at - 1], guarded, *lines[at + 1 :]]))
    if outcome.result is not None:
        assert outcome.how == "seated"
        assert b"\nfrom sglang_ext" in outcome.result


@each
def test_a_release_with_broken_syntax(sample: Sample) -> None:
    outcome = carried(sample, sample.stock + b"\ndef broken(:\n")
    assert outcome.state == "conflict" and outcome.detail


def test_without_the_old_release_what_fits_is_carried_and_nothing_is_merged() -> None:
    sample = SAMPLES[0]
    assert carried(sample, b"# more\n" + sample.stock, old=False).how == "as_is"
    with pytest.raises(Missing, match="must be merged"):
        carried(sample, sample.stock.replace(b"import sys\n", b"import sys  # noqa\n"), old=False)


def test_an_import_below_a_block_is_refused_without_the_old_release_too() -> None:
    sample = SAMPLES[0]
    hunk = b"".join(sample.patch.hunks[0].old)
    new = sample.stock.replace(hunk, b"").replace(b"LIMIT = 3\n", b"LIMIT = 3\n\nif LIMIT:\n    pass\n")
    assert carried(sample, hunk + new, old=False).state == "offset"


def test_an_import_goes_above_its_use() -> None:
    """Its neighbours went to the end of the file, where the decorator is long run."""
    sample = SAMPLES[0]
    for neighbours in (b"import sys\n\nimport zmq\n", b"import zmq\n", b"import os\nimport sys\n\nimport zmq\n"):
        outcome = carried(sample, sample.stock.replace(neighbours, b"") + b"\n\n" + neighbours)
        if outcome.result is not None:
            assert outcome.result.index(b"from sglang_ext") < outcome.result.index(b"@_ext")
        else:
            assert outcome.state == "conflict", outcome


def test_only_part_of_the_change_is_upstream() -> None:
    sample = SAMPLES[0]
    outcome = carried(sample, sample.stock.replace(b"import zmq\n", IMPORT + b"import zmq\n"))
    assert outcome.state == "conflict"
    assert "only a part" in outcome.detail


# --- a user's own patches: the same code


def own(change: Callable[[bytes], bytes], header: str = "") -> Sample:
    return Sample(TARGET, STOCK, make(TARGET, STOCK, change(STOCK), "local/own.patch", header), "prepare")


EDIT = own(lambda text: text.replace(b"    value = step_5(value)\n", b"    value = step_5(value) + 1\n", 1))


def test_own_patch_without_a_header_is_carried() -> None:
    assert carried(EDIT, STOCK).state == "clean"
    assert carried(EDIT, STOCK.replace(b"step_3(value)", b"step_3(value, 1)", 1)).how == "merged"


def test_own_patch_follows_no_twin() -> None:
    """The same lines in two functions and nothing to name the right one: the place in the syntax tree does."""
    lines = lines_of(STOCK)
    cut = next(p for p in places(STOCK) if p.qualname == "prepare")
    moved = b"".join(lines[: cut.first - 1] + lines[cut.last :])
    outcome = carried(EDIT, moved)
    assert outcome.state == "gone" and outcome.result is None, outcome


def test_own_patch_goes_into_no_string() -> None:
    """What is left of its lines stands in a text: at the same level of the module, but not code."""
    sample = own(lambda text: text.replace(b"LIMIT = 3\n", b"LIMIT = 30\n"))
    lines = b"import zmq\n\nfrom sglang.srt.utils import helper\n\nLIMIT = 3\n\n\ndef prepare(args):\n"
    rest = STOCK.replace(b"LIMIT = 3\n", b"")
    outcome = carried(sample, rest + b"\n\nTEXT = '''\n" + lines + b"'''\n")
    assert outcome.state == "conflict", outcome


def test_own_patch_in_a_renamed_function_needs_a_person() -> None:
    outcome = carried(EDIT, STOCK.replace(b"def prepare", b"def prepare_all"))
    assert outcome.state == "moved" and "prepare_all" in outcome.detail


def test_own_patch_that_is_upstream_proves_nothing_without_a_probe() -> None:
    outcome = carried(EDIT, apply(EDIT.patch, STOCK))
    assert outcome.state == "conflict" and "no Probe" in outcome.detail


def test_own_patch_on_top_of_ours() -> None:
    ours = SAMPLES[0].patch
    patched = apply(ours, STOCK)
    own_patch = make(TARGET, patched, patched.replace(b"LIMIT = 3", b"LIMIT = 4"), "local/limit.patch", "")
    new = b"# more\n" + STOCK.replace(b"import sys\n", b"import sys  # noqa\n")
    before = Release("1", [TARGET], {TARGET: STOCK}.get)
    outcomes = carry([ours, own_patch], before, Release("2", [TARGET], {TARGET: new}.get), "1", (3, 11), {})
    assert [outcome.state for outcome in outcomes] == ["offset", "offset"]
    assert outcomes[1].result is not None and b"LIMIT = 4" in outcomes[1].result and IMPORT in outcomes[1].result
    lost = Release("2", [TARGET], {TARGET: STOCK.replace(b"def run_worker", b"def other")}.get)
    outcomes = carry([ours, own_patch], before, lost, "1", (3, 11), {})
    assert [outcome.state for outcome in outcomes][1] == "conflict"
    assert "on top of worker/1.patch" in outcomes[1].detail


def test_own_text_serves_both_releases_where_it_can() -> None:
    new = STOCK.replace(b"step_3(value)", b"step_3(value, 1)", 1)
    before = Release("1", [TARGET], {TARGET: STOCK}.get)
    (outcome,) = carry([EDIT.patch], before, Release("2", [TARGET], {TARGET: new}.get), "1", (3, 11), {})
    assert outcome.serves_both and outcome.carried is not None
    assert apply(outcome.carried, STOCK) == apply(EDIT.patch, STOCK)


def test_own_patch_of_a_file_that_is_no_python() -> None:
    target = "sglang/srt/config.json"
    stock = "".join(f'  "key_{number}": {number},\n' for number in range(20)).encode()
    patch = make(target, stock, stock.replace(b'"key_9": 9', b'"key_9": 90'), "local/config.patch", "Probe: none\n")
    before = Release("1", [target], {target: stock}.get)
    for new, state, how in (
        (b"{\n" + stock, "offset", "as_is"),
        (stock.replace(b'"key_7": 7', b'"key_7": 70'), "offset", "merged"),
        (stock.replace(b'"key_9": 9', b'"key_9": 99'), "conflict", ""),
        (None, "gone", ""),
    ):
        files = {target: new} if new is not None else {}
        (outcome,) = carry([patch], before, Release("2", list(files), files.get), "1", (3, 11), {})
        assert (outcome.state, outcome.how) == (state, how), outcome


# --- what a person resolved


def resolve(text: bytes, header: str = "") -> Outcome:
    sample = SAMPLES[0]
    new = sample.stock.replace(b"def run_worker(args, port):", b"def run_worker(args, port, more):")
    before = Release("1", [TARGET], {TARGET: STOCK}.get)
    resolved = {sample.patch.origin: Resolution(text, header)}
    (outcome,) = carry([sample.patch], before, Release("2", [TARGET], {TARGET: new}.get), "1", (3, 11), resolved)
    return outcome


def test_a_resolved_file_is_judged_by_the_same_tree() -> None:
    new = STOCK.replace(b"def run_worker(args, port):", b"def run_worker(args, port, more):")
    good = new.replace(b"import zmq\n", IMPORT + b"import zmq\n").replace(b"def run_w", b"@_ext.entry\ndef run_w")
    outcome = resolve(good)
    assert (outcome.state, outcome.how, outcome.result) == ("offset", "resolved", good)
    assert resolve(new).detail == "the resolved file has no change in it"
    assert "markers" in resolve(b"<<<<<<< a\n" + good).detail
    wrong = new.replace(b"import zmq\n", IMPORT + b"import zmq\n").replace(b"def prepare", b"@_ext.entry\ndef prepare")
    assert "wrong place" in resolve(wrong).detail
    other = resolve(wrong, HEADER.format("seam prepare entry"))
    assert other.how == "resolved" and other.carried is not None and "seam prepare" in other.carried.header
