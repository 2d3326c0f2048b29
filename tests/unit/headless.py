"""Chromium without a window, spoken to over its DevTools pipe (fds 3 and 4, JSON ended by a NUL): no driver, no web socket."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 60.0  # seconds for one answer: the first start fills caches


def found() -> str | None:
    """The browser on PATH, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page in a browser of its own. ``problems``: what its console said of errors and warnings, and what it threw."""

    def __init__(self, browser: str, folder: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        ours_out, self._out = os.pipe()
        self._in, theirs = os.pipe()

        def wire() -> None:
            spare = [os.dup(ours_out), os.dup(theirs)]  # neither is 3 or 4 then, whatever the pipes are
            for fd, target in zip(spare, (3, 4), strict=True):
                os.dup2(fd, target, inheritable=True)

        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-extensions",
            "--disable-sync",
        ]
        options += [
            "--remote-debugging-pipe",
            "--disable-background-networking",
            f"--user-data-dir={folder / 'profile'}",
        ]
        self._log = (folder / "chromium.log").open("wb")
        self._process = subprocess.Popen(
            [browser, *options], stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, close_fds=False,
            preexec_fn=wire, start_new_session=True,
        )  # fmt: skip
        os.close(ours_out)
        os.close(theirs)
        self._number, self._rest, self._session = 0, b"", ""
        self.events: list[dict[str, Any]] = []
        self.problems: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # the session that we started
        self._process.wait()
        self._log.close()
        os.close(self._in)
        os.close(self._out)

    def ask(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(method)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _next(self, waiting_for: str) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(until - time.monotonic(), 0))
            assert ready, f"no answer to {waiting_for} within {PATIENCE:g} s"
            piece = os.read(self._in, 1 << 20)
            assert piece, f"chromium ended while {waiting_for} was waited for"
            self._rest += piece
        raw, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        self.events.append({"method": message.get("method")})
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"].get("text")))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")

    def load(self, file: Path) -> None:
        self.events.clear()
        self.ask("Page.navigate", url=file.resolve().as_uri())
        while {"method": "Page.loadEventFired"} not in self.events:
            self._next("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(data["data"]))
