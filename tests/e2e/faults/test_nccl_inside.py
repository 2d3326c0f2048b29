"""Workers whose NCCL is seen: which libnccl they have mapped, what it reads of what they hold, and what it has logged."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_ext.nccl.library import WHEEL_PATH, installed
from sglang_ext.reasons import TABLE
from tests.e2e.conftest import Done, sets

from .matrix import Matrix, Row, fault, judged
from .places import with_etc
from .standins import T0, T1, TP2, WORKERS, claim, library, look, process

GOOD = {"NCCL_PROTO": "LL", "NCCL_P2P_LEVEL": "SYS"}
Act = Callable[[Path], Done]


def held(env: dict[str, str], *words: str, nccl: str = "2.30.7", extra: str = "") -> Act:
    """Two workers that have NCCL ``nccl`` mapped and hold ``env``; the second one ``extra`` as well. ``words`` ask."""

    def act(folder: Path) -> Done:
        maps = {"STANDIN_MAPS": str(library(folder / "nccl" / "libnccl.so.2", nccl))}
        with process(WORKERS, *TP2, T0, T1 + extra, env=maps | env) as pid:
            return look(pid, *words)

    return act


def mapped(*sides: tuple[tuple[str, str], ...]) -> Act:
    """Two workers, each with its own (file, version) pairs mapped."""

    def act(folder: Path) -> Done:
        lists = [":".join(str(library(folder / name, version)) for name, version in side) for side in sides]
        words = [f"{title},STANDIN_MAPS={paths}" for title, paths in zip((T0, T1), lists, strict=True)]
        with process(WORKERS, *TP2, *words, env=GOOD) as pid:
            return look(pid, *sets(GOOD))

    return act


def claimed(*claims: tuple[str, str]) -> Act:
    """Two workers with the library of a site-packages folder, which ``claims`` say is theirs."""

    def act(folder: Path) -> Done:
        for distribution, version in claims:
            claim(folder / "site-packages", distribution, version)
        path = library(folder / "site-packages" / WHEEL_PATH, "2.28.9")
        with process(WORKERS, *TP2, T0, T1, env=GOOD | {"STANDIN_MAPS": str(path)}) as pid:
            return look(pid, *sets(GOOD))

    return act


QUIET = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_GDRCOPY_ENABLE": "0"}  # read by ncclGetUniqueId, so that its log has a line


def real(
    env: dict[str, str], *words: str, late: str = "", file: str = "", home: str = "", etc: str = "", log: bool = False
) -> Act:
    """Two workers that have started the real libnccl; ``late`` is set after that. ``file``, ``home`` and ``etc`` are the
    texts of NCCL_CONF_FILE, of the second worker's ~/.nccl.conf and of /etc/nccl.conf."""

    def act(folder: Path) -> Done:
        found = installed(sys.path)
        if not found:
            pytest.skip("needs the libnccl that torch brings")
        base = {
            "STANDIN_NCCL": os.path.realpath(found[0].library.path),
            "HOME": str(folder),
            "NCCL_SOCKET_IFNAME": "lo",
        }
        if file:
            (folder / "site.conf").write_text(file)
            base["NCCL_CONF_FILE"] = str(folder / "site.conf")
        if home:
            (folder / "home").mkdir()
            (folder / "home" / ".nccl.conf").write_text(home)
        if late:
            base["STANDIN_LATE"] = late
        if log:
            base |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV", "NCCL_DEBUG_FILE": f"{folder}/%p.log"}
        second = f"{T1},HOME={folder}/home" if home else T1
        before = with_etc(folder / "etc", etc) if etc else ()
        with process(WORKERS, *TP2, T0, second, env=base | env, before=before) as pid:
            return look(pid, *words)

    return act


PROTO, LEVEL = ("--set", "NCCL_PROTO=LL"), ("--set", "NCCL_P2P_LEVEL=SYS")
TWO = ("claimed/libnccl.so.2", "2.30.7"), ("system/libnccl.so.2", "2.27.7")

# name, fault, verdict, code, exit, words of the sentence, act, codes that may stand beside it
ROWS: list[tuple[str, str, str, str | None, int, tuple[str, ...], Act, tuple[str, ...]]] = [
    # One meaning, several texts
    ("same_4", "NCCL_P2P_LEVEL=4 where SYS is wanted: one level to NCCL", "PASS", "same_meaning", 0, ("NCCL_P2P_LEVEL", "expected SYS", "found 4", "NCCL takes for the same"), held({"NCCL_P2P_LEVEL": "4"}, *LEVEL), ()),
    ("same_ring", "NCCL_ALGO=ring where Ring is wanted", "PASS", "same_meaning", 0, ("NCCL_ALGO", "expected Ring", "found ring"), held({"NCCL_ALGO": "ring"}, "--set", "NCCL_ALGO=Ring"), ()),
    ("same_hex", "NCCL_BUFFSIZE=0x400000 where 4194304 is wanted", "PASS", "same_meaning", 0, ("NCCL_BUFFSIZE", "expected 4194304", "found 0x400000"), held({"NCCL_BUFFSIZE": "0x400000"}, "--set", "NCCL_BUFFSIZE=4194304"), ()),
    ("same_ranks", "ranks hold Ring and ring outside the contract", "PASS", None, 0, ("2 of 2",), held({"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}, *PROTO, extra=",NCCL_ALGO=ring"), ()),
    ("not_same", "NCCL_P2P_LEVEL=sys where SYS is wanted: none to NCCL", "FAIL", "different", 1, ("NCCL_P2P_LEVEL", "expected SYS", "found sys"), held({"NCCL_P2P_LEVEL": "sys"}, *LEVEL), ("value_ignored",)),
    ("not_same_4m", "NCCL_BUFFSIZE=4M where 4194304 is wanted: 4 bytes to NCCL", "FAIL", "different", 1, ("NCCL_BUFFSIZE", "expected 4194304", "found 4M"), held({"NCCL_BUFFSIZE": "4M"}, "--set", "NCCL_BUFFSIZE=4194304"), ("value_misread",)),
    ("quoted", "quotes of an env-file in a worker", "FAIL", "quoted", 1, ("NCCL_P2P_LEVEL", "expected SYS", "with the quotes in it", "without quotes"), held({"NCCL_P2P_LEVEL": '"SYS"'}, *LEVEL), ()),
    # The wanted text is there, and NCCL does nothing with it
    ("ignored", "contract and workers agree on NCCL_P2P_LEVEL=sys", "FAIL", "value_ignored", 1, ("TP0", "NCCL_P2P_LEVEL", "found sys", "write SYS"), held({"NCCL_P2P_LEVEL": "sys"}, "--set", "NCCL_P2P_LEVEL=sys"), ()),
    ("misread", "contract and workers agree on NCCL_BUFFSIZE=4M", "FAIL", "value_misread", 1, ("TP0", "NCCL_BUFFSIZE", "reads as 4", "write 4194304"), held({"NCCL_BUFFSIZE": "4M"}, "--set", "NCCL_BUFFSIZE=4M"), ()),
    ("misread_accepted", "the same with --accept value_misread", "PASS", "value_misread", 0, ("NCCL_BUFFSIZE", "reads as 4", "(accepted)"), held({"NCCL_BUFFSIZE": "4M"}, "--set", "NCCL_BUFFSIZE=4M", "--accept", "value_misread"), ()),
    ("misread_outside", "NCCL_BUFFSIZE=4M in the workers, outside the contract", "PASS", "value_misread", 0, ("NCCL_BUFFSIZE", "reads as 4"), held({"NCCL_PROTO": "LL", "NCCL_BUFFSIZE": "4M"}, *PROTO), ()),
    ("refused", "contract and workers agree on NCCL_PROTO='LL, LL128'", "FAIL", "value_refused", 1, ("NCCL_PROTO", "refuses when a communicator is made", "write LL,LL128"), held({"NCCL_PROTO": "LL, LL128"}, "--set", "NCCL_PROTO=LL, LL128"), ()),
    ("tree_alone", "contract and workers agree on NCCL_ALGO=Tree", "FAIL", "no_algorithm", 1, ("NCCL_ALGO", "none for Broadcast", "add Ring"), held({"NCCL_ALGO": "Tree"}, "--set", "NCCL_ALGO=Tree"), ()),
    ("ll128", "contract and workers agree on NCCL_PROTO=LL,LL128", "FAIL", "ll128_forced", 1, ("NCCL_PROTO", "forces it", "leave LL128 out"), held({"NCCL_PROTO": "LL,LL128"}, "--set", "NCCL_PROTO=LL,LL128"), ()),
    ("left_over", "NCCL_P2P_DISABLE=1 left over beside the wanted NCCL_P2P_LEVEL", "FAIL", "conflict", 1, ("NCCL_P2P_DISABLE", "which beats NCCL_P2P_LEVEL=SYS"), held({"NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": "1"}, *LEVEL), ()),
    ("misspelt", "NCCL_ALGOS in the workers, outside the contract", "PASS", "name_misspelt", 0, ("NCCL_ALGOS", "slip of NCCL_ALGO"), held({"NCCL_PROTO": "LL", "NCCL_ALGOS": "Ring"}, *PROTO), ()),
    ("too_new", "the mapped library is older than a wanted variable", "FAIL", "name_too_new", 1, ("NCCL_CTA_POLICY", "NCCL 2.18.3 reads"), held({"NCCL_CTA_POLICY": "0"}, "--set", "NCCL_CTA_POLICY=0", nccl="2.18.3"), ()),
    ("dead", "a wanted variable that the mapped library has stopped reading", "FAIL", "name_dead", 1, ("NCCL_TREE_THRESHOLD", "not read any more since 2.5.6"), held({"NCCL_TREE_THRESHOLD": "0"}, "--set", "NCCL_TREE_THRESHOLD=0"), ()),
    ("tuner", "NCCL_TUNER_PLUGIN in the workers", "PASS", "plugin_present", 0, ("NCCL_TUNER_PLUGIN", "another algorithm and protocol"), held({"NCCL_PROTO": "LL", "NCCL_TUNER_PLUGIN": "libnccl-tuner.so"}, *PROTO), ()),
    # Which library
    ("two_copies", "workers have mapped the system's libnccl beside the wheel's", "FAIL", "nccl_two_copies", 1, ("TP0", "has mapped", "2.30.7", "2.27.7", "depends on who asks"), mapped(TWO, TWO), ()),
    ("copies_differ", "each rank has mapped another libnccl", "FAIL", "nccl_copies_differ", 1, ("different copies of libnccl", "(2.30.7) in TP0", "(2.27.7) in TP1"), mapped(TWO[:1], TWO[1:]), ()),
    ("two_owners", "two packages installed one libnccl, the last one won", "PASS", "nccl_metadata", 0, ("mapped NCCL 2.28.9", "nvidia-nccl-cu12 2.28.9 and nvidia-nccl-cu13 2.30.7", "the file is what counts"), claimed(("nvidia_nccl_cu12", "2.28.9"), ("nvidia_nccl_cu13", "2.30.7")), ()),
    ("metadata", "the package says 2.30.7, the file is 2.28.9", "PASS", "nccl_metadata", 0, ("mapped NCCL 2.28.9", "nvidia-nccl-cu13 2.30.7"), claimed(("nvidia_nccl_cu13", "2.30.7")), ()),
    # The real library: its files, its log
    ("log", "NCCL's own log demanded as witness, and it agrees", "PASS", None, 0, ("2 of 2",), real(QUIET, *sets(QUIET), "--require", "effective", log=True), ()),
    ("log_contradicts", "set right after NCCL had read another value: its log says so", "FAIL", "not_in_effect", 1, ("NCCL_GDRCOPY_ENABLE", "expected 0", "found 1 in NCCL's own log", "0 in the worker now"), real({"NCCL_GDRCOPY_ENABLE": "1"}, *sets(QUIET), late="NCCL_GDRCOPY_ENABLE=0", log=True), ()),
    ("log_demanded", "NCCL's own log demanded of workers that keep none", "UNKNOWN", "witness_missing", 3, ("effective was demanded", "keeps no NCCL log"), real(QUIET, *sets(QUIET), "--require", "effective"), ()),
    ("late", "set after NCCL had started, without its log", "UNKNOWN", "maybe_too_late", 3, ("NCCL_PROTO", "expected LL", "started with Simple"), real({"NCCL_PROTO": "Simple"}, *PROTO, late="NCCL_PROTO=LL"), ()),
    ("file", "NCCL_CONF_FILE gives the workers NCCL_PROTO=Simple, no environment had it", "FAIL", "conf_sets", 1, ("TP0", "NCCL_PROTO", "expected LL", "found Simple", "site.conf line 1 gives it"), real({}, *PROTO, file="NCCL_PROTO=Simple\n"), ()),
    ("file_unwanted", "NCCL_CONF_FILE gives the workers what must be absent", "FAIL", "conf_sets", 1, ("NCCL_P2P_DISABLE", "expected (absent)", "found 1", "site.conf line 2 gives it"), real({"NCCL_PROTO": "LL"}, *PROTO, "--absent", "NCCL_P2P_DISABLE", file="# node\nNCCL_P2P_DISABLE=1\n"), ()),
    ("file_loses", "NCCL_CONF_FILE says Simple, the environment LL", "PASS", "conf_overridden", 0, ("NCCL_PROTO", "found Simple", "site.conf line 1", "environment beats"), real({"NCCL_PROTO": "LL"}, *PROTO, file="NCCL_PROTO=Simple\n"), ()),
    ("file_one_rank", "one rank's ~/.nccl.conf sets NCCL_BUFFSIZE", "FAIL", "ranks_differ", 1, ("NCCL_BUFFSIZE is (absent) on TP0, 8388608 on TP1",), real({"NCCL_PROTO": "LL"}, *PROTO, home="NCCL_BUFFSIZE=8388608\n"), ()),
    ("file_system", "/etc/nccl.conf of the workers' container sets NCCL_GRAPH_FILE, which must be absent", "FAIL", "conf_sets", 1, ("NCCL_GRAPH_FILE", "expected (absent)", "/etc/nccl.conf line 1 gives it"), real({"NCCL_PROTO": "LL"}, *PROTO, "--absent", "NCCL_GRAPH_FILE", etc="NCCL_GRAPH_FILE=/opt/graph.xml\n"), ()),
]  # fmt: skip


def rows() -> list[object]:
    made = []
    for name, text, verdict, code, status, says, act, also in ROWS:

        def with_codes(folder: Path, act: Act = act, also: tuple[str, ...] = also) -> tuple[Done, tuple[str, ...]]:
            return act(folder), also

        with_codes.__name__ = name
        made.append(fault(text, verdict, code, status, says, with_codes))
    return made


@pytest.mark.parametrize(("row", "act"), rows())
def test_judged(
    row: Row,
    act: Callable[[Path], tuple[Done, tuple[str, ...]]],
    open_place: Path,
    matrix: Matrix,
    request: pytest.FixtureRequest,
) -> None:
    done, also = act(open_place)
    report = json.loads(done.out)
    assert row.code is None or row.code in TABLE
    sentence = judged(row, Done(done.status, done.err, ""), report, also)
    matrix.add(request, row, sentence, {str(open_place): "DIR"})
