"""What keeps a server from being judged at all, and the code it is told by: input for the user to mend, and no verdict."""

from __future__ import annotations

from sglang_ext.contract.model import ContractError
from sglang_ext.run.directory import RunError
from sglang_ext.verify.check import NoContractError
from sglang_ext.verify.select import SeveralServersError

CODES: dict[type[Exception], str] = {
    ContractError: "contract_invalid",
    NoContractError: "no_contract",
    SeveralServersError: "several_servers",
    RunError: "run_dir_unusable",
}
FAULTS: tuple[type[Exception], ...] = tuple(CODES)
UNJUDGED: tuple[type[Exception], ...] = (
    *FAULTS,
    OSError,
)  # of a server that was judged before: it cannot be judged again


def code_of(error: Exception) -> str | None:
    """The code of `reasons.TABLE` for one of them; None for any other error."""
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), None)
