"""Chromium for tests, driven over a pipe with the DevTools protocol: no driver, no port, no dependency."""

import fcntl
import json
import os
import select
import shutil
import tempfile
import time

FLAGS = [
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
]


def find():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page. `events` are the protocol's, in order: requests, console messages, exceptions."""

    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="aplc-chromium-")
        to_browser, self.write = os.pipe()
        self.read, from_browser = os.pipe()
        # Chromium reads file 3 and writes file 4. Copies first: an end of a pipe may itself be 3 or 4.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_browser, from_browser)]
        actions = [(os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_WRONLY, 0) for n in (1, 2)]
        actions += [(os.POSIX_SPAWN_DUP2, end, n) for end, n in zip(ends, (3, 4), strict=True)]
        command = [find(), *FLAGS, f"--user-data-dir={self.profile}"]
        self.pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        self.buffer, self.events, self.number, self.session = b"", [], 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self, seconds=30):
        end = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read], [], [], end - time.monotonic())
            assert ready, "chromium does not answer"
            block = os.read(self.read, 1 << 16)
            assert block, "chromium has gone"
            self.buffer += block
        line, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, url, width, height, *, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._receive()

    def run(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def of(self, *methods):
        return [event["params"] for event in self.events if event["method"] in methods]

    def close(self):
        self.call("Browser.close")
        os.waitpid(self.pid, 0)
        os.close(self.write)
        os.close(self.read)
        shutil.rmtree(self.profile, ignore_errors=True)
