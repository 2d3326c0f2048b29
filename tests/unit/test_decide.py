"""What a launch's contract shows nowhere: credentials in a value, and in what is given in a name's place."""

from __future__ import annotations

import pytest

from sglang_ext.contract.decide import decide
from sglang_ext.contract.model import ContractError

SECRET = "s3cr3t-value"


def refusal(sets: list[str], absents: list[str] | None = None) -> str:
    with pytest.raises(ContractError) as caught:
        decide(None, sets, absents or [], {})
    message = str(caught.value)
    assert "expected" in message and "found" in message and "\n" not in message
    return message


def test_the_shells_values_with_credentials_are_left_out_with_a_word() -> None:
    url = f"http://u:{SECRET}@h"
    made = decide(None, [], [], {"NCCL_HOSTID": url, "NCCL_A": "1", f"NCCL_{url}": url})
    assert list(made.terms) == ["NCCL_A"] and SECRET not in "".join(made.warnings)
    assert made.warnings[0] == "NCCL_HOSTID: left out of the contract, because its value holds credentials"
    # What a flag asks for is refused: it would be printed and stored.
    assert SECRET not in refusal([f"NCCL_HOSTID={url}"])


def test_a_url_with_credentials_in_place_of_a_name_is_never_repeated() -> None:
    url = f"https://user:{SECRET}@host"
    for text in (url, f"{url}=1", f"{url}/?a=1", f"https://user:{SECRET}=@host"):
        assert SECRET not in refusal([text]) and SECRET not in refusal([], [text])
