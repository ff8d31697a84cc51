"""A headless Chromium, driven by its DevTools protocol through a pipe: no driver, no library and no port."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--force-device-scale-factor=1", "--remote-debugging-pipe", "about:blank",
)  # fmt: skip


def find() -> str | None:
    """The Chromium of this machine; None where there is none. CHROMIUM names one that lies elsewhere."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser(AbstractContextManager):
    """A page in a browser of its own.

    Attributes:
        errors: what the console complained of, and exceptions that no script caught.
        requests: addresses that were asked for, but for the pages that `open` was given.
    """

    def __init__(self, width: int = 1440, height: int = 900, dark: bool = False):
        program = find()
        if program is None:
            raise FileNotFoundError(f"no Chromium here: none of {', '.join(NAMES)} is installed")
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (child_in, ours_out), (ours_in, child_out) = os.pipe(), os.pipe()
        # The protocol is spoken on descriptors 3 and 4 of the browser.
        shell = f'exec "$0" "$@" 3<&{child_in} 4>&{child_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, program, f"--user-data-dir={self._profile.name}", *_FLAGS],
            pass_fds=(child_in, child_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(child_in)
        os.close(child_out)
        self._out, self._in = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")
        self._number, self._buffer, self._session = 0, b"", ""
        self._loaded, self._opened = False, ""
        target = next(t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.resize(width, height)
        self.prefer("dark" if dark else "light")

    def send(self, method: str, **parameters: Any) -> dict:
        """A command of the protocol; returns its result.

        Raises:
            RuntimeError: the browser refused it, or has ended.
        """
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._out.write(json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0")
        self._out.flush()
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _receive(self) -> dict:
        while b"\0" not in self._buffer:
            more = self._in.read1(1 << 20)  # type: ignore[attr-defined]
            if not more:
                raise RuntimeError("the browser has ended")
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        match message.get("method"), message.get("params"):
            case "Runtime.exceptionThrown", {"exceptionDetails": details}:
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            case "Runtime.consoleAPICalled", {"type": "error" | "warning", "args": args}:
                self.errors.append(" ".join(str(arg.get("value", arg.get("description"))) for arg in args))
            case "Log.entryAdded", {"entry": entry}:
                self.errors.append(entry["text"])
            case "Network.requestWillBeSent", {"request": request}:
                if request["url"].partition("#")[0] != self._opened:
                    self.requests.append(request["url"])
            case "Page.loadEventFired", _:
                self._loaded = True
        return message

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a file, and wait until it has been read."""
        self._opened = page.resolve().as_uri()
        for address in ("about:blank", self._opened + fragment):  # another fragment alone would load nothing
            self._loaded = False
            self.send("Page.navigate", url=address)
            while not self._loaded:
                self._receive()

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is waited for.

        Raises:
            RuntimeError: it raised an error.
        """
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Until an expression is true.

        Raises:
            TimeoutError: it never was.
        """
        done = f"""new Promise((done) => {{
            const end = performance.now() + {1000 * seconds};
            const look = () => ({condition}) ? done(true) : performance.now() > end ? done(false) : setTimeout(look, 10);
            look();
        }})"""
        if not self.run(done):
            raise TimeoutError(f"not within {seconds:.0f} s: {condition}")

    def press(self, key: str) -> None:
        """A key: a character, or a name such as "Escape"."""
        text = {"text": key} if len(key) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def resize(self, width: int, height: int) -> None:
        """The window, in CSS pixels; below 700 it is a phone's."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 700
        )  # fmt: skip

    def prefer(self, scheme: str) -> None:
        """What the system wants: "light" or "dark"."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path) -> Path:
        """What the window shows, as PNG."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))
        return path

    def __exit__(self, *error) -> None:
        self._out.close()
        self._in.close()
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._profile.cleanup()

    def __enter__(self) -> Self:
        return self
