"""A headless Chromium, driven through its DevTools protocol over a pipe: no driver, no socket."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 60.0  # that anything may take
# The lowest file descriptor of our own: 3 and 4 are the browser's ends of the protocol.
LOWEST = 10


def find_chromium() -> str | None:
    """The browser's program, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class PageError(AssertionError):
    """What the page threw, or that it did not answer."""


class Chromium:
    """A browser with one tab.

    Attributes:
        requests: addresses that were asked for since `open`, the page itself left out.
        problems: uncaught errors, and what the console complained of, since `open`.
    """

    def __init__(self, program: str) -> None:
        self.profile = tempfile.mkdtemp(prefix="chromium-")
        options = [
            *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"),
            *("--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--disable-extensions", "--force-color-profile=srgb", "--lang=en"),
            f"--user-data-dir={self.profile}",
        ]
        child_reads, self._questions = _pipe()
        self._answers, child_writes = _pipe()
        null = os.open(os.devnull, os.O_RDWR)
        actions = [
            *((os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)),
            (os.POSIX_SPAWN_DUP2, child_reads, 3),
            (os.POSIX_SPAWN_DUP2, child_writes, 4),
        ]
        command = [program, *options, "about:blank"]
        self.pid = os.posix_spawn(program, command, os.environ, file_actions=actions, setpgroup=0)
        for fd in (null, child_reads, child_writes):
            os.close(fd)
        self._count, self._rest = 0, b""
        self._session: str | None = None
        self.requests: list[str] = []
        self.problems: list[str] = []
        tab = self._first_tab()
        found = self.send("Target.attachToTarget", targetId=tab, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Network", "DOM", "Log"):
            self.send(f"{domain}.enable")

    def _first_tab(self) -> str:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            for target in self.send("Target.getTargets")["targetInfos"]:
                if target["type"] == "page":
                    return target["targetId"]
            time.sleep(0.05)
        raise PageError("Chromium opened no tab")

    def close(self) -> None:
        """End the browser and remove its profile."""
        for fd in (self._questions, self._answers):
            os.close(fd)
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        shutil.rmtree(self.profile, ignore_errors=True)

    # The protocol.

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to one question."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._questions, data) :]
        for answer in self._messages(SECONDS):
            if answer.get("id") == message["id"]:
                if "error" in answer:
                    raise PageError(f"{method}: {answer['error']['message']}")
                return answer["result"]
        raise PageError(f"{method}: no answer in {SECONDS:g} s")

    def _messages(self, seconds: float) -> Iterator[dict[str, Any]]:
        """What comes in during some seconds; events are noted on the way."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            while b"\0" in self._rest:
                text, _, self._rest = self._rest.partition(b"\0")
                message = json.loads(text)
                self._note(message)
                yield message
            if select.select([self._answers], [], [], left)[0]:
                data = os.read(self._answers, 1 << 20)
                if not data:
                    raise PageError("Chromium has ended")
                self._rest += data

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.problems.append(
                    details.get("exception", {}).get("description") or details["text"]
                )
            case "Log.entryAdded":
                self.problems.append(params["entry"]["text"])

    # What a user does and sees.

    def open(self, path: Path) -> None:
        """Load a file of this machine."""
        self.requests.clear()
        self.problems.clear()
        self.send("Page.navigate", url=path.absolute().as_uri())
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")
        self.requests = [url for url in self.requests if url != path.absolute().as_uri()]

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page; promises are awaited."""
        found = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise PageError(details.get("exception", {}).get("description") or details["text"])
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = SECONDS) -> float:
        """Wait until a condition holds; returns the seconds that it took."""
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            if self.evaluate(f"Boolean({condition})"):
                return time.monotonic() - begin
            time.sleep(0.02)
        raise PageError(f"not within {seconds:g} s: {condition}; {self.problems}")

    def choose_file(self, selector: str, path: Path) -> None:
        """Give a file to an input."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", files=[str(path.absolute())], nodeId=node)

    def click(self, selector: str) -> None:
        """Click an element by its selector."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def text(self, selector: str) -> str:
        """The text of an element, as it is shown."""
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    def press(self, key: str) -> None:
        """Press and release a key, where the focus is."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Move, press or release the mouse."""
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def screen(self, width: int, height: int, dark: bool = False, ratio: float = 1) -> None:
        """The size of the window, and the theme that the user wants."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=ratio, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path, height: int | None = None) -> None:
        """Save what is shown, or the page's first `height` pixels, as PNG."""
        options: dict[str, Any] = {"format": "png"}
        if height:
            width = self.evaluate("innerWidth")
            options |= {"captureBeyondViewport": True}
            options["clip"] = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        data = self.send("Page.captureScreenshot", **options)["data"]
        path.write_bytes(base64.b64decode(data))


def _pipe() -> tuple[int, int]:
    """Both ends of a pipe, at numbers that the browser's own do not overwrite."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, LOWEST) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
