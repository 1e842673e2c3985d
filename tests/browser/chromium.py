# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium for tests, spoken to through a pipe with nothing but the standard library.

    with Browser(program) as browser:
        page = browser.open("http://127.0.0.1:8080/", width=1280, height=900, dark=True)
        page.wait("document.title !== ''")
        page.screenshot("page.png")
        assert page.errors == [], page.errors

A page collects what its console said of level error, what it refused to load, exceptions, and every
address that it asked for. Every wait has a deadline.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "headless_shell")
FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check",
    "--disable-gpu", "--disable-extensions", "--disable-background-networking", "--mute-audio",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--disable-dev-shm-usage",
)


def find():
    """The path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def deadline_s():
    slow = float(os.environ.get("LOCKSTEP_TEST_SLOW", "1"))
    return 20 * (max(slow, 5) if os.environ.get("CI") == "true" else slow)


class Browser:
    def __init__(self, program):
        self.profile = tempfile.mkdtemp(prefix="lockstep-browser-")
        to_read, self.to_write = os.pipe()
        self.to_read, to_write = os.pipe()
        # It reads commands from descriptor 3 and writes to 4.
        start = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        flags = [*FLAGS, f"--user-data-dir={self.profile}"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")
        self.process = subprocess.Popen(
            ["bash", "-c", start, program, *flags, "about:blank"], pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.number = 0
        self.bytes = b""
        self.pages = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close")
        except (OSError, RuntimeError, TimeoutError):
            self.process.kill()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to_write)
        os.close(self.to_read)
        shutil.rmtree(self.profile, ignore_errors=True)

    def receive(self, deadline):
        """The next message; events of pages are noted on the way."""
        while b"\0" not in self.bytes:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.to_read], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            more = os.read(self.to_read, 1 << 20)
            if not more:
                raise RuntimeError("the browser has ended")
            self.bytes += more
        text, self.bytes = self.bytes.split(b"\0", 1)
        message = json.loads(text)
        page = self.pages.get(message.get("sessionId"))
        if page and "method" in message:
            page.note(message["method"], message["params"])
        return message

    def call(self, method, session=None, **parameters):
        self.number += 1
        number = self.number
        message = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.to_write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + deadline_s()
        while True:
            answer = self.receive(deadline)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, url, width, height, dark=False):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        self.pages[session] = page
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)
        page.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        page.call("Page.navigate", url=url)
        return page


class Page:
    def __init__(self, browser, session, target):
        self.browser = browser
        self.session = session
        self.target = target
        self.errors = []
        self.asked = []

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def note(self, method, parameters):
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
            self.errors.append(str([part.get("value") for part in parameters["args"]]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            entry = parameters["entry"]
            self.errors.append(f"{entry['text']} {entry.get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.asked.append(parameters["request"]["url"])

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression):
        """Until it is true; returns its value."""
        deadline = time.monotonic() + deadline_s()
        while True:
            try:
                value = self.value(expression)
            except RuntimeError:  # The document is being replaced.
                value = None
            if value:
                return value
            if time.monotonic() > deadline:
                text = self.value("document.body.innerText")
                raise TimeoutError(f"never true: {expression}\n{text[:4000]}")
            time.sleep(0.05)

    def screenshot(self, path, whole=True):
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture["data"]))

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
        del self.pages_of()[self.session]

    def pages_of(self):
        return self.browser.pages
