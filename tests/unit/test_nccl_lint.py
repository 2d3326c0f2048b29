"""A whole environment: names, values, combinations, files; each case as somebody met it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from hypothesis import strategies as st

from sglang_ext.nccl.catalogue import names
from sglang_ext.nccl.conf import ConfFile, ConfFiles, parse
from sglang_ext.nccl.finding import Finding
from sglang_ext.nccl.lint import MOST_STRANGERS, lint
from sglang_ext.nccl.neighbours import slip_of
from tests.unit.cases import given_cases

NOW, OLD, NEW = (2, 30, 7), (2, 21, 5), (2, 32, 3)
CODES = {
    "name_misspelt", "name_unknown", "name_dead", "name_too_new", "value_misread", "value_ignored", "value_refused",
    "value_unclear", "quoted", "conflict", "ll128_forced", "no_algorithm", "plugin_present", "conf_sets",
    "conf_overridden", "log_hidden",
}  # fmt: skip


def said(
    env: dict[str, str], version: tuple[int, ...] | None = NOW, **more: object
) -> list[tuple[str, str, str | None]]:
    return [(found.code, found.severity, found.variable) for found in lint(env, version, **more)]  # type: ignore[arg-type]


def only(env: dict[str, str], version: tuple[int, ...] | None = NOW, **more: object) -> Finding:
    (found,) = lint(env, version, **more)  # type: ignore[arg-type]
    return found


def file(text: bytes, path: str = "/etc/nccl.conf", version: tuple[int, ...] = NOW) -> ConfFiles:
    return ConfFiles((ConfFile(path, parse(text, version)),))


@pytest.mark.parametrize("version", [OLD, NOW, NEW, None])
def test_a_clean_environment_has_no_findings(version: tuple[int, ...] | None) -> None:
    env = {
        "NCCL_PROTO": "LL",
        "NCCL_ALGO": "Ring",
        "NCCL_P2P_LEVEL": "SYS",
        "NCCL_BUFFSIZE": "4194304",
        "NCCL_MIN_NCHANNELS": "8",
        "NCCL_IB_DISABLE": "1",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING",
        "RCCL_PROTO": "x",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "PATH": "/bin",
        "HOME": "/root",
    }
    assert said(env, version) == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NCCL_ALGOS", "NCCL_ALGO"),
        ("NCCL_P2P5ISABLE", "NCCL_P2P_DISABLE"),
        ("NCCL_IB-DISABLE", "NCCL_IB_DISABLE"),
        ("NCLL_PROTO", "NCCL_PROTO"),
        ("NCCL-PROTO", "NCCL_PROTO"),
        ("nccl_proto", "NCCL_PROTO"),
        ("NCCL_PROTO ", "NCCL_PROTO"),
        ("export NCCL_PROTO", "NCCL_PROTO"),
    ],
)
def test_misspelt_names(name: str, meant: str) -> None:
    found = only({name: "1"})
    assert (found.code, found.severity, found.variable) == ("name_misspelt", "fail", name)
    assert found.message.endswith(f"write {meant}")


def test_a_slip_of_what_the_release_does_not_read_is_no_advice_to_write_it() -> None:
    found = only({"NCCL_DEBUG_LEVEL": "INFO"}, (2, 27, 7))
    assert found.code == "name_misspelt"
    assert found.message.endswith("a slip of NCCL_DEBUG_LEVELS, one that came with 2.32.3; leave it out")
    assert only({"NCCL_DEBUG_LEVEL": "INFO"}, NEW).message.endswith("; write NCCL_DEBUG_LEVELS")


def test_a_switch_that_is_there_the_other_way_round() -> None:
    found = only({"NCCL_IB_ENABLE": "0"})
    assert found.code == "name_misspelt" and "write that, with the opposite value" in found.message


def test_unknown_names_are_passed_on() -> None:
    for name in ("NCCL_MY_OWN_KNOB", "NCCL_VERSION", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_FASTRAK_IFNAME"):
        assert said({name: "1"}) == [("name_unknown", "note", name)]
    assert said({"MY_OWN_KNOB": "1", "NAME": "x", "npm_config": "y"}) == []


def test_names_a_release_does_not_read() -> None:
    dead, new = "NCCL_CREATE_THREAD_CONTEXT", "NCCL_CTA_POLICY"
    assert said({dead: "1"}) == [("name_dead", "note", dead)]
    assert said({dead: "1"}, wanted={dead: "1"}) == [("name_dead", "fail", dead)]
    assert said({dead: "1"}, (2, 30, 4)) == []
    assert said({dead: "1"}, None, wanted={dead: "1"}) == [("name_dead", "note", dead)]  # an older library reads it
    assert said({new: "ZERO"}, OLD) == [("name_too_new", "note", new)]
    assert said({new: "ZERO"}, OLD, wanted={new: "ZERO"}) == [("name_too_new", "fail", new)]
    assert said({new: "ZERO"}, OLD, wanted={new: None}) == [("name_too_new", "note", new)]
    assert "2.27.3" in only({new: "ZERO"}, OLD).message and "2.30.7" in only({dead: "1"}).message
    assert said({"NCCL_GROUP_CUDA_STREAM": "1"}) == [("name_dead", "note", "NCCL_GROUP_CUDA_STREAM")]


def test_values_are_looked_at() -> None:
    assert said({"NCCL_BUFFSIZE": "4M"}) == [("value_misread", "fail", "NCCL_BUFFSIZE")]
    assert said({"NCCL_P2P_LEVEL": "sys"}) == [("value_ignored", "fail", "NCCL_P2P_LEVEL")]
    assert said({"NCCL_P2P_LEVEL": "2"}) == [("value_unclear", "note", "NCCL_P2P_LEVEL")]
    assert said({"NCCL_PROTO": "LL, LL128"}) == [("value_refused", "fail", "NCCL_PROTO")]
    assert said({"NCCL_PROTO": "^LL,LL128,Simple", "NCCL_ALGO": "Ring"}) == [("no_algorithm", "fail", "NCCL_PROTO")]


def test_p2p_disable_beats_p2p_level() -> None:
    assert said({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS"}) == [("conflict", "fail", "NCCL_P2P_DISABLE")]
    assert said({"NCCL_P2P_DISABLE": "0", "NCCL_P2P_LEVEL": "SYS"}) == []
    assert said({"NCCL_P2P_DISABLE": "1"}) == said({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": ""}) == []
    # src/graph/paths.cc:251: disabled is the level LOC, so that one says what the other does.
    assert said({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "LOC"}) == []
    assert ("conflict", "fail", "NCCL_P2P_DISABLE") not in said({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "0"})


@pytest.mark.parametrize(
    ("algo", "proto", "left"),
    [
        ("Tree", None, "Broadcast, Reduce, AllGather, ReduceScatter"),
        ("NVLS", None, "Broadcast, Reduce"),
        ("NVLS", "LL", "Broadcast, Reduce, AllGather, ReduceScatter, AllReduce"),
        ("^Ring", None, "Broadcast, Reduce"),
        ("allreduce:PAT", None, "AllReduce"),
        ("Ring;allreduce:NVLS", "LL", "AllReduce"),
        ("Ring;broadcast:Tree", None, "Broadcast"),
        ("CollNetChain,Ring;reduce:^Ring", None, "Reduce"),
        ("Ring", "LL,Simple;allgather:^LL,LL128,Simple", "AllGather"),
    ],
)
def test_functions_left_without_an_algorithm(algo: str, proto: str | None, left: str) -> None:
    env = {"NCCL_ALGO": algo} | ({"NCCL_PROTO": proto} if proto else {})
    found = next(found for found in lint(env, NOW) if found.code == "no_algorithm")
    assert found.severity == "fail" and f"leaves none for {left}:" in found.message


@pytest.mark.parametrize(
    ("algo", "proto"),
    [("Ring", "LL"), ("allreduce:Tree", "LL"), ("allreduce:NVLS,Tree", "LL"), ("Ring,NVLS", "LL"), ("", "LL")],
)
def test_lists_that_leave_enough(algo: str, proto: str) -> None:
    assert said({"NCCL_ALGO": algo, "NCCL_PROTO": proto}) == []


def test_lists_that_fight_in_older_and_newer_releases() -> None:
    tree = {"NCCL_ALGO": "Tree", "NCCL_PROTO": "Simple"}
    assert said(tree, OLD) == [("conflict", "fail", "NCCL_ALGO")]  # NVIDIA/nccl issue 1304
    assert said(tree, (2, 22, 3)) == said(tree, (2, 18, 3)) == said({"NCCL_ALGO": "Tree"}, OLD) == []
    assert said({"NCCL_ALGO": "PAT,NVLS", "NCCL_PROTO": "LL"}, (2, 23, 4)) == [("conflict", "fail", "NCCL_ALGO")]
    assert said({"NCCL_ALGO": "Tree"}, None) == [("no_algorithm", "unknown", "NCCL_ALGO")]
    # Since 2.31 a list of algorithms clears those of the functions it does not name; a protocol list makes that count.
    both = {"NCCL_ALGO": "allreduce:Tree", "NCCL_PROTO": "LL"}
    assert said(both) == [] and said(both, NEW) == [("no_algorithm", "unknown", "NCCL_ALGO")]
    assert said({"NCCL_ALGO": "allreduce:Tree"}, NEW) == said(both | {"NCCL_SYM_KERNEL": "x"}, NEW) == []


@pytest.mark.parametrize("proto", ["LL128", "^LL", "^Simple", "LL,LL128,Simple", "^", "LL;allreduce:LL128"])
def test_ll128_is_forced_up_to_2_30(proto: str) -> None:
    env = {"NCCL_PROTO": proto}
    assert said(env) == [("ll128_forced", "fail", "NCCL_PROTO")]
    assert said(env, None) == [("ll128_forced", "note", "NCCL_PROTO")] and "up to 2.30.7" in only(env, None).message
    assert said(env, NEW) == []


def test_ll128_is_not_forced_by_what_leaves_it_out() -> None:
    assert said({"NCCL_PROTO": "LL"}) == said({"NCCL_PROTO": "^LL128"}) == said({"NCCL_PROTO": ""}) == []
    assert "for AllReduce:" in only({"NCCL_PROTO": "LL;allreduce:LL128"}).message


def test_plugins_are_told() -> None:
    assert said({"NCCL_NET_PLUGIN": "none"}) == []
    assert said({"NCCL_ENV_PLUGIN": "x"}) == [("plugin_present", "note", "NCCL_ENV_PLUGIN")]
    assert said({"NCCL_ENV_PLUGIN": "x"}, (2, 27, 7)) == [("name_too_new", "note", "NCCL_ENV_PLUGIN")]
    assert "beside NCCL_ALGO" in only({"NCCL_TUNER_PLUGIN": "x", "NCCL_ALGO": "Ring"}).message


def test_old_names_beside_new_ones() -> None:
    assert said({"NCCL_MAX_NRINGS": "4", "NCCL_MAX_NCHANNELS": "8"}) == [("conflict", "fail", "NCCL_MAX_NRINGS")]
    assert said({"NCCL_MAX_NRINGS": "8", "NCCL_MAX_NCHANNELS": "8"}) == said({"NCCL_MAX_NRINGS": "4"}) == []


@pytest.mark.parametrize("version", [(2, 18, 3), NOW, None])
@pytest.mark.parametrize(
    ("env", "blamed", "parts"),
    [
        # The maximum first, then copies up to the minimum: src/graph/connect.cc:503.
        (
            {"MIN_NCHANNELS": "32", "MAX_NCHANNELS": "8"},
            "MAX_NCHANNELS",
            ("keeps the first 8 channels", "until there are 32"),
        ),
        (
            {"MIN_NRINGS": "16", "MAX_NCHANNELS": "8"},
            "MAX_NCHANNELS",
            ("NCCL_MIN_NRINGS=16 beats", "until there are 16"),
        ),
        ({"MIN_NCHANNELS": "16", "MAX_CTAS": "8"}, "MAX_CTAS", ("NCCL_MIN_NCHANNELS=16 beats",)),
        ({"MIN_CTAS": "16", "MAX_NCHANNELS": "8"}, "MAX_NCHANNELS", ("NCCL_MIN_CTAS=16 beats",)),
        # The minimum is lowered: src/init.cc:2190.
        (
            {"MIN_CTAS": "32", "MAX_CTAS": "8"},
            "MIN_CTAS",
            ("no more than NCCL_MAX_CTAS=8, found 32, which", "lowers to 8"),
        ),
    ],
)
def test_bounds_that_undo_each_other(
    env: dict[str, str], blamed: str, parts: tuple[str, ...], version: tuple[int, ...] | None
) -> None:
    found = only({f"NCCL_{name}": text for name, text in env.items()}, version)
    grave = (
        "fail" if blamed == "MIN_CTAS" else "note"
    )  # the others are in NCCL's guide as a way to use few channels often
    assert (found.code, found.severity, found.variable) == ("conflict", grave, f"NCCL_{blamed}")
    assert all(part in found.message for part in parts)


def test_bounds_that_go_together() -> None:
    for least, most in (("8", "8"), ("8", "32"), ("-2", "1"), ("32", "-2"), ("0", "1")):
        assert said({"NCCL_MIN_NCHANNELS": least, "NCCL_MAX_NCHANNELS": most}) == []
    # Both are 64 to NCCL, and said to be unclear, not to contradict each other.
    codes = [code for code, *_ in said({"NCCL_MIN_NCHANNELS": "128", "NCCL_MAX_NCHANNELS": "64"})]
    assert codes == ["value_unclear"]


def test_too_many_sockets() -> None:
    found = only({"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"})
    assert (found.code, found.variable) == ("conflict", "NCCL_NSOCKS_PERTHREAD")
    assert found.message.endswith("for which NCCL 2.30.7 takes 4; write 4")
    assert said({"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "4"}) == []
    assert said({"NCCL_SOCKET_NTHREADS": "-2", "NCCL_NSOCKS_PERTHREAD": "100"}) == []


@pytest.mark.parametrize(
    ("subsys", "hidden"), [("INIT", True), ("^ENV", True), ("", True), ("ENV", False), ("ALL", False), ("^COLL", False)]
)
def test_logs_without_the_lines_that_matter(subsys: str, hidden: bool) -> None:
    expected = [("log_hidden", "note", "NCCL_DEBUG_SUBSYS")] if hidden else []
    assert said({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": subsys}) == expected
    assert said({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": subsys}) == []


def test_what_brings_the_lines_back() -> None:
    def fix(subsys: str) -> str:
        return only({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": subsys}).message.rpartition("; ")[2]

    assert fix("INIT") == "add ENV (and INIT, TUNING)"
    assert fix("^ENV") == fix("^ENV,COLL") == "take ENV out of what it excludes"


def test_files_add_values() -> None:
    graph = file(b"NCCL_GRAPH_FILE=/x.xml\n")
    assert said({}, conf=graph) == [("conf_sets", "note", "NCCL_GRAPH_FILE")]
    assert said({}, conf=graph, wanted={"NCCL_GRAPH_FILE": None}) == [("conf_sets", "fail", "NCCL_GRAPH_FILE")]
    assert said({}, conf=graph, wanted={"NCCL_GRAPH_FILE": "/x.xml"}) == [("conf_sets", "note", "NCCL_GRAPH_FILE")]
    message = only({}, conf=graph, wanted={"NCCL_GRAPH_FILE": "/y"}).message
    assert "expected /y, found /x.xml in /etc/nccl.conf line 1" in message
    same = file(b"NCCL_BUFFSIZE=0x400000")
    assert said({}, conf=same, wanted={"NCCL_BUFFSIZE": "4194304"}) == [("conf_sets", "note", "NCCL_BUFFSIZE")]


def test_files_are_beaten_by_the_environment() -> None:
    conf = file(b"NCCL_PROTO=LL\nNCCL_PROTO=Simple\n")
    assert said({"NCCL_PROTO": "Simple"}, conf=conf) == [("conf_overridden", "note", "NCCL_PROTO")]
    assert said({"NCCL_PROTO": "LL"}, conf=conf) == []


def test_values_and_names_in_files_are_linted_too() -> None:
    conf = file(b"NCCL_BUFFSIZE = 4M\nNCCL_MAX_NCHANNELS=08\nexport NCCL_ALGO=Ring\nCUDA_X=1\n")
    assert said({}, conf=conf) == [
        ("name_misspelt", "fail", "NCCL_BUFFSIZE "),
        ("value_misread", "fail", "NCCL_MAX_NCHANNELS"),
        ("name_misspelt", "fail", "export NCCL_ALGO"),
        ("conf_sets", "note", "NCCL_BUFFSIZE "),
        ("conf_sets", "note", "NCCL_MAX_NCHANNELS"),
    ]
    assert "4M" not in "".join(found.message for found in lint({}, NOW, conf=conf))  # whatever a stranger holds
    assert all("/etc/nccl.conf" in found.message for found in lint({}, NOW, conf=conf))
    level = file(b"NCCL_P2P_LEVEL=SYS\r\n", version=(2, 29, 7))
    assert ("value_ignored", "fail", "NCCL_P2P_LEVEL") in said({}, (2, 29, 7), conf=level)
    assert ("conflict", "fail", "NCCL_P2P_DISABLE") in said({"NCCL_P2P_DISABLE": "1"}, conf=file(b"NCCL_P2P_LEVEL=SYS"))


def test_a_closed_file_is_not_an_empty_one() -> None:
    assert said({}, conf=ConfFiles((), ("/etc/nccl.conf",))) == [("conf_sets", "unknown", None)]


def test_thousands_of_strangers_are_not_compared_with_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    env = {f"NCCL_STRANGE_{number}_KNOB": "1" for number in range(MOST_STRANGERS + 1)}
    compared: list[str] = []
    monkeypatch.setattr("sglang_ext.nccl.lint.suggest", lambda name, version: compared.append(name))
    assert {found.code for found in lint(env, NOW)} == {"name_unknown"} and compared == []
    env.popitem()
    assert {found.code for found in lint(env, NOW)} == {"name_unknown"} and len(compared) == MOST_STRANGERS


_names = st.sampled_from(names()) | st.text(max_size=20).map("NCCL_".__add__) | st.text(max_size=30)
_values = st.text(max_size=20) | st.sampled_from(
    ["1", "0", "LL", "^LL", "Tree", "allreduce:Tree", "SYS", "4M", '"x"', "", "none"]
)
_versions = st.none() | st.tuples(st.just(2), st.integers(18, 33), st.integers(0, 9))


@given_cases(
    10_000,
    st.dictionaries(_names, _values, min_size=10, max_size=20),
    _versions,
    st.binary(max_size=60),
    st.dictionaries(_names, st.none() | _values, max_size=3),
    asked="NCCL_FUZZ",
    at_once=20,
)
def test_no_environment_makes_it_raise(
    env: dict[str, str], version: tuple[int, ...] | None, data: bytes, wanted: dict[str, str | None]
) -> None:
    conf = file(data + b"\nNCCL_PROTO=LL128\nNCCL_X=1", "/a\nb", version=version or NOW)
    for found in lint(env, version, conf=conf, wanted=wanted):
        assert found.code in CODES and found.severity in ("fail", "unknown", "note")
        assert found.message.isprintable() and found.message.strip() == found.message != ""


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CUDA_DEVICE_MAX_CONECTIONS", "CUDA_DEVICE_MAX_CONNECTIONS"),
        ("TORCH_NCCL_BLOKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT"),
        ("CUDA_LAUNCH_BLOCKING", None),
        ("CUDA_SOMETHING_NEW", None),
        ("TORCH_LOGS", None),
    ],
)
def test_a_slip_of_what_others_read(name: str, meant: str | None) -> None:
    found = lint({name: "1"}, NOW, wanted={name: "1"})
    assert [(one.code, one.severity, one.variable) for one in found] == (
        [("name_misspelt", "fail", name)] if meant else []
    )
    assert all(one.message.endswith(f"a slip of {meant}; write {meant}") for one in found)
    assert lint({name: "1"}, NOW) == []  # of the shell's nothing is demanded


@pytest.mark.parametrize("version", [(2, 18, 3), (2, 21, 5), (2, 22, 3)])
def test_a_release_that_does_not_know_the_file_variable_misses_no_file(version: tuple[int, ...]) -> None:
    env, looked = {"NCCL_CONF_FILE": "/there"}, ConfFiles((), (), True)
    assert said(env, version, conf=looked) == [("name_too_new", "note", "NCCL_CONF_FILE")]
    assert (
        said(env, (2, 23, 4), conf=looked)
        == said(env, None, conf=looked)
        == [("conf_missing", "note", "NCCL_CONF_FILE")]
    )


def _read_by(package: str) -> set[str]:
    """Every CUDA_ and TORCH_NCCL_ name in quotes in the sources of an installed package that looks at the environment."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"no {package} is installed here")
    found: set[str] = set()
    for file in Path(spec.origin).parent.rglob("*.py"):
        text = file.read_text(encoding="utf-8", errors="replace")
        if "environ" in text or "getenv" in text:
            found |= set(re.findall(r"""["']((?:CUDA|TORCH_NCCL)_[A-Z0-9_]+)["']""", text))
    return found - {"CUDA_PATH_V"}  # the beginning of names, on Windows


@pytest.mark.parametrize("package", ["sglang", "torch"])
def test_no_name_that_they_use_is_taken_for_a_slip(package: str) -> None:
    assert {name: meant for name in _read_by(package) if (meant := slip_of(name)) is not None} == {}


# sglang 0.5.23 srt/arg_groups/serving_hook.py:167, srt/utils/cudacore_pyspy_dump_utils.py:33 and 97, and torch 2.14.1's library.
@pytest.mark.parametrize(
    "name",
    [
        "CUDA_COREDUMP_PIPE", "CUDA_COREDUMP_FILE", "CUDA_COREDUMP_SHOW_PROGRESS", "CUDA_COREDUMP_GENERATION_FLAGS",
        "CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "CUDA_ENABLE_USER_TRIGGERED_COREDUMP", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
        "TORCH_NCCL_TRACE_CPP_STACK", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        "TORCH_NCCL_NONBLOCKING_TIMEOUT", "TORCH_NCCL_RANKS_PER_ROOT", "TORCH_NCCL_BCAST_UNIQUEID",
    ],
)  # fmt: skip
def test_names_that_others_read_are_no_slips(name: str) -> None:
    assert lint({name: "1"}, NOW, wanted={name: "1"}) == []
    assert [found.code for found in lint({name + "X": "1"}, NOW, wanted={name + "X": "1"})] == ["name_misspelt"]
