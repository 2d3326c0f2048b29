"""What reading streams costs the client, beside other ways to read them: the processor's share, and whether it keeps up.

    python -m benchmarks.micro.client_cost [--seconds S]

A scripted server on a core of its own sends tokens at a known rate; the client, on one core, reads and stamps. CPU is what its
process took (user and system) while the streams ran, as a share of that time on one core. Kept: tokens per second by the
client's stamps, as a share of what the server's own stamps say it sent. Lag: from the server's stamp before it writes a chunk to
the client's after reading it, over all chunks. Alone: chunks that were read for themselves, as a share of all; a reader
that comes late reads several at once, which is cheap and tells less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from sglang_ext.bench.suites.suite import parse_suite
from sglang_ext.bench.traffic import client
from sglang_ext.bench.traffic.client import PATHS, Address, Stream
from sglang_ext.bench.traffic.figures import Run, figures
from tests.scripted.child import Child
from tests.scripted.script import Script, steady

Bodies = Sequence[Mapping[str, Any]]
TIMEOUT = 600.0
PIECE = 1 << 16
WORK = parse_suite(b'[suite]\nname = "cost"\nsummary = "S"\n[workload]\nprompt = "-"\n', "cost.toml").workload
LOADS = ((1, 100.0, "generate"), (64, 200.0, "completions"), (64, 200.0, "generate"))
REPEATING = 4.0  # seconds at most of many streams of /generate, whose events repeat all text before them


class Cost(NamedTuple):
    cpu: float  # seconds of the client's process
    wall: float
    kept: float  # the client's rate over the server's
    offered: float  # the server's rate over the script's: below 1 the server did not keep up, and the row says little
    alone: float
    lags: list[float]


def ours(address: Address, path: str, bodies: Bodies) -> list[Stream]:
    return client.run_streams(address, path, bodies, TIMEOUT)


def asyncio_streams(address: Address, path: str, bodies: Bodies) -> list[Stream]:
    """asyncio's stream reader, a task for each stream."""
    from sglang_ext.bench.traffic import wire

    async def one(body: Mapping[str, Any]) -> Stream:
        reader, writer = await asyncio.open_connection(*address)
        sent = time.monotonic()
        writer.write(wire.request("POST", str(address), path, client.headers(), json.dumps(body).encode()))
        pieces = []
        while piece := await reader.read(PIECE):
            pieces.append((time.monotonic(), piece))
        writer.close()
        return Stream(sent, wire.answer(pieces).pieces, None)

    async def run() -> list[Stream]:
        return list(await asyncio.gather(*(one(body) for body in bodies)))

    return asyncio.run(run())


class Protocol(asyncio.Protocol):
    """The least that asyncio can do."""

    def __init__(self) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        self.over = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.monotonic(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set_result(None)


def asyncio_protocol(address: Address, path: str, bodies: Bodies) -> list[Stream]:
    """asyncio's callbacks, no task for a stream."""
    from sglang_ext.bench.traffic import wire

    async def one(body: Mapping[str, Any]) -> Stream:
        transport, protocol = await asyncio.get_running_loop().create_connection(Protocol, *address)
        sent = time.monotonic()
        transport.write(wire.request("POST", str(address), path, client.headers(), json.dumps(body).encode()))
        await protocol.over
        return Stream(sent, wire.answer(protocol.pieces).pieces, None)

    async def run() -> list[Stream]:
        return list(await asyncio.gather(*(one(body) for body in bodies)))

    return asyncio.run(run())


def aiohttp_client(address: Address, path: str, bodies: Bodies) -> list[Stream]:
    """aiohttp, which SGLang's own benchmark uses; pieces as they come, not line by line."""
    import aiohttp

    async def one(session: aiohttp.ClientSession, body: Mapping[str, Any]) -> Stream:
        sent, pieces = time.monotonic(), []
        async with session.post(f"http://{address}{path}", json=body) as answer:
            async for piece in answer.content.iter_any():
                pieces.append((time.monotonic(), piece))
        return Stream(sent, tuple(pieces), None)

    async def run() -> list[Stream]:
        limit = aiohttp.ClientTimeout(total=TIMEOUT)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limit) as session:
            return list(await asyncio.gather(*(one(session, body) for body in bodies)))

    return asyncio.run(run())


READERS: Mapping[str, Callable[[Address, str, Bodies], list[Stream]]] = {
    "sglang-ext": ours,
    "asyncio's Protocol": asyncio_protocol,
    "asyncio's StreamReader": asyncio_streams,
    "aiohttp": aiohttp_client,
}


@contextmanager
def only(core: int) -> Iterator[None]:
    """This process on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure(reader: str, streams: int, rate: float, endpoint: str, seconds: float) -> Cost:
    """One row: a fresh server, a short stream for whatever is loaded lazily, then the streams."""
    cores = sorted(os.sched_getaffinity(0))
    script = Script(steady(int(rate * seconds), rate, first=1.0))
    short = Script(steady(8, 100.0, first=0.1))
    path, read = PATHS[endpoint], READERS[reader]
    with Child({"run": script, "short": short}, paths=[path], core=cores[-1]) as child, only(cores[0]):
        read(child.address, path, [body(endpoint, "short", short)])
        bodies = [body(endpoint, "run", script)] * streams
        wall, cpu = time.monotonic(), time.process_time()
        found = read(child.address, path, bodies)
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
        answers = [answer for answer in child.answers() if answer["script"] == "run"]
    runs = [figures(stream, script.tokens, speculative=False) for stream in found]
    if faults := [run.fault for run in runs if run.fault]:
        raise SystemExit(f"{reader}: {faults[0]}")
    truths = [[stamp for stamp, _ in answer["sent"]][: script.tokens] for answer in answers]
    sent = [(len(stamps) - 1) / (stamps[-1] - stamps[0]) for stamps in truths]
    kept = sum(run.decode_tok_s or 0.0 for run in runs) / sum(sent)
    alone = sum(len(set(run.trace["t"])) for run in runs) / sum(len(run.trace["t"]) for run in runs)
    return Cost(cpu, wall, kept, statistics.fmean(sent) / rate, alone, lags(found, runs, truths))


def lags(streams: Sequence[Stream], runs: Sequence[Run], truths: Sequence[list[float]]) -> list[float]:
    """Client's stamp less the server's, for each chunk. Streams of one script are told apart by their first chunk."""
    read = [[stream.sent + at for at in run.trace["t"]] for stream, run in zip(streams, runs, strict=True)]
    pairs = zip(sorted(read), sorted(truths), strict=True)
    return [got - stamp for one, other in pairs for got, stamp in zip(one, other, strict=False)]


def body(endpoint: str, name: str, script: Script) -> dict[str, Any]:
    return client.body(WORK._replace(endpoint=endpoint), script.tokens, "m", f"{name} please")


def row(reader: str, streams: int, rate: float, endpoint: str, seconds: float) -> str:
    cost = measure(reader, streams, rate, endpoint, seconds)
    ordered = sorted(cost.lags)
    p99 = ordered[int(len(ordered) * 0.99)]
    return (
        f"| {streams} x {rate:g} | /{PATHS[endpoint].rpartition('/')[2]} | {reader} | {100 * cost.cpu / cost.wall:.2f} |"
        f" {1e6 * cost.cpu / len(ordered):.0f} | {100 * cost.offered:.2f} | {100 * cost.kept:.2f} |"
        f" {100 * cost.alone:.1f} |"
        f" {1e3 * statistics.median(ordered):.2f} | {1e3 * p99:.2f} |"
    )


def table(seconds: float = 10.0) -> list[str]:
    """The result as Markdown lines."""
    lines = [
        "Client and server on a core each; CPU: of the client's core. Offered: what the server sent, of what the script says; "
        "kept: what the client's stamps say, of what was sent; alone: chunks read for themselves, as a late reader reads several "
        "at once, cheaply.",
        "",
        "| streams x tok/s | endpoint | reader | CPU % | us per chunk | offered % | kept % | alone % | median lag ms | p99 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for streams, rate, endpoint in LOADS:
        length = min(seconds, REPEATING) if streams > 1 and endpoint == "generate" else seconds
        lines += [row(reader, streams, rate, endpoint, length) for reader in READERS]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each row (default 10)")
    options = parser.parse_args()
    print("\n".join(table(options.seconds)))


if __name__ == "__main__":
    main()
