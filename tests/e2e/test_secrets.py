"""A planted secret, wherever one can be, comes out nowhere: no output, no file of a run, no report, no log line of ours."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sglang_ext.contract.names import looks_secret
from tests.rig.server import Server

from .conftest import NCCL, Done, cli, sets

PLANTED = f"planted-{secrets.token_hex(8)}"
# Names that hold secrets in real deployments, and names that look like ours while they do.
NAMES = (
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "SGLANG_API_KEY", "SGLANG_ADMIN_API_KEY", "OPENAI_API_KEY", "WANDB_API_KEY",
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GITHUB_TOKEN", "DATABASE_PASSWORD", "PGPASSWORD",
    "SSH_PRIVATE_KEY", "TLS_KEY", "KEY", "AUTHORIZATION", "BEARER", "MY_CREDENTIALS", "REGISTRY_PASSPHRASE",
    "NCCL_AUTH_TOKEN", "NCCL_SECRET_THING", "NCCL_NET_PASSWORD", "CUDA_LICENSE_KEY", "TORCH_HUB_TOKEN", "NVIDIA_API_KEY",
    "UCX_TLS_PRIVATE_KEY", "OMP_SECRET", "SGLANG_EXT_TOKEN",
)  # fmt: skip
# Not secret by name: outside the contract and no tuning variable, so they must not come out either.
OTHERS = ("NO_PROXY_URL", "DATABASE_URL", "MY_SETTING", "PS1")

PROFILE = f"""
[profile]
name = "mine"
summary = "{PLANTED}"
measured_on = {{ gpu = "{PLANTED}", link = "{PLANTED}", model = "{PLANTED}" }}
risks = ["{PLANTED}"]
[env]
NCCL_PROTO = "LL"
[absent]
NCCL_P2P_DISABLE = "{PLANTED}"
"""


def test_the_names_look_secret() -> None:
    assert [name for name in NAMES if not looks_secret(name)] == []


@pytest.fixture(scope="module")
def server(
    models: dict[str, Path], logs: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    profile = tmp_path_factory.mktemp("profile") / "mine.toml"
    profile.write_text(PROFILE)
    started = Server(
        logs("secrets"),
        options=["--profile", str(profile), "--set", "NCCL_ALGO=Ring"],
        model=models["llama"],
        environment={**dict.fromkeys((*NAMES, *OTHERS), PLANTED), "NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": "0"},
        flags=["--api-key", PLANTED, "--admin-api-key", PLANTED],
        tp=1,
    )
    with started:
        # /ready wants the key: ours says when it serves.
        yield started.wait(lambda: "sglang-ext: serving" in started.text())


def clean(done: Done, status: int) -> Done:
    assert done.status == status, done.out + done.err
    assert PLANTED not in done.out + done.err
    return done


def upstream_line(line: str) -> bool:
    """Upstream prints its arguments; what it does about keys in them is its own affair."""
    return "server_args=" in line or "ServerArgs(" in line


def test_the_launch_says_nothing(server: Server) -> None:
    log = server.text()
    assert "PASS: 1 of 1 workers hold the contract" in log
    told = [line for line in log.splitlines() if PLANTED in line and not upstream_line(line)]
    # The one text that is there to be shown: the reason the profile gives, where the shell contradicts it.
    assert [line for line in told if "NCCL_P2P_DISABLE: profile:mine (absent) wins over shell 0" not in line] == []
    left_out = set(re.findall(r"warning: (\w+): left out of the contract, because the name looks like a secret", log))
    assert left_out == {name for name in NAMES if name.startswith("NCCL_")}


def test_reports_say_nothing(server: Server, tmp_path: Path) -> None:
    clean(cli("verify-env"), 0)
    clean(cli("verify-env", "--json"), 0)
    clean(cli("verify-env", "--all", "--json"), 0)
    clean(cli("verify-env", "--all-processes", "--json"), 0)
    clean(cli("verify-env", "--set", "NCCL_PROTO=Simple", "--json"), 1)
    clean(cli("verify-env", "--pid", str(server.pid), *sets(NCCL), "--json"), 0)
    clean(cli("gate", "--json", str(tmp_path / "gate.json"), "--", "true"), 0)
    assert PLANTED not in (tmp_path / "gate.json").read_text()


def test_no_file_of_ours_holds_it(server: Server) -> None:
    found = re.search(r"; run (\S+)", server.text())
    assert found
    files = [p for p in Path(found.group(1)).rglob("*") if p.is_file()]
    files += [p for p in Path(os.environ["XDG_CACHE_HOME"], "sglang-ext").rglob("*") if p.is_file()]
    assert len(files) >= 8  # four of the run, a worker's, and three copies
    for path in files:
        assert PLANTED.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    "words",
    [
        ("--set", f"HF_TOKEN={PLANTED}"),
        ("--set", f"HF_TOKEN:{PLANTED}"),
        ("--set", f"NCCL_AUTH_TOKEN={PLANTED}"),
        ("--set", f"AWS SECRET_ACCESS_KEY {PLANTED}=x"),
        ("--absent", f"API_KEY={PLANTED}"),
    ],
)
@pytest.mark.parametrize("verb", ["launch", "verify-env", "gate"])
def test_a_command_line_with_a_secret_is_refused_without_it(verb: str, words: tuple[str, ...]) -> None:
    rest = {"launch": ("--model-path", "none"), "verify-env": (), "gate": ("--", "true")}[verb]
    done = clean(cli(verb, *words, *rest), 2)
    assert "contract_invalid" in done.err


@pytest.mark.parametrize(
    "text",
    [
        f'[env]\nHF_TOKEN = "{PLANTED}"',
        f"[env]\nHF_TOKEN = {PLANTED}",
        f'[env]\nHF_TOKEN = ["{PLANTED}"]',
        f'[absent]\nHF_TOKEN = "{PLANTED}"',
        f'[env]\n"HF_TOKEN {PLANTED}" = "x"',
    ],
)
def test_a_profile_with_a_secret_is_refused_without_it(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[profile]\nname = "mine"\nsummary = "x"\n' + text)
    assert "contract_invalid" in clean(cli("verify-env", "--profile", str(path)), 2).err


def test_upstreams_own_process_list_is_not_ours(server: Server) -> None:
    """What we cannot help: an argument is in the command line of upstream's process, for whoever may see it."""
    assert PLANTED.encode() in Path(f"/proc/{server.pid}/cmdline").read_bytes()
