"""A server that follows scripts: real HTTP on a real socket, in a process of its own, so that its time is not the client's.

    python -m tests.scripted.server     stdin: one line of JSON; stdout: its port; it ends when stdin does

The first word of a prompt names the script of its answer. It stands for SGLang's protocol, never for SGLang's processes. When
each event really went out, by the clock that every process of the machine shares, is told at GET /scripted/stamps: the truth to
compare with.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.scripted.formats import FORMATS, Send, render
from tests.scripted.script import Script

STAMPS = "/scripted/stamps"
USUAL = {
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "return_spec_tokens_details": True,
}
REFUSAL = {"error": {"message": "The input is longer than the model's context length", "type": "BadRequestError"}}


class Asked(NamedTuple):
    """One request: its line, header fields by lower-case name, body."""

    method: str
    path: str
    fields: Mapping[str, str]
    body: Any


class Scripted:
    """Answers requests by their scripts, and remembers what it was asked and what it sent when."""

    def __init__(self, scripts: Mapping[str, Script], info: Mapping[str, Any], paths: Sequence[str]) -> None:
        self.scripts, self.info = scripts, info
        self.answers: list[dict[str, Any]] = []
        self.rendered: dict[str, list[Send]] = {}
        for path in paths:
            for name in scripts:
                self._sends(name, path, {} if path == "/generate" else USUAL)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await _request(reader)
            if asked.method == "POST" and asked.path in FORMATS:
                await self._stream(asked, writer)
            else:
                writer.write(self._plain(asked))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has given up
        finally:
            writer.close()

    def _plain(self, asked: Asked) -> bytes:
        known: dict[str, Any] = {
            "/server_info": self.info,
            "/model_info": {"model_path": "scripted", "tokenizer_path": None},
            "/v1/models": {"object": "list", "data": [{"id": "scripted"}]},
            "/flush_cache": {},
            STAMPS: self.answers,
        }
        if asked.path not in known:
            return _whole(404, {"detail": "Not Found"})
        return _whole(200, known[asked.path])

    def _sends(self, name: str, path: str, request: Mapping[str, Any]) -> list[Send]:
        """Rendered once: making JSON would be late for the next token."""
        asked = {key: request.get(key) for key in ("stream_options", "return_spec_tokens_details")}
        key = json.dumps([name, path, asked])
        if key not in self.rendered:
            self.rendered[key] = render(self.scripts[name], path, asked)
        return self.rendered[key]

    async def _stream(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        due = time.monotonic()
        name = _prompt(asked.body).split()[0]
        script = self.scripts[name]
        sent: list[tuple[float, int]] = []
        self.answers.append({"script": name, "path": asked.path, "came": due, "sent": sent, "request": asked.body})
        if script.ending == "refuse":
            writer.write(_whole(400, REFUSAL))
            await writer.drain()
            return
        sends = self._sends(name, asked.path, asked.body)
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        )
        for after, raw, tokens in sends:
            due += after  # from the script's own past, and not from when the last one went out: nothing adds up
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            sent.append((time.monotonic(), tokens))
            writer.write(b"%x\r\n%s\r\n" % (len(raw), raw))
            if writer.transport.is_closing():
                return
            await writer.drain()
        if script.ending != "cut":
            writer.write(b"0\r\n\r\n")
            await writer.drain()


async def _request(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *rest = head.rstrip().split("\r\n")
    method, path, _ = line.split(" ")
    fields = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in rest)}
    raw = await reader.readexactly(int(fields.get("content-length", 0)))
    return Asked(method, path, fields, json.loads(raw) if raw else None)


def _whole(status: int, value: Any) -> bytes:
    raw = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\nconnection: close\r\n\r\n"
    return head.encode() + raw


def _prompt(body: Mapping[str, Any]) -> str:
    messages = body.get("messages")
    return str(messages[0]["content"] if messages else body.get("text") or body.get("prompt"))


async def _main() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=1 << 26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    told = json.loads(await lines.readline())
    scripts = {name: Script.from_json(script) for name, script in told["scripts"].items()}
    scripted = Scripted(scripts, told["info"], told["paths"])
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await lines.read()  # until whoever started us lets go, or is gone


if __name__ == "__main__":
    asyncio.run(_main())
