"""A headless Chromium, controlled through its DevTools pipe (file descriptors 3 and 4) without a port or driver."""

from __future__ import annotations

import base64
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.support import need

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
WAIT_S = 60.0


class Browser:
    """A Chromium process that shows one page at a time."""

    def __init__(self, folder: Path) -> None:
        chromium = shutil.which("chromium") or need("chromium-headless-shell")
        to_child, self._write = os.pipe()
        self._read, from_child = os.pipe()
        command = [chromium, *FLAGS, f"--user-data-dir={folder / 'user'}", "about:blank"]
        line = f"exec {shlex.join(command)} 3<&{to_child} 4>&{from_child}"
        self._log = (folder / "chromium.log").open("wb")
        self._process = subprocess.Popen(
            ["bash", "-c", line],
            pass_fds=(to_child, from_child),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, "HOME": str(folder)},
        )
        os.close(to_child)
        os.close(from_child)
        self._buffer = b""
        self._id = 0
        self.events: list[dict[str, Any]] = []
        self.session = ""
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._write)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
        os.close(self._read)
        self._log.close()

    def call(self, method: str, **params: Any) -> Any:
        self._id += 1
        message: dict[str, Any] = {"id": self._id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(time.monotonic() + WAIT_S)
            if answer.get("id") == self._id:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            poll = select.poll()
            poll.register(self._read, select.POLLIN)
            ready = poll.poll(1000 * max(0.0, until - time.monotonic()))
            assert ready, "Chromium does not answer"
            data = os.read(self._read, 1 << 20)
            assert data, "Chromium ended"
            self._buffer += data
        raw, self._buffer = self._buffer.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(raw)
        if "method" in answer:
            self.events.append(answer)
        return answer

    def open(
        self, path: Path, width: int = 1280, height: int = 800, scheme: str = "light", motion: str = "reduce"
    ) -> None:
        """Load a page and wait until it is ready."""
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": motion},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=path.as_uri())
        self.wait("document.documentElement?.dataset.ready === 'yes'")
        self.settle()

    def run(self, expression: str) -> Any:
        """Evaluate an expression in the page and return its value. An exception in the page fails the test."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        until = time.monotonic() + WAIT_S
        while not self.run(expression):
            assert time.monotonic() < until, f"never true: {expression}"
            time.sleep(0.02)

    def settle(self) -> None:
        """Wait for two animation frames, after which all requested drawing is done."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def move(self, x: float, y: float) -> None:
        self.mouse("mouseMoved", x, y)
        self.settle()

    def click(self, x: float, y: float) -> None:
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)
        self.settle()

    def click_on(self, selector: str) -> None:
        script = f"""(() => {{
          const found = document.querySelector({json.dumps(selector)});
          found.scrollIntoView({{ block: "nearest" }});
          const box = found.getBoundingClientRect();
          return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""
        self.click(*self.run(script))

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)
        self.settle()

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press a key, where the modifiers are 2 for Ctrl and 8 for Shift. Letters are their own key names."""
        code = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}.get(key)
        more: dict[str, Any] = {"windowsVirtualKeyCode": code or ord(key.upper()[0])}
        if len(key) == 1 and not modifiers & 2:
            more["text"] = key
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, modifiers=modifiers, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, modifiers=modifiers)
        self.settle()

    def screenshot(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def requests(self) -> list[str]:
        """Return the URLs that the page has requested since it was opened."""
        self.run("1")
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """Return exceptions, console messages and log entries of the browser, which include violations of the page's
        CSP.
        """
        self.run("1")
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event["method"] in kinds]
