"""Agreement through a store: who differs is named, and one silent rank costs a time-out, not a hang."""

from __future__ import annotations

import datetime
import threading
import time
from typing import Any

import pytest

from sglang_ext.contract.decide import decide
from sglang_ext.contract.names import NODE_LOCAL
from sglang_ext.delivery.agreement import LONGEST, TIMEOUT, TIMEOUT_VARIABLE, agree, differing, timeout
from sglang_ext.delivery.context import Context
from sglang_ext.delivery.options import LOG_VARIABLES
from sglang_ext.delivery.seams.scheduler import own_log
from sglang_ext.delivery.supervisor import nccl_log
from sglang_ext.run.directory import RunDirectory


class MemoryStore:
    """What torch.distributed.Store does, for threads of one process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self.changed:
            self.values[key] = value.encode()
            self.changed.notify_all()

    def wait(self, keys: list[str], timeout: datetime.timedelta) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: all(k in self.values for k in keys), timeout.total_seconds()):
                raise RuntimeError(f"wait timeout after {timeout}, keys: {', '.join(keys)}\nat Store.cpp:1")

    def get(self, key: str) -> bytes:
        with self.changed:
            return self.values[key]


def statement(contract: str = "c" * 64, patchset: str = "p" * 64, **nccl: str) -> dict[str, Any]:
    return {"contract": contract, "patchset": patchset, "nccl": nccl}


def together(statements: list[dict[str, Any]], timeout: float = 5.0) -> list[tuple[str | None, str]]:
    """Every rank in a thread of its own."""
    store = MemoryStore()
    results: list[tuple[str | None, str]] = [(None, "")] * len(statements)

    def rank(number: int) -> None:
        results[number] = agree(store, number, len(statements), statements[number], timeout)

    threads = [threading.Thread(target=rank, args=(n,)) for n in range(len(statements))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_equal_ranks_differ_in_nothing() -> None:
    assert differing({0: statement(NCCL_ALGO="Ring"), 1: statement(NCCL_ALGO="Ring")}) == []
    assert differing({0: statement()}) == []


@pytest.mark.parametrize(
    ("nodes", "values", "fault"),
    [
        ((0, 0, 1, 1), ("eth0", "eth0", "ens5", "ens5"), None),  # every host has interfaces of its own
        (
            (0, 0, 1, 1),
            ("eth0", "ens5", "ens5", "ens5"),
            "NCCL_SOCKET_IFNAME is eth0 on rank 0 but ens5 on ranks 1, 2, 3",
        ),
        (
            (0, 0, 1, 1),
            ("eth0", "eth0", None, None),
            "NCCL_SOCKET_IFNAME is eth0 on ranks 0, 1 but absent on ranks 2, 3",
        ),
    ],
)
def test_what_a_node_has_of_its_own(nodes: tuple[int, ...], values: tuple[str | None, ...], fault: str | None) -> None:
    stated = {}
    for rank, (node, value) in enumerate(zip(nodes, values, strict=True)):
        stated[rank] = statement(NCCL_ALGO="Ring", **({} if value is None else {"NCCL_SOCKET_IFNAME": value})) | {
            "node": node
        }
    assert differing(stated) == ([] if fault is None else [fault])


def test_the_contract_that_is_compared_leaves_that_out() -> None:
    ours, theirs = (decide(None, ["NCCL_ALGO=Ring", f"NCCL_HOSTID={host}"], (), {}) for host in ("a", "b"))
    assert ours.digest != theirs.digest
    assert ours.without(NODE_LOCAL).digest == theirs.without(NODE_LOCAL).digest
    assert ours.without(NODE_LOCAL).digest == decide(None, ["NCCL_ALGO=Ring"], (), {}).digest


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("", TIMEOUT), ("soon", TIMEOUT), ("nan", TIMEOUT), ("30", 30.0), ("0", 1.0), ("-inf", 1.0), ("inf", LONGEST)],
)
def test_how_long_the_others_are_waited_for(given: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TIMEOUT_VARIABLE, given)
    assert timeout() == seconds
    assert datetime.timedelta(seconds=timeout())  # what the store is given


def test_what_a_launcher_set_for_its_own_node_may_differ() -> None:
    """--nccl-log on several nodes: each log lies in the run directory of its node; one without a log is no fault either."""
    one = {**statement(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE="/run/a/nccl.%h.%p.log"), "own": list(LOG_VARIABLES)}
    two = {**statement(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE="/run/b/nccl.%h.%p.log"), "own": list(LOG_VARIABLES)}
    assert differing({0: one, 1: two}) == []
    assert differing({0: one, 1: {**statement(NCCL_DEBUG="WARN"), "own": []}}) == []
    (clause,) = differing({0: one, 1: {**two, "nccl": {**two["nccl"], "NCCL_ALGO": "Ring"}}})
    assert clause == "NCCL_ALGO is absent on rank 0 but Ring on rank 1"
    assert len(differing({0: statement(NCCL_DEBUG_FILE="/a"), 1: statement(NCCL_DEBUG_FILE="/b")})) == 1


@pytest.mark.parametrize("folder", ["/run/a", "/run/100%/a"])
def test_only_the_log_of_the_run_itself_is_the_launchers_own(folder: str) -> None:
    context = Context(RunDirectory(folder), {"id": "r"}, decide(None, (), (), {}))
    assert own_log(context, dict(nccl_log(folder, "init"))) == list(LOG_VARIABLES)
    for file in (None, "/tmp/nccl.%h.%p.log", f"{folder}-2/nccl.log"):
        assert own_log(context, {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": file}) == []


def test_a_store_that_is_gone_is_no_agreement_and_no_error() -> None:
    class Gone(MemoryStore):
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("Broken pipe\nat Store.cpp:1")

    code, message = agree(Gone(), 1, 2, statement(), 0.1)
    assert (
        code == "agreement_timeout"
        and "rank 1 of 2 could not state its environment to the others (Broken pipe)" in message
    )


def test_who_holds_what_is_named() -> None:
    clauses = differing(
        {
            0: statement(NCCL_ALGO="Ring", NCCL_PROTO="LL"),
            1: statement(NCCL_ALGO="Tree", NCCL_PROTO="LL"),
            2: statement(NCCL_ALGO="Ring", NCCL_PROTO="LL", NCCL_DEBUG="INFO"),
        }
    )
    assert clauses == [
        "NCCL_ALGO is Ring on ranks 0, 2 but Tree on rank 1",
        "NCCL_DEBUG is absent on ranks 0, 1 but INFO on rank 2",
    ]


def test_contract_and_patch_set_are_compared_too() -> None:
    clauses = differing({0: statement("a" * 64, "b" * 64), 1: statement("c" * 64, "d" * 64)})
    assert clauses == [
        f"the contract is {'a' * 12} on rank 0 but {'c' * 12} on rank 1",
        f"the patch set is {'b' * 12} on rank 0 but {'d' * 12} on rank 1",
    ]


def test_digests_that_begin_alike_are_told_apart() -> None:
    assert len(differing({0: statement("a" * 63 + "0"), 1: statement("a" * 63 + "1")})) == 1


def test_ranks_that_hold_the_same_agree() -> None:
    assert together([statement(NCCL_ALGO="Ring")] * 4) == [(None, "4 ranks hold the same")] * 4


def test_every_rank_learns_of_one_that_differs() -> None:
    for code, message in together([statement(NCCL_ALGO="Ring"), statement(NCCL_ALGO="Ring"), statement()]):
        assert code == "ranks_differ"
        assert message.startswith("NCCL_ALGO is Ring on ranks 0, 1 but absent on rank 2; start every rank")


def test_a_silent_rank_costs_the_time_out_and_is_named() -> None:
    began = time.monotonic()
    code, message = agree(MemoryStore(), 0, 2, statement(), 0.2)
    assert code == "agreement_timeout"
    assert message.startswith("rank 1 of 2 did not state its environment to rank 0 within 0.2 s (wait timeout after")
    assert "\n" not in message and "Store.cpp" not in message
    assert 0.2 <= time.monotonic() - began < 2


def test_what_is_no_statement_is_no_agreement() -> None:
    store = MemoryStore()
    store.set("sglang_ext/agreement/1/1", "{torn")
    assert agree(store, 0, 2, statement(), 1.0)[0] == "agreement_timeout"
