"""What is asked for: contract, profile, arguments, interpreter, port, run directory."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, Done, run

from .matrix import Matrix, Row, fault, refused
from .places import AS_NOBODY, NOBODY, Place, can_mount, needs_other_users, nobody_can_run, small_disk

HEAD = '[profile]\nname = "mine"\nsummary = "..."\n'


def profile(text: str | bytes) -> Callable[[Place], Done]:
    def act(place: Place) -> Done:
        path = place.folder / "mine.toml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return place.launch("--profile", str(path))

    return act


def words(*given: str, env: dict[str, str] | None = None) -> Callable[[Place], Done]:
    return lambda place: place.launch(*given, env=env)


def named(name: str, act: Callable[[Place], Done]) -> Callable[[Place], Done]:
    act.__name__ = name
    return act


def contract(text: str, says: tuple[str, ...], name: str, act: Callable[[Place], Done]) -> object:
    return fault(text, "refused", "contract_invalid", 2, says, named(name, act))


CONTRACT = [
    contract("a profile that is no TOML", ("mine.toml", "expected TOML", "line 4", "correct"), "bad_toml", profile(HEAD + "[env\n")),
    contract("a profile that is no UTF-8", ("mine.toml", "UTF-8", "line 4", "save"), "not_utf8", profile(HEAD.encode() + b"[env]\xff")),
    contract("a profile value that is a number", ("NCCL_MAX_NCHANNELS", "expected a string", "found an integer", "quotes"), "wrong_type", profile(HEAD + "[env]\nNCCL_MAX_NCHANNELS = 8\n")),
    contract("a profile table that is a value", ("expected env to be a table", "found a string", "write [env]"), "no_table", profile('env = "x"\n' + HEAD)),
    contract("an unknown key in a profile", ("[profile]", "found sumary", "correct or remove"), "unknown_key", profile(HEAD + 'sumary = "x"\n[env]\nA = "1"\n')),
    contract("an unknown table in a profile", ("found [envs]", "correct or remove"), "unknown_table", profile(HEAD + '[envs]\nA = "1"\n')),
    contract("a profile without its name", ("the key name", "found none", "add name"), "no_name", profile('[profile]\nsummary = "x"\n[env]\nA = "1"\n')),
    contract("an empty value in a profile", ("NCCL_PROTO", "expected a value", "found an empty string", "[absent]"), "empty_value", profile(HEAD + '[env]\nNCCL_PROTO = ""\n')),
    contract("quotes kept from an env-file", ("NCCL_PROTO", "without quotes", 'found "LL"', "write NCCL_PROTO"), "quotes", profile(HEAD + "[env]\nNCCL_PROTO = '\"LL\"'\n")),
    contract("a variable both set and absent in a profile", ("NCCL_PROTO", "[env] too", "keep one"), "both", profile(HEAD + '[env]\nNCCL_PROTO = "LL"\n[absent]\nNCCL_PROTO = "old"\n')),
    contract("a profile that requires nothing", ("at least one variable", "found none", "add it"), "nothing", profile(HEAD)),
    contract("a secret in a profile", ("HF_TOKEN", "looks like one", "leave it to the launching shell"), "secret_in_profile", profile(HEAD + '[env]\nHF_TOKEN = "planted"\n')),
    contract("a profile that is not there", ("gone.toml", "No such file", "correct the path"), "profile_gone", words("--profile", "./gone.toml")),
    contract("an unknown profile name", ("'pcie-blackwel'", "pcie-blackwell", "correct it"), "unknown_profile", words("--profile", "pcie-blackwel")),
    contract("--set without =", ("expected NAME=VALUE", "found 'NCCL_ALGO'", "write --set"), "no_equals", words("--set", "NCCL_ALGO")),
    contract("--set with a name no shell can export", ("found 'NCCL-ALGO'", "write it like"), "bad_name", words("--set", "NCCL-ALGO=Ring")),
    contract("--set with nothing behind = (an unset shell variable)", ("NCCL_ALGO", "found an empty one", "--absent NCCL_ALGO"), "empty_set", words("--set", "NCCL_ALGO=")),
    contract("--set of a secret", ("SGLANG_API_KEY", "looks like one", "leave it"), "secret", words("--set", "SGLANG_API_KEY=planted")),
    contract("two --set that contradict each other", ("NCCL_PROTO", "found LL and Simple", "keep one"), "two_values", words("--set", "NCCL_PROTO=Simple")),
    contract("--set and --absent of one variable", ("NCCL_PROTO", "found --set NCCL_PROTO=LL", "keep one"), "set_and_absent", words("--absent", "NCCL_PROTO")),
    contract("--set of a variable that steers the loader", ("LD_PRELOAD", "leave it out"), "reserved", words("--set", "LD_PRELOAD=/x.so")),
    contract("--set of a variable of ours", ("SGLANG_EXT_RUN_DIR", "leave it out"), "ours", words("--set", "SGLANG_EXT_RUN_DIR=/x")),
    contract("a line break in a shell variable", ("NCCL_TOPO_FILE", "line break", "unset it"), "line_break", words(env={"NCCL_TOPO_FILE": "a\nb"})),
]  # fmt: skip


def bare(place: Place) -> None:
    """As from a checkout: armed by sitecustomize/ on PYTHONPATH, not by the installed .pth."""
    (place.site / "sglang_ext.pth").unlink()


def _flag_E(place: Place) -> Done:
    bare(place)
    return place.launch(flags=["-E"], env={"PYTHONPATH": str(ROOT / "sitecustomize")})


def _flag_I(place: Place) -> Done:
    bare(place)
    return place.launch(flags=["-I"], env={"PYTHONPATH": str(ROOT / "sitecustomize")})


def _flag_S(place: Place) -> Done:
    return place.launch(flags=["-S"], env={"PYTHONPATH": str(place.site)})


def _not_armed(place: Place) -> Done:
    bare(place)
    return place.launch()


def _switched_off(place: Place) -> Done:
    return place.launch(env={"SGLANG_EXT": "0"})


def _port_taken(place: Place) -> Done:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        try:
            return place.launch("--port", str(other.server_port))
        finally:
            other.shutdown()


def _port_invalid(place: Place) -> Done:
    return place.launch("--port", "70000")


def _dry_run_of_nothing(place: Place) -> Done:
    command = [place.python, "-m", "sglang_ext.launch", "--dry-run", "--model-path", "none"]
    return run(*command, env=place.environment({}), cwd="/")


def _deterministic(place: Place) -> Done:
    return place.launch("--set", "NCCL_ALGO=Ring", "--enable-deterministic-inference", "--tp", "2")


def _run_dir_exists(place: Place) -> Done:
    (place.folder / "run").mkdir(mode=0o700)
    return place.launch("--run-dir", str(place.folder / "run"))


def _run_dir_unwritable(place: Place) -> Done:
    (place.folder / "closed").mkdir(mode=0o555)
    if os.geteuid() == 0 and not nobody_can_run():
        pytest.skip("needs a Python that another user can run")
    before = AS_NOBODY if os.geteuid() == 0 else ()
    place.cache.mkdir()
    if before:
        os.chown(place.cache, NOBODY, NOBODY)
    return place.launch("--run-dir", str(place.folder / "closed" / "run"), before=before)


def _run_dir_nowhere(place: Place) -> Done:
    return place.launch("--run-dir", str(place.folder / "gone" / "run"))


def _run_base_open(place: Place) -> Done:
    (place.runtime / "sglang-ext").mkdir()
    (place.runtime / "sglang-ext").chmod(0o777)
    return place.launch()


def _run_base_is_a_link(place: Place) -> Done:
    (place.folder / "elsewhere").mkdir(mode=0o700)
    (place.runtime / "sglang-ext").symlink_to(place.folder / "elsewhere")
    return place.launch()


def _run_base_of_another_user(place: Place) -> Done:
    needs_other_users()
    (place.runtime / "sglang-ext").mkdir(mode=0o700)
    os.chown(place.runtime, NOBODY, NOBODY)
    place.cache.mkdir()
    os.chown(place.cache, NOBODY, NOBODY)
    return place.launch(before=AS_NOBODY)


def _run_disk_full(place: Place) -> Done:
    if not can_mount():
        pytest.skip("needs the right to mount")
    disk = place.folder / "disk"
    # The folders fit (a tmpfs counts pages of files only), a file does not.
    filled = ("sh", "-c", 'head -c 100000 /dev/zero > "$0/full" 2>/dev/null; exec "$@"', str(disk))
    return place.launch("--run-dir", str(disk / "run"), before=(*small_disk(disk), *filled))


START = [
    fault("python -E, in a checkout", "refused", "hook_not_armed", 1, ("-E or -I", "drop the flag"), _flag_E),
    fault("python -I, in a checkout", "refused", "hook_not_armed", 1, ("-E or -I", "drop the flag"), _flag_I),
    fault("python -S", "refused", "hook_not_armed", 1, ("-S", "drop -S"), _flag_S),
    fault("neither .pth nor sitecustomize was read", "refused", "hook_not_armed", 1, (".pth", "pip install sglang-ext"), _not_armed),
    fault("SGLANG_EXT=0 under the launcher", "refused", "switched_off", 1, ("SGLANG_EXT=0", "unset it"), _switched_off),
    fault("the port is taken by another program", "refused", "port_taken", 1, ("127.0.0.1", "by pid", "choose another --port"), _port_taken),
    fault("a port that is none", "refused", "port_invalid", 2, ("70000", "65535"), _port_invalid),
    fault("a dry run without a contract", "refused", "no_contract", 2, ("found an empty one", "--profile"), _dry_run_of_nothing),
    fault("a flag that needs another value", "refused", "arguments_fight_contract", 2, ("NCCL_ALGO", "expected Ring", "allreduce:tree", "drop"), _deterministic),
    fault("the run directory exists", "refused", "run_dir_unusable", 2, ("exists already", "name one that does not"), _run_dir_exists),
    fault("the run directory cannot be made", "refused", "run_dir_unusable", 2, ("Permission denied", "--run-dir"), _run_dir_unwritable),
    fault("the run directory's parent is not there", "refused", "run_dir_unusable", 2, ("No such file", "--run-dir"), _run_dir_nowhere),
    fault("the folder of run directories is open to others", "refused", "run_dir_unusable", 2, ("mode 0777", "expected 0700", "chmod 700"), _run_base_open),
    fault("the folder of run directories is a link", "refused", "run_dir_unusable", 2, ("link", "name another"), _run_base_is_a_link),
    fault("the folder of run directories is another user's", "refused", "run_dir_unusable", 2, ("uid 0", "expected 65534"), _run_base_of_another_user),
    fault("the run directory's disk is full", "refused", "run_dir_unusable", 2, ("No space left", "--run-dir"), _run_disk_full),
]  # fmt: skip


@pytest.mark.parametrize(("row", "act"), [*CONTRACT, *START])
def test_refused(
    row: Row, act: Callable[[Place], Done], place: Place, matrix: Matrix, request: pytest.FixtureRequest
) -> None:
    done = act(place)
    assert "planted" not in done.out + done.err
    names = {str(place.folder / "mine.toml"): "mine.toml", str(place.folder): "DIR"}
    matrix.add(request, row, refused(row, done), names)
    assert not list(Path(place.runtime).rglob("run.json")), "nothing was started"
