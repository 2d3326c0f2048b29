"""Where the verified server listens, and that it is that server: whatever else answers on the port is not asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_ext.bench.traffic.client import Address
from sglang_ext.delivery.options import value_of
from sglang_ext.run.directory import RunDirectory, RunError
from sglang_ext.run.listeners import listeners
from sglang_ext.run.process import all_stats, command_line
from sglang_ext.verify.discover import children, descendants

EVERYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # bound to all: reached here


class NoEndpointError(Exception):
    """Nobody can say where to send a request to this server; one sentence."""


def find(report: Mapping[str, Any]) -> Address:
    """The address of the server of a verify report. Raises NoEndpointError."""
    main = report["main"]
    if main is None:
        raise NoEndpointError("the server's main process is gone: there is nobody to send a request to")
    host, port = stated(report)
    pids = {main, *(s.pid for s in descendants(main, children(all_stats())))}
    if not listeners(port, pids):
        raise NoEndpointError(
            f"expected the verified server (pid {main}) to listen on port {port}, found no such socket of its own; "
            "wait until it says it is ready, and run this in its network namespace"
        )
    return Address(EVERYWHERE.get(host, host), port)


def stated(report: Mapping[str, Any]) -> tuple[str, int]:
    """Host and port as the run recorded them; of a server that is not ours, as its command line has them."""
    facts: Mapping[str, Any] | None = None
    if report["run"]:
        try:
            facts = RunDirectory.open(report["run"]["dir"]).read("server.json")
        except RunError as error:
            raise NoEndpointError(str(error)) from None
    if facts is not None:
        host, port = facts.get("host"), facts.get("port")
    else:
        words = command_line(report["main"])
        host, text = value_of(words, ("--host",), "127.0.0.1"), value_of(words, ("--port",), "30000")
        port = int(text) if text.isdigit() else None
    if not isinstance(host, str) or not isinstance(port, int) or not 0 < port < 65536:
        raise NoEndpointError("neither the run nor the server's command line says on which port it listens")
    return host, port
