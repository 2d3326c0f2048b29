"""Values, names and configuration files of NCCL: the launcher reads them as the installed NCCL will, before anything starts.

The NCCL of these rows is a file that tells a version, so the rules are that release's. *noted* is a launch that says so and
goes on; here it goes as far as a port that is taken.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sglang_ext.reasons import TABLE
from tests.e2e.conftest import Done, run

from .matrix import Matrix, Row, fault, refused
from .places import AS_NOBODY, Place, needs_other_users, with_etc
from .standins import library

WHEEL = "nvidia/nccl/lib/libnccl.so.2"


@pytest.fixture(scope="module")
def shelf(template: Path) -> Iterator[Place]:
    """One place for all rows: none of these launches comes as far as writing anything."""
    folder = Path(tempfile.mkdtemp(prefix="sglang-ext-values-", dir="/tmp"))
    folder.chmod(0o755)
    shutil.copytree(template, folder / "venv", symlinks=True)
    yield Place(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield int(listening.getsockname()[1])


def asked(
    place: Place,
    port: int,
    words: tuple[str, ...],
    *,
    shell: dict[str, str] | None = None,
    nccl: str = "2.30.7",
    before: tuple[str, ...] = (),
) -> Done:
    """A launch where ``nccl`` is the installed release; ``words`` that are no options are ``--set``."""
    library(place.site / WHEEL, nccl)
    options = [word for text in words for word in ((text,) if text.startswith("-") else ("--set", text))]
    command = [*before, place.python, "-m", "sglang_ext.launch", *options, "--model-path", "none", "--port", str(port)]
    environment = place.environment({"HOME": str(place.folder), **(shell or {})})
    return run(*command, env=environment, cwd=str(place.folder))


def launch(
    *words: str, nccl: str = "2.30.7", file: str | None = None, at: str = "nccl.conf", **shell: str
) -> Callable[[Place, int], Done]:
    """A launch with ``words``; with ``file`` as a configuration file ``at`` that place."""

    def act(place: Place, port: int) -> Done:
        path = place.folder / at
        if file is not None:
            path.write_bytes(file.encode())
        named = {"NCCL_CONF_FILE": str(path)} if file is not None and at == "nccl.conf" else {}
        try:
            return asked(place, port, words, shell=named | shell, nccl=nccl)
        finally:
            path.unlink(missing_ok=True)

    return act


def by_env(*words: str, **shell: str) -> Callable[[Place, int], Done]:
    """A launch in a shell that got ``words`` from env(1), which exports names no shell would."""
    return lambda place, port: asked(place, port, (), shell=shell, before=("env", *words))


def system_file(text: str, *words: str) -> Callable[[Place, int], Done]:
    """A launch where /etc/nccl.conf is ``text``."""

    def act(place: Place, port: int) -> Done:
        return asked(place, port, words, before=with_etc(place.folder / "etc", text))

    return act


def closed_file(place: Place, port: int) -> Done:
    """A configuration file that the launching user may not read."""
    needs_other_users()
    path = place.folder / "closed.conf"
    path.write_text("NCCL_PROTO=Simple\n")
    path.chmod(0o600)
    return asked(place, port, ("NCCL_PROTO=LL",), shell={"NCCL_CONF_FILE": str(path)}, before=AS_NOBODY)


LEVEL = ("NCCL_P2P_LEVEL", "expected one of", "SYS")

# name, fault, code, words of the sentence, launch
REFUSED = [
    # NCCL_P2P_LEVEL
    ("level_lower", "NCCL_P2P_LEVEL=sys: words are compared exactly", "value_ignored", (*LEVEL, "found sys", "write SYS"), launch("NCCL_P2P_LEVEL=sys")),
    ("level_blank", "a blank behind NCCL_P2P_LEVEL=SYS", "value_ignored", (*LEVEL, "found 'SYS '", "write SYS"), launch("NCCL_P2P_LEVEL=SYS ")),
    ("level_word", "NCCL_P2P_LEVEL=System", "value_ignored", (*LEVEL, "found System"), launch("NCCL_P2P_LEVEL=System")),
    # Integers
    ("size_4m", "NCCL_BUFFSIZE=4M is 4 bytes", "value_misread", ("NCCL_BUFFSIZE", "expected", "found 4M", "reads as 4", "write 4194304"), launch("NCCL_BUFFSIZE=4M")),
    ("size_1e6", "NCCL_BUFFSIZE=1e6 is 1 byte", "value_misread", ("NCCL_BUFFSIZE", "found 1e6", "reads as 1", "write 1000000"), launch("NCCL_BUFFSIZE=1e6")),
    ("octal_08", "NCCL_MAX_NCHANNELS=08 is 0", "value_misread", ("NCCL_MAX_NCHANNELS", "found 08", "reads as 0", "write 8"), launch("NCCL_MAX_NCHANNELS=08")),
    ("octal_010", "NCCL_MAX_NCHANNELS=010 is 8", "value_misread", ("NCCL_MAX_NCHANNELS", "found 010", "reads as 8", "leading 0 means octal", "write"), launch("NCCL_MAX_NCHANNELS=010")),
    ("number_8ch", "NCCL_MAX_NCHANNELS=8ch", "value_misread", ("NCCL_MAX_NCHANNELS", "found 8ch", "stops at ch", "write 8"), launch("NCCL_MAX_NCHANNELS=8ch")),
    ("number_auto", "NCCL_MIN_NCHANNELS=auto is 0", "value_misread", ("NCCL_MIN_NCHANNELS", "found auto", "reads as 0", "write"), launch("NCCL_MIN_NCHANNELS=auto")),
    ("number_auto_new", "the same in a release that takes the default for it", "value_ignored", ("NCCL_MIN_NCHANNELS", "found auto", "NCCL 2.32.3 takes its default"), launch("NCCL_MIN_NCHANNELS=auto", nccl="2.32.3")),
    ("number_large", "a number beyond 64 bits", "value_ignored", ("NCCL_BUFFSIZE", "does not fit into 64 bits", "write a smaller number"), launch("NCCL_BUFFSIZE=99999999999999999999")),
    ("switch_true", "NCCL_P2P_DISABLE=true is off", "value_ignored", ("NCCL_P2P_DISABLE", "expected 0 or 1", "found true", "write 1"), launch("NCCL_P2P_DISABLE=true")),
    ("switch_2", "NCCL_SHM_DISABLE=2: only 1 means on", "value_misread", ("NCCL_SHM_DISABLE", "expected 0 or 1", "found 2", "only 1 means on"), launch("NCCL_SHM_DISABLE=2")),
    # Lists
    ("list_blank", 'NCCL_PROTO="LL, LL128": a blank in the list', "value_refused", ("NCCL_PROTO", "expected a list", "found 'LL, LL128'", "refuses when a communicator is made", "write LL,LL128"), launch("NCCL_PROTO=LL, LL128")),
    ("list_word", "NCCL_PROTO=LLL: no such protocol", "value_refused", ("NCCL_PROTO", "found LLL", "no word it knows", "write LL for LLL"), launch("NCCL_PROTO=LLL")),
    ("list_word_old", "the same in a release that passes over unknown words", "no_algorithm", ("NCCL_PROTO", "found LLL", "enables nothing", "NCCL 2.18.3"), launch("NCCL_PROTO=LLL", nccl="2.18.3")),
    ("list_word_half", "NCCL_PROTO=Simple,LLL in such a release: one word counts, the other does not", "value_ignored", ("NCCL_PROTO", "passes over LLL in silence", "write"), launch("NCCL_PROTO=Simple,LLL", nccl="2.18.3")),
    ("list_function", "NCCL_ALGO=allredcue:Tree: no such function", "value_refused", ("NCCL_ALGO", "no function it knows", "AllReduce"), launch("NCCL_ALGO=Ring;allredcue:Tree")),
    ("list_function_old", "a list per function in a release that knows none", "value_ignored", ("NCCL_ALGO", "NCCL 2.18.3", "came with 2.24"), launch("NCCL_ALGO=allreduce:Tree", nccl="2.18.3")),
    ("all_but_ll", "NCCL_PROTO=^LL switches LL128 on unchecked", "ll128_forced", ("NCCL_PROTO", "found ^LL", "forces it", "corrupted in silence", "leave LL128 out"), launch("NCCL_PROTO=^LL")),
    ("named_ll128", "NCCL_PROTO=LL,LL128 does too", "ll128_forced", ("NCCL_PROTO", "found LL,LL128", "NCCL 2.30.7 forces it", "leave LL128 out"), launch("NCCL_PROTO=LL,LL128")),
    ("ll128_for_one", "NCCL_PROTO=^LL128;allreduce:LL128, for one function", "ll128_forced", ("NCCL_PROTO", "forces it for AllReduce"), launch("NCCL_PROTO=^LL128;allreduce:LL128")),
    ("tree_alone", "NCCL_ALGO=Tree without Ring", "no_algorithm", ("NCCL_ALGO", "found NCCL_ALGO=Tree", "none for Broadcast", "add Ring"), launch("NCCL_ALGO=Tree")),
    ("nvls_alone", "NCCL_ALGO=NVLS without Ring", "no_algorithm", ("NCCL_ALGO", "found NCCL_ALGO=NVLS", "none for Broadcast", "add Ring"), launch("NCCL_ALGO=NVLS")),
    ("tree_simple_old", "NCCL_ALGO=Tree with NCCL_PROTO=Simple in a release that drops the protocol with the algorithm", "conflict", ("NCCL_ALGO", "NCCL 2.21.5 takes Ring", "protocols that NCCL_PROTO leaves out", "add Ring"), launch("NCCL_ALGO=Tree", "NCCL_PROTO=Simple", nccl="2.21.5")),
    # Variables that fight
    ("disable_and_level", "NCCL_P2P_DISABLE=1 beside NCCL_P2P_LEVEL=SYS", "conflict", ("NCCL_P2P_DISABLE", "which beats NCCL_P2P_LEVEL=SYS", "unset one"), launch("NCCL_P2P_DISABLE=1", "NCCL_P2P_LEVEL=SYS")),
    ("disable_left_over", "the same, one from the profile and one left over in the shell", "conflict", ("NCCL_P2P_DISABLE", "which beats NCCL_P2P_LEVEL=SYS"), launch("NCCL_P2P_LEVEL=SYS", NCCL_P2P_DISABLE="1")),
    ("two_names", "NCCL_MIN_NRINGS=4 beside NCCL_MIN_NCHANNELS=8, two names of one thing", "conflict", ("NCCL_MIN_NRINGS", "NCCL_MIN_NCHANNELS=8 overrides", "unset it"), launch("NCCL_MIN_NRINGS=4", "NCCL_MIN_NCHANNELS=8")),
    # Names
    ("name_plural", "NCCL_ALGOS", "name_misspelt", ("NCCL_ALGOS", "slip of NCCL_ALGO", "write NCCL_ALGO"), launch("NCCL_ALGOS=Ring")),
    ("name_typo", "NCCL_P2P5ISABLE in the shell", "name_misspelt", ("NCCL_P2P5ISABLE", "slip of NCCL_P2P_DISABLE"), launch("NCCL_PROTO=LL", NCCL_P2P5ISABLE="1")),
    ("name_ncll", "NCLL_PROTO in the shell", "name_misspelt", ("NCLL_PROTO", "slip of NCCL_PROTO", "write NCCL_PROTO"), launch("NCCL_PROTO=LL", NCLL_PROTO="LL")),
    ("name_lower", "nccl_proto in the shell", "name_misspelt", ("nccl_proto", "slip of NCCL_PROTO"), launch("NCCL_ALGO=Ring", nccl_proto="LL")),
    ("name_dash", "NCCL_IB-DISABLE from env(1), a name no shell can export", "name_misspelt", ("NCCL_IB-DISABLE", "slip of NCCL_IB_DISABLE", "write NCCL_IB_DISABLE"), by_env("NCCL_IB-DISABLE=1", NCCL_PROTO="LL")),
    ("name_cuda", "a slip of a variable that CUDA reads", "name_misspelt", ("CUDA_DEVICE_MAX_CONECTIONS", "slip of CUDA_DEVICE_MAX_CONNECTIONS"), launch("CUDA_DEVICE_MAX_CONECTIONS=32")),
    ("name_opposite", "NCCL_IB_ENABLE, of which NCCL has only the opposite", "name_misspelt", ("NCCL_IB_ENABLE", "the opposite of NCCL_IB_DISABLE"), launch("NCCL_IB_ENABLE=0")),
    ("name_dead", "NCCL_TREE_THRESHOLD, gone since 2.5", "name_dead", ("NCCL_TREE_THRESHOLD", "NCCL 2.30.7 reads", "not read any more since 2.5.6", "leave it out"), launch("NCCL_TREE_THRESHOLD=0")),
    ("name_new", "NCCL_CTA_POLICY with a library that is older", "name_too_new", ("NCCL_CTA_POLICY", "NCCL 2.18.3 reads", "came with", "leave it out"), launch("NCCL_CTA_POLICY=0", nccl="2.18.3")),
    # Configuration files
    ("file_unwanted", "NCCL_CONF_FILE names a file that sets what must be absent", "conf_sets", ("NCCL_P2P_DISABLE", "expected it absent", "found 1 in", "nccl.conf line 2", "take that line out"), launch("--absent=NCCL_P2P_DISABLE", file="# site\nNCCL_P2P_DISABLE=1\n")),
    ("file_4m", "a configuration file with NCCL_BUFFSIZE=4M", "value_misread", ("NCCL_BUFFSIZE", "found 4M", "nccl.conf sets it"), launch("NCCL_PROTO=LL", file="NCCL_BUFFSIZE=4M\n")),
    ("file_export", "a configuration file written like a shell's: export NCCL_ALGO=Ring", "name_misspelt", ("export NCCL_ALGO", "slip of NCCL_ALGO", "nccl.conf sets it"), launch("NCCL_PROTO=LL", file="export NCCL_ALGO=Ring\n")),
    ("file_blanks", "blanks around = in a configuration file", "name_misspelt", ("'NCCL_ALGO '", "slip of NCCL_ALGO", "nccl.conf sets it"), launch("NCCL_PROTO=LL", file="NCCL_ALGO = Ring\n")),
    ("file_crlf", "a configuration file with CRLF in a release that keeps the CR", "value_refused", ("NCCL_ALGO", "Ring\\r", "nccl.conf sets it"), launch("NCCL_PROTO=LL", file="NCCL_ALGO=Ring\r\n", nccl="2.27.7")),
    ("file_home", "~/.nccl.conf sets what must be absent", "conf_sets", ("NCCL_P2P_DISABLE", "expected it absent", ".nccl.conf line 1"), launch("--absent=NCCL_P2P_DISABLE", file="NCCL_P2P_DISABLE=1\n", at=".nccl.conf")),
    ("file_system", "/etc/nccl.conf sets NCCL_GRAPH_FILE, the shell holds none, and it must be absent", "conf_sets", ("NCCL_GRAPH_FILE", "expected it absent", "/etc/nccl.conf line 1", "take that line out"), system_file("NCCL_GRAPH_FILE=/opt/graph.xml\n", "--absent=NCCL_GRAPH_FILE")),
]  # fmt: skip
NOTED = [
    ("unclear_2", "NCCL_P2P_LEVEL=2 means PXB", "value_unclear", ("NCCL_P2P_LEVEL", "found 2", "PXB"), launch("NCCL_P2P_LEVEL=2")),
    ("unknown", "NCCL_FUTURE_KNOB=7, which no release knows, is passed on", "name_unknown", ("NCCL_FUTURE_KNOB", "no release", "passed on as it is"), launch(NCCL_FUTURE_KNOB="7")),
    ("image_version", "NCCL_VERSION, which container images set", "name_unknown", ("NCCL_VERSION", "container images"), launch("NCCL_PROTO=LL", NCCL_VERSION="2.27.3")),
    ("tuner", "NCCL_TUNER_PLUGIN beside NCCL_PROTO", "plugin_present", ("NCCL_TUNER_PLUGIN", "another algorithm and protocol", "beside NCCL_PROTO"), launch("NCCL_PROTO=LL", NCCL_TUNER_PLUGIN="libnccl-tuner.so")),
    ("hidden", "NCCL_DEBUG_SUBSYS without ENV", "log_hidden", ("NCCL_DEBUG_SUBSYS", "expected ENV", "found NET", "add ENV"), launch("NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=NET")),
    ("file_loses", "the node's file says Simple, the contract LL: the environment wins", "conf_overridden", ("NCCL_PROTO", "found Simple in", "nccl.conf line 1", "environment beats"), launch("NCCL_PROTO=LL", file="NCCL_PROTO=Simple\n")),
    ("file_adds", "~/.nccl.conf sets a variable outside the contract", "conf_sets", ("NCCL_BUFFSIZE", "found 8388608", ".nccl.conf line 1", "adds to the environment by itself"), launch("NCCL_PROTO=LL", file="NCCL_BUFFSIZE=8388608\n", at=".nccl.conf")),
    ("file_system_loses", "/etc/nccl.conf and the contract disagree", "conf_overridden", ("NCCL_PROTO", "found Simple in /etc/nccl.conf line 1"), system_file("NCCL_PROTO=Simple\n", "NCCL_PROTO=LL")),
    ("file_closed", "a configuration file closed to the launching user", "conf_sets", ("closed.conf", "expected a configuration file that can be read", "run as its user"), closed_file),
    ("accept_level", "NCCL_P2P_LEVEL=sys with --accept value_ignored", "value_ignored", ("NCCL_P2P_LEVEL", "found sys", "(accepted)"), launch("NCCL_P2P_LEVEL=sys", "--accept=value_ignored")),
    ("accept_4m", "NCCL_BUFFSIZE=4M with --accept value_misread", "value_misread", ("NCCL_BUFFSIZE", "reads as 4", "(accepted)"), launch("NCCL_BUFFSIZE=4M", "--accept=value_misread")),
    ("accept_ll128", "NCCL_PROTO=LL,LL128 with --accept ll128_forced", "ll128_forced", ("NCCL_PROTO", "corrupted in silence", "(accepted)"), launch("NCCL_PROTO=LL,LL128", "--accept=ll128_forced")),
    ("accept_name", "NCCL_ALGOS with --accept name_misspelt", "name_misspelt", ("NCCL_ALGOS", "slip of NCCL_ALGO", "(accepted)"), launch("NCCL_ALGOS=Ring", "--accept=name_misspelt")),
    ("accept_tree", "NCCL_ALGO=Tree with --accept no_algorithm", "no_algorithm", ("NCCL_ALGO", "none for Broadcast", "(accepted)"), launch("NCCL_ALGO=Tree", "--accept=no_algorithm")),
    ("accept_file", "a file that sets what must be absent, with --accept conf_sets", "conf_sets", ("NCCL_P2P_DISABLE", "expected it absent", "(accepted)"), launch("--absent=NCCL_P2P_DISABLE", "--accept=conf_sets", file="NCCL_P2P_DISABLE=1\n")),
]  # fmt: skip


def rows(
    verdict: str, status: int, table: list[tuple[str, str, str, tuple[str, ...], Callable[..., Done]]]
) -> list[object]:
    made = []
    for name, text, code, says, act in table:
        act.__name__ = name
        made.append(fault(text, verdict, code, status, says, act))
    return made


def names(place: Place) -> dict[str, str]:
    return {str(place.folder): "DIR", os.path.expanduser("~") + "/": "HOME/"}


@pytest.mark.parametrize(("row", "act"), rows("refused", 2, REFUSED))
def test_refused(
    row: Row,
    act: Callable[[Place, int], Done],
    shelf: Place,
    taken: int,
    matrix: Matrix,
    request: pytest.FixtureRequest,
) -> None:
    done = act(shelf, taken)
    matrix.add(request, row, refused(row, done), names(shelf))
    assert not list(shelf.runtime.rglob("run.json")), "nothing was started"


@pytest.mark.parametrize(("row", "act"), rows("noted", 1, NOTED))
def test_noted(
    row: Row,
    act: Callable[[Place, int], Done],
    shelf: Place,
    taken: int,
    matrix: Matrix,
    request: pytest.FixtureRequest,
) -> None:
    done = act(shelf, taken)
    assert done.status == row.exit and "Traceback" not in done.err, done.err
    assert "sglang-ext: port_taken: " in done.err, done.err
    head = f"sglang-ext: {row.code}: "
    said = [line.removeprefix(head) for line in done.err.splitlines() if line.startswith(head)]
    assert len(said) == 1 and row.code in TABLE, done.err
    matrix.add(request, row, said[0], names(shelf))
