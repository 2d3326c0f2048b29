"""Sides of a comparison: what is recognised, what is made of it, what is refused, and that no secret gets through."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_ext import cli
from sglang_ext.compare import sides, verb
from sglang_ext.compare.difference import (
    ARGUMENTS,
    CONTRACT,
    ENVIRONMENT,
    GROUPS,
    NCCL,
    PATCHES,
    SIZES,
    VERSIONS,
    Side,
    compare,
)
from sglang_ext.compare.show import render, to_json
from sglang_ext.contract.decide import decide
from sglang_ext.hide import HIDDEN
from sglang_ext.run.attestation import SCHEMA as ATTESTATION
from sglang_ext.run.directory import RunDirectory, begin
from sglang_ext.verify import select
from sglang_ext.verify.select import NoServerError
from sglang_ext.verify.witnesses import read_exec

SECRET = "hunter2-not-for-sharing"
GONE = {"pid": 2**22 + 1, "start_time": 1}  # above pid_max: never a process
TERMS = decide(None, ["NCCL_PROTO=LL", "NCCL_P2P_LEVEL=SYS"], ["NCCL_P2P_DISABLE"], {}).to_json()
HOOK = {"active": True, "mode": "overlay", "patchset": "p" * 64}
EXPECTED = {"tp": 2, "pp": 1, "dp": 1, "nnodes": 1, "workers": 2, "here": 2}
Edit = Callable[[dict[str, Any]], Any]


def worker(rank: int, *, whole: bool) -> dict[str, Any]:
    held = {"NCCL_PROTO": "LL", "NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": None}
    found: dict[str, Any] = {
        "pid": 100 + rank, "start_time": 1, "role": "scheduler", "label": f"TP{rank}", "verdict": "PASS", "counts": True,
        "hook": HOOK, "extras": {"CUDA_DEVICE_MAX_CONNECTIONS": "8", "NCCL_NVLS_ENABLE": "0", "HF_TOKEN": SECRET},
    }  # fmt: skip
    if whole:
        found["variables"] = {
            name: {
                "verdict": "PASS",
                "reason": None,
                "witnesses": {
                    "exec": {"state": "clobbered", "value": None, "detail": "x"},
                    "live": {"state": "absent" if value is None else "value", "value": value, "detail": ""},
                    "attested": {"state": "unavailable", "value": None, "detail": "x"},
                },
            }
            for name, value in held.items()
        }
    return found


def report(*, whole: bool = True) -> dict[str, Any]:
    """A verify report, or what a receipt keeps of one."""
    return {
        "schema": "sglang-ext/verify/1", "verdict": "PASS", "host": "box", "time": 1795990315.0,
        "run": {"id": "r", "dir": "/run"}, "main": 99, "contract": TERMS, "expected": EXPECTED, "require": None,
        "workers": [worker(rank, whole=whole) for rank in range(2)]
        + [{**worker(7, whole=whole), "label": "detokenizer", "role": "detokenizer", "counts": False}],
        "problems": [],
    }  # fmt: skip


def receipt() -> dict[str, Any]:
    library = {"file": "libnccl.so.2", "sha256": "a" * 64, "version": "2.30.7", "reason": None}
    return {
        "schema": "sglang-ext/bench/1",
        "state": "VALID",
        "suite": {"name": "rig"},
        "verify": {"before": report(whole=False), "after": None},
        "fingerprint": {
            "machine": {"cpu": "c", "cores": 2, "memory_bytes": 1, "kernel": "6", "architecture": "x86_64", "gpus": []},
            "driver": {"version": "580.1", "reason": None},
            "server": {"python": "3.12.1", "packages": {"sglang": "0.5.23", "triton": None}, "reason": "no triton"},
            "nccl": [{"worker": f"TP{rank}", **library} for rank in range(2)],
            "contract": TERMS,
            "patches": {"mode": "overlay", "patchset": "p" * 64, "imported": {"engine.py": "1", "x.py": "2"}, "reason": None},
            "model": {"model_path": "/m", "architectures": ["A"], "weight_version": "default"},
            "arguments": {"tp_size": 2, "port": 1, "chunked_prefill_size": 4096, "api_key": SECRET, "u": f"http://a:{SECRET}@h/"},
            "arguments_left_out": 3,
        },
    }  # fmt: skip


def loaded(tmp_path: Path, found: Any, name: str = "side.json") -> Side:
    file = tmp_path / name
    file.write_text(json.dumps(found))
    return sides.load(str(file))


def nested(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


def edited(edit: Edit) -> dict[str, Any]:
    found = copy.deepcopy(receipt())
    edit(found)
    return found


def test_a_receipt(tmp_path: Path) -> None:
    side = loaded(tmp_path, receipt())
    assert (side.kind, side.what) == ("receipt", "receipt of rig, VALID, 2026-11-29 22:11:55 UTC")
    assert set(side.groups) == set(GROUPS) and side.nccl_version() == "2.30.7"
    environment = side.groups[ENVIRONMENT]
    assert list(environment) == ["TP0", "TP1"]  # a helper's does not count
    assert environment["TP0"].facts == {
        "CUDA_DEVICE_MAX_CONNECTIONS": "8", "NCCL_NVLS_ENABLE": "0", "NCCL_PROTO": "LL", "NCCL_P2P_LEVEL": "SYS",
    }  # fmt: skip
    assert side.groups[CONTRACT][""].facts == {"NCCL_P2P_DISABLE": None, "NCCL_P2P_LEVEL": "SYS", "NCCL_PROTO": "LL"}
    assert side.groups[VERSIONS][""].facts == {"sglang": "0.5.23", "python": "3.12.1"}  # triton: known to be missing
    assert side.groups[SIZES][""].facts == {**EXPECTED, "ranks found": ["TP0", "TP1"]}
    assert compare(side, side).differences == () and compare(side, side).compared > 30


def test_no_secret_gets_through(tmp_path: Path) -> None:
    side = loaded(tmp_path, receipt())
    assert SECRET not in repr(side)
    unknown = side.groups[ARGUMENTS][""].unknown
    assert unknown == {"(those that may hold secrets)": "4 are kept nowhere"}  # three at its making, one now


URL = f"http://user:{SECRET}@host/x"


def test_a_value_with_credentials_is_shown_nowhere(tmp_path: Path) -> None:
    """By name it is a tuning variable; a file may come from anywhere, and the JSON holds values whole."""

    def edit(found: dict[str, Any]) -> None:
        for worker in found["workers"]:
            worker["extras"]["MOONCAKE_TE_META_DATA_SERVER"] = URL
            worker["variables"]["UCX_X_URL"] = {"witnesses": {"live": {"state": "value", "value": URL}}}

    found = report()
    edit(found)
    one, two = loaded(tmp_path, found), loaded(tmp_path, report(), "other.json")
    assert SECRET not in repr(one)
    assert one.groups[ENVIRONMENT]["TP0"].facts["MOONCAKE_TE_META_DATA_SERVER"] == HIDDEN
    compared = compare(one, two)
    assert SECRET not in json.dumps(to_json(one, two, compared, 1)) + render(one, two, compared)
    both = compare(one, loaded(tmp_path, found))
    names = {name for u in both.not_comparable if u.group == ENVIRONMENT for name in u.names}
    assert names == {"MOONCAKE_TE_META_DATA_SERVER", "UCX_X_URL"}


def test_a_server_without_a_contract_is_seen_without_secrets() -> None:
    environ = {"PATH": os.environ["PATH"], "MOONCAKE_TE_META_DATA_SERVER": URL, "HF_TOKEN": SECRET, "NCCL_PROTO": "LL"}
    with subprocess.Popen(["sleep", "60"], env=environ) as process:
        try:
            until = time.monotonic() + 10
            while read_exec(process.pid).values.get("NCCL_PROTO") != "LL" and time.monotonic() < until:
                time.sleep(0.01)
            (seen,) = (one for one in select.by_pid(process.pid)[0].processes if one.stat.pid == process.pid)
            worker = sides._worker(seen, None)
        finally:
            process.kill()
    assert worker["unseen"] is None
    assert worker["extras"] == {"MOONCAKE_TE_META_DATA_SERVER": HIDDEN, "NCCL_PROTO": "LL"}
    assert SECRET not in repr(worker)


def test_a_whole_report_and_a_receipts_tell_the_same(tmp_path: Path) -> None:
    a, b = loaded(tmp_path, receipt(), "a.json"), loaded(tmp_path, report(), "b.json")
    found = compare(a, b)
    assert b.kind == "report" and found.differences == () and found.notes == ()
    assert found.equal[ENVIRONMENT] == 4 and found.equal[CONTRACT] == 3 and found.equal[PATCHES] == 3
    assert {(u.group, u.why) for u in found.not_comparable if not u.names} == {
        (group, "B: a verify report does not hold it") for group in (ARGUMENTS, VERSIONS, NCCL, "driver", "model")
    }
    one = {"schema": "sglang-ext/verify-all/1", "verdict": "PASS", "servers": [report()]}
    assert loaded(tmp_path, one).groups == b.groups


def test_a_report_may_name_the_libraries(tmp_path: Path) -> None:
    found = report()
    for one in found["workers"]:
        one["nccl"] = {"libraries": [{"path": "/x/libnccl.so.2", "version": "2.30.7", "detail": ""}]}
    a, b = loaded(tmp_path, receipt(), "a.json"), loaded(tmp_path, found, "b.json")
    compared = compare(a, b)
    assert b.nccl_version() == "2.30.7" and compared.differences == () and compared.equal[NCCL] == 2
    assert ("nccl", ("sha256",)) in {(u.group, u.names) for u in compared.not_comparable}


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda r: r["fingerprint"]["arguments"].update(chunked_prefill_size=8192), [("arguments", "chunked_prefill_size")]),
        (lambda r: r["fingerprint"]["arguments"].update(port=2), []),
        (lambda r: r["fingerprint"]["server"]["packages"].update(triton="3.8"), [("versions", "triton")]),
        (lambda r: r["fingerprint"]["nccl"][1].update(sha256="b" * 64), [("nccl", "sha256")]),
        (lambda r: r["fingerprint"]["driver"].update(version="580.2"), [("driver", "version")]),
        (lambda r: r["fingerprint"]["patches"]["imported"].update({"x.py": "3"}), [("patches", "imported.x.py")]),
        (lambda r: r["fingerprint"]["machine"].update(cores=4), [("host", "cores")]),
        (lambda r: r["verify"]["before"].update(host="other"), []),
        (lambda r: r["verify"]["before"]["workers"][1]["extras"].update(NCCL_NVLS_ENABLE="1"),
         [("environment", "NCCL_NVLS_ENABLE")]),
        (lambda r: r["verify"]["before"]["workers"][1]["extras"].update(HF_TOKEN="x"), []),
        (lambda r: r["verify"]["before"]["expected"].update(tp=4), [("sizes", "tp")]),
        (lambda r: r["verify"]["before"]["workers"].pop(1), [("sizes", "ranks found")]),
        (lambda r: r["verify"]["before"].update(contract=decide(None, ["NCCL_PROTO=LL"], [], {}).to_json()),
         [("contract", "NCCL_P2P_DISABLE"), ("contract", "NCCL_P2P_LEVEL"), ("environment", "NCCL_P2P_LEVEL")]),
    ],
)  # fmt: skip
def test_exactly_what_was_changed_differs(tmp_path: Path, edit: Edit, expected: list[tuple[str, str]]) -> None:
    a, b = loaded(tmp_path, receipt(), "a.json"), loaded(tmp_path, edited(edit), "b.json")
    found = compare(a, b, verb.meanings(a, b))
    assert [(d.group, d.name) for d in found.differences] == expected


def test_nccl_is_asked_what_a_text_means(tmp_path: Path) -> None:
    def hold(value: str) -> Edit:
        return lambda r: [w["extras"].update(NCCL_NET_GDR_LEVEL=value) for w in r["verify"]["before"]["workers"]]

    a, b = loaded(tmp_path, edited(hold("SYS")), "a.json"), loaded(tmp_path, edited(hold("4")), "b.json")
    (note,) = compare(a, b, verb.meanings(a, b)).notes
    assert (note.name, note.why) == ("NCCL_NET_GDR_LEVEL", "NCCL 2.30.7 takes both for SYS")
    ignored, absent = loaded(tmp_path, edited(hold("sys")), "b.json"), loaded(tmp_path, receipt(), "c.json")
    (note,) = compare(ignored, absent, verb.meanings(ignored, absent)).notes
    assert note.why == "NCCL 2.30.7 takes both for unset"
    assert len(compare(a, ignored, verb.meanings(a, ignored)).differences) == 1


def hold(value: str | None, version: str = "2.30.7", name: str = "NCCL_NET") -> dict[str, Any]:
    """A receipt whose workers hold ``name``, with that release of NCCL; None: unset."""
    found = receipt()
    for one in found["verify"]["before"]["workers"]:
        one["extras"] |= {name: value} if value is not None else {}
    for one in found["fingerprint"]["nccl"]:
        one["version"] = version
    return found


@pytest.mark.parametrize(
    ("name", "one", "other", "same"),
    [
        ("NCCL_NET", "", None, False),  # NCCL does not start with the empty one
        ("NCCL_NET_GDR_LEVEL", "3000000000", None, False),  # it reads past its table
        ("NCCL_NET_GDR_LEVEL", "sys", None, True),
        ("NCCL_MAX_NCHANNELS", "64", "128", True),  # 64 of both
        ("NCCL_NTHREADS", "100", "512", True),
        ("NCCL_NTHREADS", "256", "512", False),
        ("NCCL_IB_HCA", "a,b", "a, b", False),
    ],
)
def test_what_nccl_refuses_is_like_nothing_else(
    tmp_path: Path, name: str, one: str | None, other: str | None, same: bool
) -> None:
    a, b = loaded(tmp_path, hold(one, name=name), "a.json"), loaded(tmp_path, hold(other, name=name), "b.json")
    found = compare(a, b, verb.meanings(a, b))
    assert [d.name for d in found.differences] == ([] if same else [name])
    assert [d.name for d in found.notes] == ([name] if same else [])


@pytest.mark.parametrize("version", ["2.33.1", "2.17.1", "3.0.0"])
def test_of_a_release_nobody_knows_texts_are_texts(tmp_path: Path, version: str) -> None:
    name = "NCCL_NET_GDR_LEVEL"
    a, b = (loaded(tmp_path, hold(value, version, name), f"{value}.json") for value in ("sys", None))
    found = compare(a, b, verb.meanings(a, b))
    assert [d.name for d in found.differences] == [name] and found.notes == ()
    known = loaded(tmp_path, hold(None, "2.30.7", name), "known.json")  # one side's release is enough for doubt
    assert name in [d.name for d in compare(a, known, verb.meanings(a, known)).differences]


def test_without_a_version_of_nccl_texts_are_texts(tmp_path: Path) -> None:
    def hold(value: str) -> dict[str, Any]:
        found = report()
        for one in found["workers"]:
            one["extras"]["NCCL_NET_GDR_LEVEL"] = value
        return found

    a, b = loaded(tmp_path, hold("SYS"), "a.json"), loaded(tmp_path, hold("4"), "b.json")
    assert [d.name for d in compare(a, b, verb.meanings(a, b)).differences] == ["NCCL_NET_GDR_LEVEL"]


def test_what_a_receipt_only_knows_to_be_wrong(tmp_path: Path) -> None:
    def blame(found: dict[str, Any]) -> None:
        problem = {"code": "different", "severity": "fail", "worker": 101, "variable": "NCCL_PROTO", "message": "m"}
        found["verify"]["before"]["problems"].append(problem)

    side = loaded(tmp_path, edited(blame))
    assert side.groups[ENVIRONMENT]["TP1"].unknown == {
        "NCCL_PROTO": "the receipt only says that it was found different"
    }
    assert "NCCL_PROTO" in side.groups[ENVIRONMENT]["TP0"].facts


def test_a_receipt_without_a_measurement(tmp_path: Path) -> None:
    side = loaded(tmp_path, edited(lambda r: r.update(fingerprint=None, state="INVALID")))
    assert side.groups[ARGUMENTS][""].why == "nothing was measured, so the receipt has no fingerprint"
    assert side.groups[ENVIRONMENT]["TP0"].facts and side.groups[CONTRACT][""].facts


def test_a_report_of_workers_nobody_could_read(tmp_path: Path) -> None:
    def close(found: dict[str, Any]) -> dict[str, Any]:
        for one in found["workers"]:
            one.update(extras={}, verdict="UNKNOWN")
            for variable in one["variables"].values():
                variable["witnesses"]["live"] = {"state": "denied", "value": None, "detail": "permission denied"}
        return {**found, "run": None}

    side = loaded(tmp_path, close(report()))
    assert side.groups[ENVIRONMENT]["TP0"].why == "permission denied"
    assert "a run of ours" in side.groups[PATCHES][""].unknown  # not seen is not "no"


@pytest.fixture
def ended(tmp_path: Path) -> RunDirectory:
    """A run whose server is gone."""
    directory = RunDirectory.create(str(tmp_path / "run"))
    begin(directory, mode="launcher", policy="strict", dry_run=False, owner=(1, 1))
    directory.write("contract.json", TERMS)
    directory.write("server.json", {"expected": EXPECTED, "main": GONE, "host": "127.0.0.1", "port": 1})
    for rank in range(2):
        values = {"NCCL_PROTO": "LL", "NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": None, "HF_TOKEN": SECRET}
        directory.write(
            f"workers/{10 + rank}.json",
            {
                "schema": ATTESTATION, "pid": 10 + rank, "start_time": 5, "role": "scheduler",
                "rank": {"node": 0, "dp": 0, "pp": 0, "tp": rank},
                "hook": {"mode": "overlay", "patchset": "p" * 64, "imported": {"engine.py": "1", "x.py": "2"}},
                "entered": {"values": {"NCCL_PROTO": "Simple"}, "repaired": ["NCCL_PROTO"]},
                "ready": {"values": values},
            },
        )  # fmt: skip
    return directory


def test_a_run_that_has_ended(tmp_path: Path, ended: RunDirectory) -> None:
    side = sides.load(f"run:{ended.path}")
    assert side.kind == "run" and "has ended" in side.what and SECRET not in repr(side)
    assert side.groups[ENVIRONMENT]["TP1"].facts == {"NCCL_PROTO": "LL", "NCCL_P2P_LEVEL": "SYS"}
    found = compare(side, loaded(tmp_path, receipt()))
    assert {d.name for d in found.differences} == {"CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_NVLS_ENABLE"}
    assert found.equal[PATCHES] == 5 and found.equal[SIZES] == 7
    assert sides.load(ended.path).groups == side.groups


def test_a_run_that_was_never_started(tmp_path: Path) -> None:
    directory = RunDirectory.create(str(tmp_path / "run"))
    begin(directory, mode="launcher", policy="strict", dry_run=False, owner=(1, 1))
    directory.write("contract.json", TERMS)
    side = sides.load(directory.path)
    assert side.groups[CONTRACT][""].facts and side.groups[SIZES][""].why is not None
    assert side.groups[ENVIRONMENT][""].why == "no worker of it attested anything"


@pytest.mark.parametrize(
    ("found", "part"),
    [
        ({}, "found JSON without a schema"),
        ([1], "found JSON without a schema"),
        ({"schema": "other/1"}, "found schema 'other/1'"),
        ({"schema": "sglang-ext/bench/2"}, "found schema 'sglang-ext/bench/2'"),
        ({"schema": "sglang-ext/bench/1"}, "has another shape"),
        ({"schema": "sglang-ext/verify/1", "workers": 3}, "has another shape"),
        ({"schema": "sglang-ext/verify-all/1", "servers": []}, "expected one server, found 0"),
        ({"schema": "sglang-ext/verify-all/1", "servers": [{}, {}]}, "expected one server, found 2"),
        ({**report(), "contract": {**TERMS, "digest": "0" * 64}}, "it was edited or damaged"),
        ({**report(), "time": 1e300}, "has another shape"),
        ({**report(), "time": 1e17}, "has another shape"),
        ({**report(), "workers": [{**worker(0, whole=True), "unseen": {"x": 1}}]}, "has another shape"),
        ({**report(), "workers": [{**worker(0, whole=True), "label": 7}]}, "has another shape"),
        (edited(lambda r: r["fingerprint"]["driver"].update(version=None, reason=["x"])), "has another shape"),
        (edited(lambda r: r["fingerprint"]["arguments"].update(deep=nested(200))), "has another shape"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_side(tmp_path: Path, found: Any, part: str) -> None:
    with pytest.raises(sides.SideError, match=r"side\.json") as caught:
        loaded(tmp_path, found)
    assert part in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("given", ["", "pid:", "pid:x", "port:-1", "nowhere.json", "pid:1x", "http://x"])
def test_words_that_are_no_side(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(sides.SideError):
        sides.load(given)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not JSON")
    with pytest.raises(sides.SideError, match="expected JSON, found something else"):
        sides.load(str(tmp_path / "text"))
    (tmp_path / "empty").mkdir(mode=0o700)
    with pytest.raises(sides.SideError, match=r"found no run\.json of ours"):
        sides.load(str(tmp_path / "empty"))
    os.symlink("nothing", tmp_path / "link")
    with pytest.raises(sides.SideError, match="cannot be read"):
        sides.load(str(tmp_path / "link"))


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "BIGGEST", 1 << 20)
    file = tmp_path / "large.json"
    file.write_text(json.dumps({**report(), "more": "x" * (1 << 20)}))
    with pytest.raises(sides.SideError, match=r"large\.json: expected a file of at most 1 MiB, found a larger one"):
        sides.load(str(file))


def places(found: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything in a record."""
    yield path
    for key in found if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else ():
        yield from places(found[key], (*path, key))


@pytest.mark.parametrize("made", [receipt, report])
def test_whatever_stands_in_a_record_is_compared_or_refused_in_one_sentence(
    tmp_path: Path, made: Callable[[], dict[str, Any]]
) -> None:
    good = sides.document("good", made())
    refused = 0
    for path in places(made()):
        for strange in (None, 1e300, {"x": 1}, [{"x": [1]}], True):
            found: Any = copy.deepcopy(made())
            if path:
                inner = found
                for key in path[:-1]:
                    inner = inner[key]
                inner[path[-1]] = strange
            else:
                found = strange
            try:
                side = sides.document("side.json", found)
            except sides.SideError as error:
                refused += 1
                assert "\n" not in str(error)
                continue
            for a, b in ((side, good), (side, side)):
                compared = compare(a, b, verb.meanings(a, b))
                assert render(a, b, compared) and json.dumps(to_json(a, b, compared, 1))
    assert refused > 100


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoServerError):
        sides.load(f"pid:{GONE['pid']}")
    with pytest.raises(NoServerError, match="belongs to no SGLang server"):
        sides.load(f"pid:{os.getpid()}")
    assert cli.main(["diff", f"pid:{GONE['pid']}", "port:1"]) == 3
    assert capsys.readouterr().err.startswith("sglang-ext: no_server: ")


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(receipt()))
    b.write_text(json.dumps(edited(lambda r: r["fingerprint"]["arguments"].update(tp_size=4))))
    assert cli.main(["diff", str(a), str(a)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("SAME: ")
    assert cli.main(["diff", str(a), str(b), "--json", str(tmp_path / "out")]) == 1
    text = capsys.readouterr().out
    assert text.splitlines()[-1].startswith("DIFFERENT: 1 of ") and "tp_size" in text and SECRET not in text
    assert json.loads((tmp_path / "out").read_text())["differences"][0]["name"] == "tp_size"
    assert cli.main(["diff", str(a), str(b), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["exit"] == 1
    assert cli.main(["diff", str(a), "nowhere"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("sglang-ext: side_unreadable: 'nowhere': expected pid:N") and err.count("\n") == 1
    assert cli.main(["diff", str(a), str(b), "--json", str(tmp_path / "no" / "out")]) == 2
    assert "cannot be written" in capsys.readouterr().err
