"""The contract: digest, JSON, repair; who decides; which names it may hold and a report may show."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

from sglang_ext.contract.decide import decide
from sglang_ext.contract.model import Change, Contract, ContractError, Difference, Term
from sglang_ext.contract.names import is_nccl, is_tuning, looks_secret, shown
from sglang_ext.contract.profile import Profile, parse_profile

SECRET = "s3cr3t-value"
UNSET = object()


def contract(**wants: str | None) -> Contract:
    return Contract({name: Term(name, want, "flag") for name, want in wants.items()})


def profile(env: str = "", absent: str = "", name: str = "p") -> Profile:
    text = f'[profile]\nname = "{name}"\nsummary = "s"\n[env]\n{env}\n[absent]\n{absent}\n'
    return parse_profile(text.encode(), "p.toml")


def refusal(sets: list[str], absents: list[str] | None = None, shell: dict[str, str] | None = None) -> str:
    with pytest.raises(ContractError) as caught:
        decide(None, sets, absents or [], shell or {})
    message = str(caught.value)
    assert "expected" in message and "found" in message and "\n" not in message
    return message


# --- model


def test_digest_is_stable_across_releases() -> None:
    # Stored in receipts: this very number may only change together with the schema number.
    assert contract(NCCL_PROTO="LL", NCCL_P2P_DISABLE=None).digest == (
        "026acaab8185d258586c6c59a72cbae8314f52717d262490d144bf516fff1ca9"
    )


def test_digest_knows_the_requirement_and_not_the_source_or_the_order() -> None:
    one = Contract({"A": Term("A", "1", "flag"), "B": Term("B", None, "profile:p")})
    other = Contract({"B": Term("B", None, "shell"), "A": Term("A", "1", "shell")})
    assert one.digest == other.digest
    assert one != other  # the same requirement, other sources
    assert list(one.terms) == list(other.terms) == ["A", "B"]


@pytest.mark.parametrize("other", [{"A": "2"}, {"A": None}, {"A": ""}, {"B": "1"}, {"A": "1", "B": None}, {}])
def test_another_requirement_has_another_digest(other: dict[str, str | None]) -> None:
    assert contract(**other).digest != contract(A="1").digest


def test_absent_is_neither_empty_nor_the_word_null() -> None:
    assert len({contract(A=want).digest for want in (None, "", "null", "None")}) == 4


def test_json_is_the_published_shape_and_survives_a_round_trip() -> None:
    made = Contract({"X": Term("X", None, "shell"), "A": Term("A", "1", "profile:p")}, ("a warning",))
    assert made.to_json() == {
        "digest": made.digest,
        "variables": {"A": {"want": "1", "source": "profile:p"}, "X": {"want": None, "source": "shell"}},
    }
    read = Contract.from_json(json.loads(json.dumps(made.to_json())))
    assert read == made and read.digest == made.digest and hash(read) == hash(made)
    assert read.warnings == ()


def test_json_carries_a_value_that_is_no_utf8() -> None:
    made = contract(NCCL_X=os.fsdecode(b"\xff\xfe"))
    assert Contract.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_json_may_grow() -> None:
    obj: dict[str, Any] = contract(A="1").to_json()
    obj["added_later"] = 1
    obj["variables"]["A"]["added_later"] = 1
    assert Contract.from_json(obj) == contract(A="1")


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ((), [], "JSON object"),
        (("variables",), UNSET, "variables"),
        (("variables",), [], "variables"),
        (("variables", "A"), "1", "variable A"),
        (("variables", "A", "want"), UNSET, '"want"'),
        (("variables", "A", "want"), 1, "found int"),
        (("variables", "A", "want"), "a\nb", "line break"),
        (("variables", "A", "want"), "2", "digest"),
        (("variables", "A", "source"), UNSET, '"source"'),
        (("variables", "A", "source"), "profile:", '"source"'),
        (("variables", "LD_PRELOAD"), {"want": "x.so", "source": "flag"}, "LD_PRELOAD"),
        (("variables", "HF_TOKEN"), {"want": SECRET, "source": "flag"}, "HF_TOKEN"),
        (("digest",), "0" * 64, "digest"),
        (("digest",), UNSET, "digest"),
    ],
)
def test_json_that_is_no_contract_is_refused(path: tuple[str, ...], value: object, named: str) -> None:
    obj: Any = copy.deepcopy(contract(A="1").to_json())
    holder = {"": obj}
    key, at = "", holder
    for step in path:
        at, key = at[key], step
    if value is UNSET:
        del at[key]
    else:
        at[key] = value
    with pytest.raises(ContractError) as caught:
        Contract.from_json(holder[""])
    assert named in str(caught.value) and SECRET not in str(caught.value)
    assert "expected" in str(caught.value) and "found" in str(caught.value)


def test_differences_tell_absent_from_empty() -> None:
    wanted = contract(A="1", B=None, C="", D="x", E=None)
    assert wanted.differences({"A": "1", "B": "", "D": "x ", "Z": "extra"}) == [
        Difference("B", None, ""),
        Difference("C", "", None),
        Difference("D", "x", "x "),
    ]
    assert str(Difference("D", "x", "x ")) == "D: expected x, found 'x '"
    assert str(Difference("B", None, "")) == "B: expected (absent), found ''"


def test_apply_repairs_exactly_the_differences_and_only_once() -> None:
    wanted = contract(A="1", B=None, C="3")
    env = {"A": "0", "B": "2", "C": "3", "OTHER": "kept"}
    assert wanted.apply_to(env) == [Change("A", "0", "1"), Change("B", "2", None)]
    assert env == {"A": "1", "C": "3", "OTHER": "kept"}
    assert wanted.apply_to(env) == [] and wanted.differences(env) == []
    assert str(Change("B", "2", None)) == "B 2 -> (absent)"


def test_apply_to_os_environ_reaches_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_CONTRACT_B", "left over")
    monkeypatch.setenv("NCCL_CONTRACT_A", "old")
    contract(NCCL_CONTRACT_A="new", NCCL_CONTRACT_B=None).apply_to(os.environ)
    script = "import os; print(os.environ.get('NCCL_CONTRACT_A'), os.environ.get('NCCL_CONTRACT_B'))"
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert child.stdout == "new None\n"


def test_a_contract_is_decided_once() -> None:
    terms = {"A": Term("A", "1", "flag")}
    made = Contract(terms)
    terms["B"] = Term("B", "1", "flag")
    assert list(made.terms) == ["A"]
    with pytest.raises(TypeError):
        made.terms["B"] = Term("B", "1", "flag")  # type: ignore[index]
    for name in ("terms", "warnings", "digest", "other"):
        with pytest.raises(AttributeError):
            setattr(made, name, None)
        with pytest.raises(AttributeError):
            delattr(made, name)


def test_a_term_under_another_name_is_refused() -> None:
    with pytest.raises(ContractError, match="expected the term of A under its own name, found 'B'"):
        Contract({"A": Term("B", "1", "flag")})


def test_emptiness_pickle_and_repr() -> None:
    assert not Contract() and len(Contract()) == 0 and Contract().differences({"NCCL_X": "1"}) == []
    made = Contract({"A": Term("A", "1", "flag")}, ("w",))
    assert made and len(made) == 1
    copied = pickle.loads(pickle.dumps(made))
    assert copied == made and copied.warnings == ("w",)
    assert "A=1 [flag]" in repr(made)
    assert contract(A="1") != {"A": "1"}


def test_importing_the_room_stays_light() -> None:
    # What a supervisor or worker would wait for, and what a leaf room may not know.
    heavy = "{'tomllib', 'json', 'hashlib', 'dataclasses', 'inspect', 'importlib.metadata', 'pathlib'}"
    script = (
        "import sys; before = set(sys.modules); import sglang_ext; ours = set(sys.modules); "
        "import sglang_ext.contract; new = set(sys.modules) - ours; "
        f"print(sorted(m for m in new if m in {heavy} or "
        "(m.startswith('sglang_ext.') and not m.startswith('sglang_ext.contract'))))"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"


# --- decide


def test_precedence_is_flag_profile_shell_and_every_contradiction_is_said() -> None:
    made = decide(
        profile('NCCL_PROTO = "LL128"\nNCCL_ALGO = "Ring"\nCUDA_DEVICE_MAX_CONNECTIONS = "32"'),
        ["NCCL_PROTO=LL", "OMP_NUM_THREADS=1"],
        [],
        {"NCCL_PROTO": "Simple", "NCCL_ALGO": "Tree", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4",
         "CUDA_DEVICE_MAX_CONNECTIONS": "1", "CUDA_VISIBLE_DEVICES": "0", "EDITOR": "vi"},
    )  # fmt: skip
    assert list(made.terms.values()) == [
        Term("CUDA_DEVICE_MAX_CONNECTIONS", "32", "profile:p"),
        Term("NCCL_ALGO", "Ring", "profile:p"),
        Term("NCCL_DEBUG", "INFO", "shell"),
        Term("NCCL_PROTO", "LL", "flag"),
        Term("OMP_NUM_THREADS", "1", "flag"),
    ]
    assert made.warnings == (
        "CUDA_DEVICE_MAX_CONNECTIONS: profile:p 32 wins over shell 1",
        "NCCL_ALGO: profile:p Ring wins over shell Tree",
        "NCCL_PROTO: flag LL wins over profile:p LL128",
        "NCCL_PROTO: flag LL wins over shell Simple",
        "OMP_NUM_THREADS: flag 1 wins over shell 4",
    )


def test_agreement_is_no_contradiction() -> None:
    made = decide(profile('NCCL_PROTO = "LL"'), ["NCCL_PROTO=LL"], ["NCCL_X"], {"NCCL_PROTO": "LL"})
    assert made.warnings == () and made.terms["NCCL_PROTO"].source == "flag"


def test_without_a_profile_the_shell_is_the_contract() -> None:
    made = decide(None, [], [], {"NCCL_PROTO": "LL", "NCCL_EMPTY": "", "CUDA_X": "1", "ncclx": "1"})
    assert {name: term.want for name, term in made.terms.items()} == {"NCCL_PROTO": "LL", "NCCL_EMPTY": ""}
    assert not decide(None, [], [], {"PATH": "/bin"})


def test_absence_wins_and_says_why() -> None:
    made = decide(
        profile(absent='NCCL_P2P_DISABLE = "left over"'),
        [],
        ["NCCL_PROTO"],
        {"NCCL_P2P_DISABLE": "1", "NCCL_PROTO": "LL"},
    )
    assert made.terms["NCCL_P2P_DISABLE"] == Term("NCCL_P2P_DISABLE", None, "profile:p")
    assert made.warnings == (
        "NCCL_P2P_DISABLE: profile:p (absent) wins over shell 1 (left over)",
        "NCCL_PROTO: flag (absent) wins over shell LL",
    )


def test_a_flag_may_set_what_the_profile_forbids() -> None:
    made = decide(profile(absent='NCCL_X = "why"'), ["NCCL_X=1"], [], {})
    assert made.terms["NCCL_X"].want == "1"
    assert made.warnings == ("NCCL_X: flag 1 wins over profile:p (absent)",)


def test_values_are_taken_whole() -> None:
    made = decide(None, ["NCCL_ALGO=allreduce:tree;x=y", "NCCL_B= spaced ", "NCCL_FUTURE_KNOB=7"], [], {})
    assert made.terms["NCCL_ALGO"].want == "allreduce:tree;x=y"
    assert made.terms["NCCL_B"].want == " spaced "
    assert made.terms["NCCL_FUTURE_KNOB"].want == "7"


def test_asking_twice_for_the_same_is_fine() -> None:
    made = decide(None, ["NCCL_A=1", "NCCL_A=1"], ["NCCL_B", "NCCL_B"], {})
    assert {name: term.want for name, term in made.terms.items()} == {"NCCL_A": "1", "NCCL_B": None}


@pytest.mark.parametrize(
    ("sets", "absents", "named", "fix"),
    [
        (["NCCL_PROTO"], [], "'NCCL_PROTO'", "--set NCCL_PROTO=LL"),
        (["=LL"], [], "''", "write it like"),
        (["NCCL-PROTO=LL"], [], "'NCCL-PROTO'", "write it like NCCL_PROTO"),
        (["1NCCL=LL"], [], "'1NCCL'", "write it like"),
        (["NCCL_\u00c4=LL"], [], "NCCL_", "write it like"),
        (["NCCL_PROTO =LL"], [], "'NCCL_PROTO '", "write it like"),
        (["NCCL_A=1", "NCCL_A=2"], [], "NCCL_A: expected one value, found 1 and 2", "keep one"),
        (["NCCL_A=1"], ["NCCL_A"], "--set NCCL_A=1", "keep one"),
        (["NCCL_A="], [], "NCCL_A", "--absent NCCL_A"),
        (["NCCL_A=a\0b"], [], "NCCL_A", "remove it"),
        (["NCCL_A=a\nb"], [], "NCCL_A", "remove it"),
        (["NCCL_A=a\rb"], [], "NCCL_A", "remove it"),
        ([], ["NCCL_A=1"], "'NCCL_A=1'", "write it like"),
        ([], [""], "''", "write it like"),
        ([], ["PATH"], "PATH", "leave it out"),
    ],
)
def test_a_flag_that_cannot_be_required_is_refused(sets: list[str], absents: list[str], named: str, fix: str) -> None:
    message = refusal(sets, absents)
    assert named in message and fix in message


@pytest.mark.parametrize(
    "name",
    [
        "SPT_NOENV",
        "SGLANG_EXT",
        "SGLANG_EXT_RUN_ID",
        "PYTHONPATH",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "PATH",
        "_",
    ],
)
def test_names_that_deliver_the_contract_cannot_be_in_it(name: str) -> None:
    assert name in refusal([f"{name}=1"]) and name in refusal([], [name])


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "SGLANG_API_KEY", "NCCL_SECRET_X", "db_password", "AWS_ACCESS_KEY_ID", "SSL_KEY", "KEY"],
)
def test_a_secret_is_refused_and_never_repeated(name: str) -> None:
    for sets in ([f"{name}={SECRET}"], [f"{name}={SECRET}", f"{name}=other"], [f"{name}:{SECRET}"],
                 [f"{name} {SECRET}=x"], [f"{name}={SECRET}\n"], [f"{name} {SECRET}"]):  # fmt: skip
        assert SECRET not in refusal(sets)
    assert name in refusal([f"{name}={SECRET}"]) and "shell" in refusal([f"{name}={SECRET}"])
    assert SECRET not in refusal([], [name], {name: SECRET})


def test_the_shells_secrets_and_misspelt_names_are_left_out_with_a_word() -> None:
    made = decide(None, [], [], {"NCCL_AUTH_TOKEN": SECRET, "NCCL_IB-DISABLE": "1", "NCCL_A": "1"})
    assert list(made.terms) == ["NCCL_A"]
    assert SECRET not in "".join(made.warnings)
    assert [warning.split(":")[0] for warning in made.warnings] == ["NCCL_AUTH_TOKEN", "'NCCL_IB-DISABLE'"]


def test_a_shell_value_of_two_lines_is_refused() -> None:
    assert "shell variable NCCL_A" in refusal([], [], {"NCCL_A": "1\n2"})
    # Where something else decides, the shell's value is only reported, on one line.
    made = decide(None, ["NCCL_A=1"], [], {"NCCL_A": "1\n2"})
    assert made.warnings == ("NCCL_A: flag 1 wins over shell '1\\n2'",)


def test_decide_changes_none_of_its_arguments() -> None:
    shell, sets = {"NCCL_A": "1"}, ["NCCL_A=2"]
    decide(profile('NCCL_B = "1"'), sets, ["NCCL_C"], shell)
    assert shell == {"NCCL_A": "1"} and sets == ["NCCL_A=2"]


def test_precedence_holds_for_every_combination() -> None:
    # Three sources, each silent, asking for one of two values, or (flag, profile) for absence: all 4 * 4 * 3.
    for flag in (UNSET, "1", "2", None):
        for asked in (UNSET, "1", "2", None):
            for inherited in (UNSET, "1", "2"):
                chosen = profile(
                    f'NCCL_A = "{asked}"\n' if isinstance(asked, str) else 'NCCL_Z = "z"',
                    'NCCL_A = "why"' if asked is None else "",
                )
                made = decide(
                    chosen,
                    [f"NCCL_A={flag}"] if isinstance(flag, str) else [],
                    ["NCCL_A"] if flag is None else [],
                    {"NCCL_A": inherited} if isinstance(inherited, str) else {},
                )
                said = [
                    (source, want)
                    for source, want in (("flag", flag), ("profile:p", asked), ("shell", inherited))
                    if want is not UNSET
                ]
                if not said:
                    assert "NCCL_A" not in made.terms
                    continue
                assert (made.terms["NCCL_A"].source, made.terms["NCCL_A"].want) == said[0]
                assert len(made.warnings) == sum(want != said[0][1] for _, want in said)
                assert Contract.from_json(made.to_json()) == made
                env = {} if inherited is UNSET else {"NCCL_A": str(inherited)}
                made.apply_to(env)
                assert made.differences(env) == []


# --- names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NCCL_PROTO", True), ("CUDA_VISIBLE_DEVICES", True), ("SGLANG_SIMULATE_ACC_LEN", True),
        ("TORCHINDUCTOR_CACHE_DIR", True), ("OMP_NUM_THREADS", True), ("TOKENIZERS_PARALLELISM", True),
        ("SGLANG_API_KEY", False), ("VLLM_API_KEY", False), ("SGLANG_ACCESS_TOKEN", False),
        ("SGLANG_EXT", False), ("SGLANG_EXT_RUN_ID", False), ("SGLANG_RUN_ID", False),
        ("PATH", False), ("HOME", False), ("MY_NCCL_PROTO", False), ("nccl_proto", False), ("", False),
    ],
)  # fmt: skip
def test_what_a_report_may_show(name: str, expected: bool) -> None:
    assert is_tuning(name) is expected


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "TOKEN", "SGLANG_API_TOKENS", "SGLANG_TOKENIZER_SECRET", "X_PASSWORD", "X_PASSWD_FILE",
     "GOOGLE_APPLICATION_CREDENTIALS", "OPENAI_API_KEY", "X_API_KEY_2", "TLS_KEY", "hf_token", "KEY"],
)  # fmt: skip
def test_what_looks_like_a_secret(name: str) -> None:
    assert looks_secret(name) and not is_tuning(name)


@pytest.mark.parametrize(
    "name",
    ["NCCL_PROTO", "TOKENIZERS_PARALLELISM", "SGLANG_SIMULATE_ACC_TOKEN_MODE", "SGLANG_INIT_NEW_TOKEN_RATIO",
     "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", "SGLANG_LOG_DECODE_GRAPH_KEY",
     "SGLANG_KEYS_X", "MONKEY"],
)  # fmt: skip
def test_what_only_sounds_like_one(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.parametrize("value", ["http://u:hunter2@h/p", "x=ftp://token@h", "a://b c://d:e@f"])
def test_a_url_with_a_password_is_neither_held_nor_shown(value: str) -> None:
    with pytest.raises(ContractError, match="without a password in it") as refused:
        decide(None, [f"http_proxy={value}"], [], {})
    assert "hunter2" not in str(refused.value)
    assert shown(value) == "(not shown: it holds credentials)"


@pytest.mark.parametrize("value", ["http://host/a@b", "user@host", "tcp://[::1]:5000", "LL"])
def test_other_values_are(value: str) -> None:
    assert decide(None, [f"A_NAME={value}"], [], {}).terms["A_NAME"].want == value
    assert shown(value) == value


def test_is_nccl() -> None:
    assert is_nccl("NCCL_PROTO") and not is_nccl("NCCLPROTO") and not is_nccl("RCCL_X")


def test_values_in_sentences_show_what_would_be_missed() -> None:
    assert [shown(v) for v in (None, "LL", "", "LL ", '"LL"', "a\tb")] == [
        "(absent)", "LL", "''", "'LL '", "'\"LL\"'", "'a\\tb'",
    ]  # fmt: skip
