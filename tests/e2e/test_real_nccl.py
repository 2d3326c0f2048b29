"""Our readers of NCCL against NCCL: real libraries of several releases, loaded in child processes, without a GPU.

What can be had through the public API is had that way: the log lines, what a configuration file defines, the version. How a
text is understood is asked of the library's own functions (tests/rig/nccl_probe.py), and docs/nccl-agreement.md lists it:

    SGLANG_EXT_WRITE_AGREEMENT=1 python -m pytest tests/e2e/test_real_nccl.py

writes that page, with the releases of WRITTEN; without it the releases at hand are compared with the page.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sglang_ext.nccl import conf, library, lists, log, silence, testimony
from sglang_ext.nccl.finding import FAIL
from sglang_ext.nccl.understand import understand
from sglang_ext.nccl.version import from_code, parse_version
from tests.rig import nccl_wheels

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "nccl-agreement.md"
PROBE = ROOT / "tests" / "rig" / "nccl_probe.py"
WRITE = bool(os.environ.get("SGLANG_EXT_WRITE_AGREEMENT"))
WRITTEN = ("2.18.3", "2.21.5", "2.23.4", "2.26.2", "2.27.7", "2.29.7", "2.30.7", "2.32.3")
HERE = WRITTEN if WRITE else nccl_wheels.VERSIONS

NUMBERS = (
    "0", "1", "2", "-1", "-2", "4194304", "4M", "4m", "32k", "1G", "1e3", "1.5", "8,8", "08", "010", "0x10", "0xg", "0x", " 8",
    "8 ", "\t8", "+8", "--8", "8ch", '"8"', "'8'", "abc", "true", "on", "yes", "auto", "", " ", "-", "1_000",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "99999999999999999999", "\u0668", "2147483648",
)  # fmt: skip
PROTO = (
    "LL", "ll", "Simple", "SIMPLE", "LL128", "LL,LL128", "LL,Simple", "Simple,LL", "LL,LL128,Simple", "^LL", "^LL128",
    "^Simple", "^ll128", "^LL,LL128", "^LL,^LL128", "LL,^Simple", "^", "", ",", "LL,", ",LL", "LL,,Simple", " LL", "LL ",
    "LL, Simple", "LLL", "LL129", '"LL"', "LL;Simple", "AllReduce:LL", "allreduce:ll", "allreduce:^LL128",
    "^LL128;allreduce:LL128", "LL;AllReduce:Simple", "AllReduce:LL;LL", "AllReduce:LL;AllReduce:Simple", "AllReduce:",
    "broadcast,allreduce:LL", "sendrecv:LL", "AllReduce:LL:Simple", ";", ";LL", "LL;", "none", "default",
    "Reduce:LL;Broadcast:LL;AllGather:LL;ReduceScatter:LL;AllReduce:LL",
)  # fmt: skip
ALGO = (
    "Ring", "ring", "RING", "Tree", "Ring,Tree", "Tree,Ring", "^Tree", "^Ring", "^NVLS,NVLSTree", "NVLS", "nvlstree", "NVLS_TREE",
    "CollNet", "CollNetDirect", "CollNetChain", "PAT", "^PAT", "", "^", "Ring,", "Ring, Tree", "Rings", "auto", "allreduce:ring",
    "Ring;allreduce:Tree", "allreduce:tree;allgather:ring", "ring;tree", "allgather:pat", "alltoall:ring",
    "Tree,Ring,CollNetDirect,CollNetChain,NVLS,NVLSTree", "Tree,Ring,CollNetDirect,CollNetChain,NVLS,NVLSTree,PAT",
)  # fmt: skip
LEVELS = (
    "LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "DIS", "NET", "loc", "nvl", "sys", "Sys", "SYS ",
    " SYS", '"SYS"', "SYSTEM", "SY", "", "0", "1", "2", "3", "4", "5", "6", "99", "-1", "0x3", "2x", "02", "4294967298", "foo",
)  # fmt: skip
SWITCH = ("0", "1", "2", "01", "0x1", " 1", "1 ", "1x", "true", "yes", "", "-1", "4294967297")
POLICY = (
    "0", "1", "2", "3", "9", "12", "DEFAULT", "default", "EFFICIENCY", "ZERO", "zero", "EFFICIENCY|ZERO", "ZERO|EFFICIENCY",
    "ZERO|FAST", "FAST", "", "|", " ZERO", "-1",
)  # fmt: skip
# Variable -> (which question the probe is asked, the texts).
INPUTS: dict[str, tuple[str, Sequence[str]]] = {
    "NCCL_BUFFSIZE": ("integer", NUMBERS),
    "NCCL_CROSS_NIC": ("integer", ("0", "1", "2", "3", "on", "1 ", "")),
    "NCCL_IB_TIMEOUT": ("integer", ("20", "22.5", "0x16", "twenty", "")),
    "NCCL_PROTO": ("words", PROTO),
    "NCCL_ALGO": ("words", ALGO),
    "NCCL_P2P_LEVEL": ("level", LEVELS),
    "NCCL_NET_GDR_LEVEL": ("level", ("LOC", "PIX", "PHB", "SYS", "phb", "3", "NVL", "")),
    "NCCL_P2P_DISABLE": ("disable", SWITCH),
    "NCCL_CTA_POLICY": ("policy", POLICY),
}
COUNT = sum(len(texts) for _, texts in INPUTS.values())


def ask(version: str, questions: Sequence[Sequence[Any]], env: Mapping[str, str] | None = None) -> list[Any]:
    """The probe's answers, from a child process with nothing of NCCL in its environment but ``env``."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    done = subprocess.run(
        [sys.executable, str(PROBE), str(nccl_wheels.path_of(version))], input=json.dumps(questions),
        env={**clean, **(env or {})}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"NCCL {version}: the probe ended with {done.returncode}: {done.stderr[-800:]}"
    found: list[Any] = json.loads(done.stdout[done.stdout.rindex("\n[") + 1 :] if "\n[" in done.stdout else done.stdout)
    return found


@pytest.fixture(scope="session", params=HERE)
def version(request: pytest.FixtureRequest) -> str:
    """A release whose library is at hand."""
    try:
        nccl_wheels.fetch(request.param)
    except nccl_wheels.FetchError as error:
        pytest.fail(str(error))
    return str(request.param)


def numbers(version: str) -> tuple[int, ...]:
    found = parse_version(version)
    assert found is not None
    return found


# The library itself.


def test_the_files_version_is_what_the_library_says(version: str) -> None:
    library.clear_cache()
    file = library.of_file(str(nccl_wheels.path_of(version)))
    (code,) = ask(version, [["version"]])
    assert file.version == from_code(code) == numbers(version)
    assert file.cuda and file.detail == ""


def test_a_process_that_has_it_loaded(version: str) -> None:
    path = nccl_wheels.path_of(version)
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None and child.stdout.readline() == "ready\n"
        loaded = library.of_process(child.pid)
        child.stdin.close()
    assert loaded.state == "ok" and loaded.libraries == (library.of_file(str(path)),) and loaded.plugins == ()


# Its log, through the public API.


def logged(
    version: str, folder: Path, env: Mapping[str, str], conf_text: bytes | None = None
) -> tuple[testimony.Testimony, list[Path]]:
    """What ncclGetUniqueId logs with these variables, and the files it logged to."""
    more = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET", "NCCL_DEBUG_FILE": str(folder / "%h.%p")}
    folder.mkdir(exist_ok=True)
    if conf_text is not None:
        (folder / "nccl.conf").write_bytes(conf_text)
        more["NCCL_CONF_FILE"] = str(folder / "nccl.conf")
    ask(version, [["unique_id"]], {"HOME": str(folder), **more, **env})
    files = [path for path in folder.iterdir() if path.name.startswith(socket.gethostname().split(".")[0])]
    return log.parse(b"".join(path.read_bytes() for path in files)), files


def test_lines_of_the_real_library(version: str, tmp_path: Path) -> None:
    env = {"NCCL_GDRCOPY_ENABLE": " 0x0z", "NCCL_SOCKET_IFNAME": "lo", "NCCL_SOCKET_FAMILY": "AF_INET."}
    env["NCCL_SOCKET_RCVBUF"] = "64K"
    found, files = logged(version, tmp_path, env)
    (file,) = files
    ((host, pid),) = found.processes
    assert file.name == f"{host}.{pid}" and host == socket.gethostname().split(".")[0]
    assert not found.torn and not found.mixed and found.lines > 2
    values = found.of(pid, host).values()
    assert values["NCCL_GDRCOPY_ENABLE"] == ("0",)  # the number it read, not the text
    assert values["NCCL_SOCKET_IFNAME"] == ("lo",)
    assert values["NCCL_SOCKET_FAMILY"] == ("AF_INET.",)  # a text with a dot of its own
    assert values.get("NCCL_SOCKET_RCVBUF") == (("64",) if numbers(version) >= (2, 27) else None)
    for setting in found.settings:
        expected = silence.expected_line(setting.name, numbers(version))
        assert (setting.how, setting.name) == (expected.how, expected.name)
        assert silence.prints(expected, ("INIT", "ENV", "NET"))
    assert {known.version for known in found.libraries} <= {numbers(version)}


def test_warnings_of_the_real_library(version: str, tmp_path: Path) -> None:
    found, _ = logged(version, tmp_path, {"NCCL_SOCKET_IFNAME": "nosuchif"})
    (warning,) = found.warnings
    assert warning.level == "WARN" and "no socket interface found" in warning.text
    file, _, rest = warning.place.partition(":")
    assert file.endswith(".cc") and rest.split(" ")[0].isdigit()


def test_without_env_among_the_subsystems_silence_proves_nothing(version: str, tmp_path: Path) -> None:
    env = {"NCCL_GDRCOPY_ENABLE": "0", "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG_SUBSYS": "INIT"}
    found, _ = logged(version, tmp_path, env)
    assert "NCCL_GDRCOPY_ENABLE" not in found.values()
    expected = silence.expected_line("NCCL_GDRCOPY_ENABLE", numbers(version))
    assert not silence.silence_proves(expected, ("INIT",), 1, 1) and silence.silence_proves(expected, ("ENV",), 1, 1)


def test_a_number_that_does_not_fit_is_said_to_be_invalid(version: str, tmp_path: Path) -> None:
    found, _ = logged(version, tmp_path, {"NCCL_GDRCOPY_ENABLE": "99999999999999999999", "NCCL_SOCKET_IFNAME": "lo"})
    (invalid,) = found.invalid
    assert (invalid.name, invalid.value, invalid.default) == ("NCCL_GDRCOPY_ENABLE", "99999999999999999999", "0")
    assert "NCCL_GDRCOPY_ENABLE" not in found.values()


def test_the_lists_and_the_matrix_as_the_real_tuner_prints_them(version: str, tmp_path: Path) -> None:
    if version not in ("2.27.7", "2.30.7"):
        pytest.skip("where its communicator keeps the number of ranks was looked up for two releases only")
    given = {"NCCL_PROTO": "^LL128;allreduce:LL", "NCCL_ALGO": "Ring;allreduce:tree,ring", "NCCL_NTHREADS": "100"}
    env = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ENV,GRAPH", "NCCL_DEBUG_FILE": str(tmp_path / "%p")}
    (pid,) = ask(version, [["tune", given]], {"HOME": str(tmp_path), **env})
    found = log.parse((tmp_path / str(pid)).read_bytes()).of(pid)
    assert found.mixed == 0 and not found.torn
    values = found.values()
    assert (values["NCCL_PROTO"], values["NCCL_ALGO"]) == ((given["NCCL_PROTO"],), (given["NCCL_ALGO"],))
    assert values["NCCL_NTHREADS"] == ("100",)
    assert {(one.name, one.value) for one in found.invalid} == {("NCCL_NTHREADS", "100")}
    for name, field in (("NCCL_PROTO", "protocols"), ("NCCL_ALGO", "algorithms")):
        enabled = lists.parse(name, given[name], numbers(version)).enabled
        printed = {row.function: {word for word, on in getattr(row, field) if on == 1} for row in found.matrix}
        assert printed == {function: set(words) for function, words in enabled.items()}


# Its configuration files.

CONF = (
    b"# NCCL_A=comment\n#NCCL_B=comment\nNCCL_C=plain\nNCCL_C=second\nNCCL_D = blanks\n NCCL_E=indented\nNCCL_F=trailing \n"
    b"export NCCL_G=1\nNCCL_H=\"quoted\"\nNCCL_I==double\nNCCL_J=\nNCCL_K\n=nameless\nNCCL_L=cr\r\nOTHER_M=not nccl's\n"
    b"NCCL_SET=file\nNCCL_N=\xff\xfe\nNCCL_O=" + b"x" * 3000 + b"\nNCCL_P=last"
)  # fmt: skip


def test_a_configuration_file_defines_what_we_say(version: str, tmp_path: Path) -> None:
    file = tmp_path / "nccl.conf"
    file.write_bytes(CONF)
    env = {"NCCL_CONF_FILE": str(file), "NCCL_SET": "shell", "NCCL_SOCKET_IFNAME": "lo", "HOME": str(tmp_path)}
    seen = conf.effective(env, numbers(version), None)
    names = sorted({entry.name for rules in (numbers(version), (2, 18)) for entry in conf.parse(CONF, rules)})
    _, values = ask(version, [["unique_id"], ["environ", names]], env)
    assert dict(zip(names, values, strict=True)) == {n: seen[n].value if n in seen else None for n in names}
    assert seen["NCCL_SET"] == conf.Seen("shell", conf.ENVIRONMENT)
    assert ("NCCL_C" in seen) == (numbers(version) >= conf.FILE_VARIABLE_SINCE)


def test_the_home_directorys_file(version: str, tmp_path: Path) -> None:
    if numbers(version) < conf.HOME_VARIABLE_SINCE:
        pytest.skip("up to 2.29 the password database says where that is")
    (tmp_path / ".nccl.conf").write_text("NCCL_C=home\nNCCL_SOCKET_IFNAME=lo\n")
    other = tmp_path / "named.conf"
    other.write_text("NCCL_D=named\nNCCL_SOCKET_IFNAME=lo\n")
    for env in ({}, {"NCCL_CONF_FILE": str(other)}, {"NCCL_CONF_FILE": ""}):
        whole = {"HOME": str(tmp_path), **env}
        seen = conf.effective(whole, numbers(version), None)
        _, values = ask(version, [["unique_id"], ["environ", ["NCCL_C", "NCCL_D"]]], whole)
        assert values == [seen[n].value if n in seen else None for n in ("NCCL_C", "NCCL_D")]
    assert values == ["home", None]


def test_a_value_from_a_file_is_logged_like_one_from_the_environment(version: str, tmp_path: Path) -> None:
    found, _ = logged(version, tmp_path, {}, b"NCCL_SOCKET_IFNAME=lo\nNCCL_GDRCOPY_ENABLE=0\n")
    reads_it = numbers(version) >= conf.FILE_VARIABLE_SINCE
    assert ("NCCL_GDRCOPY_ENABLE" in found.values()) == reads_it
    env = {"NCCL_GDRCOPY_ENABLE": "1", "NCCL_SOCKET_IFNAME": "lo"}
    found, _ = logged(version, tmp_path / "again", env, b"NCCL_GDRCOPY_ENABLE=0\n")
    assert found.values()["NCCL_GDRCOPY_ENABLE"] == ("1",)  # the environment goes first


# tools/gpu_check.py, as far as a machine without a GPU goes: real processes and a real libnccl behind a torch of a few lines.

TORCH = """
import ctypes, os, sys
from types import SimpleNamespace as made
nccl = ctypes.CDLL(os.environ["LIBRARY"])
code = ctypes.c_int(); nccl.ncclGetVersion(ctypes.byref(code))
number = (code.value // 10000, code.value // 100 % 100, code.value % 100)
value = made(min=lambda: made(item=lambda: 1.0), max=lambda: made(item=lambda: 1.0))
cuda = made(device_count=lambda: 1, is_available=lambda: True, set_device=lambda d: None, synchronize=lambda: None,
            get_device_name=lambda: "none", nccl=made(version=lambda: number))
version, full = made(cuda="12"), lambda *a, **k: value
sys.modules["torch.distributed"] = distributed = made(
    is_nccl_available=lambda: True, all_reduce=lambda t: None, destroy_process_group=lambda: None,
    init_process_group=lambda *a, **k: nccl.ncclGetUniqueId(ctypes.create_string_buffer(128)))
"""


def test_gpu_check_from_outside(version: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    env = {"LIBRARY": str(nccl_wheels.path_of(version)), "PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "gpu_check.py"), "--json"],
        env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr  # there is neither a communicator nor a GPU, and both are seen
    found = {line["what"].removeprefix("rank 0: "): line["verdict"] for line in json.loads(done.stdout)}
    assert [what for what, verdict in found.items() if verdict == "wrong"] == ["Init COMPLETE", "NVML"]
    right = {"sum", "live reader", "mapped libnccl", "log", "NCCL_GDRCOPY_ENABLE"}
    assert {what for what, verdict in found.items() if verdict == "right"} == right


# How a text is understood: the library's own functions.


def understood(name: str, answer: Any, version: tuple[int, ...], levels: Mapping[int, str]) -> str:
    """What the library's function made of a text, in our words: "" is "as if unset", "refused" and "dead" as on the page."""
    kind = INPUTS[name][0]
    if kind == "integer" or (kind == "policy" and version < (2, 29)):
        return "dead" if answer is None else str(answer)
    if kind in ("level", "disable"):
        return "" if answer == -2 else "1" if kind == "disable" else levels[answer]
    if kind == "policy":
        # Both at once: src/init.cc warns and drops EFFICIENCY later than this function, before anything uses it.
        flags = {0: "DEFAULT", 1: "EFFICIENCY", 2: "ZERO", 3: "ZERO"}
        return "" if answer is None else flags[answer]
    code, table = answer
    if code != 0:
        return "refused"
    words = lists.words_of(name, version)
    rows = {
        function: ",".join(word for word, on in zip(words, row, strict=True) if on == 1) or "none"
        for function, row in zip(lists.FUNCTIONS, table, strict=True)
        if 7 not in row  # written at all
    }
    if len(rows) == len(lists.FUNCTIONS) and len(set(rows.values())) == 1:
        return next(iter(rows.values()))
    return ";".join(f"{function}:{row}" for function, row in rows.items())


def agrees(name: str, text: str, theirs: str, default: Any, version: tuple[int, ...]) -> str | None:
    """None where our understanding of the text is the library's; else what it is."""
    ours = understand(name, text, version)
    if theirs == "refused":
        refused = any(fault.severity == FAIL and fault.code in ("value_refused", "quoted") for fault in ours.faults)
        return None if refused else f"taken for {ours.value!r}"
    if theirs == "dead":
        same = ours.value == ""
    elif name == "NCCL_ALGO" and version < lists.CHECKED_LL128_SINCE:
        same = ours.value == restrictions(theirs, lists.words_of(name, version))
    else:
        same = ours.value == theirs or (ours.value == "" and theirs == str(default))
    return None if same else repr(ours.value)


def restrictions(theirs: str, words: Sequence[str]) -> str:
    """Without the functions that keep all algorithms: that is NCCL's table before any list, up to 2.30."""
    every = ",".join(words)
    return ";".join(row for row in theirs.split(";") if row.rpartition(":")[2] != every)


@cache
def answers(version: str) -> dict[tuple[str, str], tuple[str, str | None]]:
    """(variable, text) -> what the library understands, and None or what we do."""
    release = numbers(version)
    questions: list[list[Any]] = []
    for name, (kind, texts) in INPUTS.items():
        kind = "integer" if kind == "policy" and release < (2, 29) else kind
        questions += [[kind, name, text] for text in texts]
    extra = [["integer", name, None] for name, (kind, _) in INPUTS.items() if kind in ("integer", "policy")]
    known = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
    found = ask(version, [*questions, *extra, *(["level", "NCCL_P2P_LEVEL", level] for level in known)])
    defaults = {question[1]: found[len(questions) + i] for i, question in enumerate(extra)}
    levels = {
        number: level for level, number in zip(known, found[len(questions) + len(extra) :], strict=True) if number != -2
    }
    result = {}
    for (_, name, text), answer in zip(questions, found, strict=False):
        theirs = understood(name, answer, release, levels)
        result[name, text] = (theirs, agrees(name, text, theirs, defaults.get(name), release))
    return result


def test_we_understand_what_the_library_understands(version: str) -> None:
    found = answers(version).items()
    assert {key: f"{theirs!r}, ours {ours}" for key, (theirs, ours) in found if ours is not None} == {}


INTRO = """\
# What NCCL takes a text for

Each row is one text of one variable, each column one release, and each cell what that release's *own function* made of the text:
`ncclParamX`, `parseList`, `ncclGetLevel` and `getEnvCtaPolicyOnce` of the libraries in NVIDIA's wheels, called without a GPU.
This page is written by `SGLANG_EXT_WRITE_AGREEMENT=1 python -m pytest tests/e2e/test_real_nccl.py`, and a test compares it with
the releases at hand in every run. `-` is "as if it were not set", *refused* ends the initialisation with an error, *dead* is a
variable the release does not read. A cell in which `sglang_ext.nccl.understand` says something else would say so: **ours: ...**.
"""


def cell(seen: tuple[str, str | None]) -> str:
    theirs, ours = seen
    shown = {"": "-", "refused": "*refused*", "dead": "*dead*"}.get(theirs, f"`{theirs}`")
    return (shown if ours is None else f"{shown} **ours: {ours}**").replace("|", "\\|")


def row_of(name: str, text: str) -> str:
    shown = text if text.isascii() and text.isprintable() and text == text.strip() and text else repr(text)
    return f"| {name} | `{shown}` |".replace(f"`{shown}`", "`" + shown.replace("|", "\\|") + "`")


def render(versions: Sequence[str]) -> str:
    """The whole page."""
    odd = sum(1 for v in versions for seen in answers(v).values() if seen[1] is not None)
    lines = [
        INTRO,
        f"{COUNT} texts, {len(versions)} releases, {COUNT * len(versions)} answers, {odd} of them unlike ours.",
        "",
    ]
    lines += ["| variable | text | " + " | ".join(versions) + " |", "|---" * (len(versions) + 2) + "|"]
    for name, (_, texts) in INPUTS.items():
        for text in texts:
            cells = [cell(answers(v)[name, text]) for v in versions]
            lines.append(row_of(name, text) + " " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def test_the_page_is_what_the_libraries_say(version: str) -> None:
    if WRITE:
        if version == HERE[-1]:
            PAGE.write_text(render(WRITTEN), encoding="utf-8")
        return
    page = PAGE.read_text(encoding="utf-8").splitlines()
    assert any(line.startswith(f"{COUNT} texts, ") for line in page)
    head = next(line for line in page if line.startswith("| variable "))
    column = head.strip("| ").split(" | ").index(version)
    rows = {tuple(cells[:2]): cells for line in page if len(cells := line.strip("| ").split(" | ")) > 2}
    for (name, text), seen in answers(version).items():
        key = tuple(row_of(name, text).strip("| ").split(" | "))
        assert rows[key][column] == cell(seen), "run: SGLANG_EXT_WRITE_AGREEMENT=1 pytest tests/e2e/test_real_nccl.py"
