"""A headless Chromium, driven by its DevTools protocol through a pipe: no driver, no library and no port."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PROGRAM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--force-device-scale-factor=1", "--remote-debugging-pipe", "about:blank",
)  # fmt: skip


class Browser:
    """A page in a browser of its own.

    Attributes:
        errors: what the console complained of, and exceptions that no script caught.
        requests: addresses that were asked for, except the pages that `open` was given.
    """

    def __init__(self, profile: Path):
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._number, self._session, self._opened, self._loaded = 0, {}, "", False
        (child_in, ours_out), (ours_in, child_out) = os.pipe(), os.pipe()
        # The protocol is spoken on descriptors 3 and 4 of the browser.
        shell = f'exec "$0" "$@" 3<&{child_in} 4>&{child_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, PROGRAM, f"--user-data-dir={profile}", *_FLAGS], pass_fds=(child_in, child_out),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(child_in)
        os.close(child_out)
        self._out, self._in = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")
        target = next(t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page")["targetId"]
        self._session = {"sessionId": self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        self.send("Browser.close")
        self._process.wait(10)
        self._out.close()
        self._in.close()

    def send(self, method: str, **parameters: Any) -> dict:
        """A command of the protocol; returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while (answer := self._receive()).get("id") != self._number:
            pass
        assert "result" in answer, f"{method}: {answer}"
        return answer["result"]

    def _receive(self) -> dict:
        line = b""
        while not line.endswith(b"\0"):
            line += (byte := self._in.read(1))
            assert byte, "the browser has ended"
        message = json.loads(line[:-1])
        match message.get("method"), message.get("params"):
            case "Runtime.exceptionThrown", {"exceptionDetails": details}:
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            case "Runtime.consoleAPICalled", {"type": "error" | "warning", "args": args}:
                self.errors.append(" ".join(str(arg.get("value", arg.get("description"))) for arg in args))
            case "Log.entryAdded", {"entry": entry}:
                self.errors.append(entry["text"])
            case "Network.requestWillBeSent", {"request": {"url": url}} if url.partition("#")[0] != self._opened:
                self.requests.append(url)
            case "Page.loadEventFired", _:
                self._loaded = True
        return message

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a file, and wait until its script has shown it."""
        self._opened = page.resolve().as_uri()
        for address in ("about:blank", self._opened + fragment):  # another fragment alone would load nothing
            self._loaded = False
            self.send("Page.navigate", url=address)
            while not self._loaded:
                self._receive()
        self.wait("document.documentElement.dataset.ready")

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until an expression is true."""
        done = f"""new Promise((done) => {{
            const end = performance.now() + 60_000;
            const look = () => ({condition}) ? done(true) : performance.now() > end ? done(false) : setTimeout(look, 10);
            look();
        }})"""
        assert self.run(done), f"not within a minute: {condition}"

    def press(self, key: str) -> None:
        """A key: a character, or a name such as "Escape"."""
        text = {"text": key} if len(key) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def resize(self, width: int) -> None:
        """The window, in CSS pixels; below 700 it is a phone's."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1}
        self.send("Emulation.setDeviceMetricsOverride", **size, mobile=width < 700)
