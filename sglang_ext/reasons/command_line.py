"""What a command line can be found to be."""

from __future__ import annotations

from sglang_ext.reasons.model import FAIL, Reason

ROWS: dict[str, Reason] = {
    "contract_invalid": Reason(
        FAIL,
        "A profile, --set, --absent, the shell, or a run's contract.json states something no contract can hold, or was "
        "edited.",
        "Correct what the message names.",
        2,
    ),
    "no_contract": Reason(
        FAIL,
        "Neither the command line nor the server's run says what its workers must hold: there is nothing to judge.",
        "Name it with --profile, --set or --absent.",
        2,
    ),
    "several_servers": Reason(
        FAIL,
        "More than one server could be meant.",
        "Name one with --pid, --port or --run; `sglang-ext verify-env --all` looks at each.",
        2,
    ),
}
