#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser, at 4 and at 512 ranks, light and dark, while one rank holds up the others.

What must hold: the verdict names that rank, a click shows its stack, texts from workers are never
markup, nothing is asked of another server, and the console has no error. Screenshots are left below
$BUILD/screenshots.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

import chromium

BUILD = os.environ.get("BUILD", "build")
BIN = os.environ.get("LOCKSTEP_TEST_BIN", os.path.join(BUILD, "bin"))
SHOTS = os.path.join(BUILD, "screenshots")
SIZES = (4, 512)
CULPRIT = 3


def get(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()


class Scene:
    """A coordinator with one job of so many simulated workers."""

    def __init__(self, folder, workers, hostile, *flags):
        ports = os.path.join(folder, f"ports-{workers}-{len(flags)}")
        self.daemon = subprocess.Popen(
            [f"{BIN}/lockstep-coordinator", "--listen=127.0.0.1:0", "--http=127.0.0.1:0",
             "--stall-floor-ms=500", "--log-level=error", f"--port-file={ports}",
             f"--parent-death={os.getpid()}", *flags])
        deadline = time.monotonic() + chromium.deadline_s()
        while not os.path.exists(ports):
            assert self.daemon.poll() is None and time.monotonic() < deadline, "no coordinator"
            time.sleep(0.02)
        grpc, http = re.findall(r"=(\d+)", open(ports, encoding="utf-8").read())
        self.url = f"http://127.0.0.1:{http}/"
        self.fleet = subprocess.Popen(
            [os.path.join(BUILD, "tests/load/fleet"), f"--address=127.0.0.1:{grpc}",
             f"--workers={workers}", f"--culprit={CULPRIT}", "--after-ms=3000", "--job=run-a.b_1",
             *(["--hostile"] if hostile else [])], stdout=subprocess.PIPE, text=True)
        assert "train" in self.fleet.stdout.readline(), "the fleet did not start"

    def close(self):
        self.fleet.kill()
        self.fleet.wait()
        self.daemon.terminate()
        try:
            self.daemon.wait(20)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            raise


def check(page, workers, scene):
    """What a person would look for."""
    page.wait("document.querySelector('#verdict').className === 'bad'")
    sentence = page.value("document.querySelector('#sentence').textContent")
    assert f"rank {CULPRIT} " in sentence, sentence
    page.wait("document.querySelector('.culprit').innerText.includes('replay_buffer.py:44')")
    shown = page.value("document.querySelectorAll('#table tbody tr').length")
    assert shown == min(workers, 32), shown
    first = page.value("document.querySelector('#table tbody tr').textContent")
    assert first.startswith(str(CULPRIT)) and "culprit" in first, first
    cells = page.value("document.querySelectorAll('#map button').length")
    assert cells == (workers if workers > 32 else 0), cells
    assert page.value("!!document.querySelector('#picture svg .node.bad')")
    assert page.value("document.querySelectorAll('#log li').length") > 0
    # Texts from workers: as text, and never as elements.
    assert page.value("document.querySelectorAll('b[onclick], u, td img, main script').length") == 0
    assert page.value("!document.title.includes('taken')")
    wide = page.value("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"{wide} pixels too wide"
    elsewhere = [url for url in page.asked if not url.startswith((scene.url, "data:"))]
    assert not elsewhere, elsewhere


def check_stack(page, path):
    page.value("document.querySelector('#table tbody tr').click()")
    page.wait("document.querySelectorAll('#stack .thread li').length > 1")
    text = page.value("document.querySelector('#stack-body').innerText")
    assert "replay_buffer.py:44" in text and "clock_nanosleep" in text, text
    page.screenshot(path, whole=False)
    page.value("document.querySelector('#stack-close').click()")


def check_rows(page, workers):
    """All rows, and those that a word finds."""
    page.value("document.querySelector('#more').click()")
    page.wait(f"document.querySelectorAll('#table tbody tr').length === {workers}")
    page.value("(i => { i.value = 'rank 17'; i.dispatchEvent(new Event('input')); })"
               "(document.querySelector('#filter'))")
    found = page.value("document.querySelectorAll('#table tbody tr').length")
    wanted = sum("17" == str(rank)[:2] for rank in range(workers))
    assert found == wanted, (found, wanted)


def run(browser, folder, workers):
    hostile = workers == SIZES[0]
    scene = Scene(folder, workers, hostile)
    try:
        for dark in (False, True):
            name = os.path.join(SHOTS, f"page-{workers}-{'dark' if dark else 'light'}.png")
            page = browser.open(scene.url, 1280, 900, dark)
            check(page, workers, scene)
            page.screenshot(name)
            if dark:
                check_stack(page, name.replace("dark", "stack"))
            elif workers > 32:
                check_rows(page, workers)
            assert not page.errors, page.errors
            page.close()
        assert "lockstep_coordinator_job_stalled" in get(scene.url + "metrics")
    finally:
        scene.close()


def run_with_token(browser, folder):
    """A coordinator that wants a token: the page asks for it, and then is live like any other."""
    path = os.path.join(folder, "token")
    with open(path, "w", encoding="utf-8") as file:
        file.write("0123456789abcdef\n")
    scene = Scene(folder, SIZES[0], False, f"--http-token-file={path}")
    try:
        page = browser.open(scene.url, 1280, 900)
        for token in ("wrong", "0123456789abcdef"):
            page.wait("document.querySelector('#stack').open && !document.querySelector('#token').hidden")
            assert page.value("document.querySelectorAll('#table tbody tr').length") == 0
            page.value(f"document.querySelector('#token-text').value = '{token}'")
            page.value("document.querySelector('#token').requestSubmit()")
        page.wait("document.querySelector('#link').textContent === 'Live'")
        page.wait(f"document.querySelectorAll('#table tbody tr').length === {SIZES[0]}")
        page.value("document.querySelector('#table tbody tr').click()")
        page.wait("document.querySelectorAll('#stack .thread li').length > 1")
        assert not [error for error in page.errors if "401" not in error], page.errors
        page.close()
        page = browser.open(f"{scene.url}?token=0123456789abcdef", 1280, 900)
        page.wait("document.querySelector('#link').textContent === 'Live'")
        assert page.value("location.href") == scene.url, "the token stays in the address"
        assert not page.value("document.querySelector('#stack').open") and not page.errors, page.errors
        page.close()
    finally:
        scene.close()


def main():
    program = chromium.find()
    if not program:
        print("no Chromium here: tools/install-deps tools/deps-browser.txt")
        return 77
    os.makedirs(SHOTS, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium.Browser(program) as browser:
        for workers in SIZES:
            run(browser, folder, workers)
        run_with_token(browser, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
