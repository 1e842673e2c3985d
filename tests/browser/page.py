#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: a healthy job, a job that stands still at 4 and at 512 ranks, jobs that
ended, 4,096 ranks, a phone, light and dark, and a coordinator that wants a token.

What must hold: the verdict names the rank that others wait for, a healthy job and an ended one show
nothing of an alarm, a click shows a stack, texts from workers are never markup, no text is smaller than
12 pixels, nothing is wider than the screen, nothing is asked of another server, and the console has no
error. Screenshots are left below $BUILD/screenshots.

All scenes begin at once, so that their jobs train while the browser looks at others. Every wait has a
deadline, and no check depends on how fast the machine is.
"""

import json
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
CULPRIT = 3
LATE = 2
TOKEN = "0123456789abcdef"
FEW_ROWS = 32

SMALLEST = """
(() => {
  let least = [99, ''];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const parent = node.parentElement;
    if (!node.textContent.trim() || !parent.checkVisibility()) continue;
    const svg = parent.closest('svg');
    const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    const size = parseFloat(getComputedStyle(parent).fontSize) * scale;
    if (size < least[0]) least = [size, node.textContent];
  }
  return least;
})()
"""


def get(url):
    with urllib.request.urlopen(url, timeout=chromium.deadline_s()) as answer:
        return answer.read().decode()


class Scene:
    """A coordinator with one job of so many simulated workers."""

    def __init__(self, folder, name, workers, *fleet, flags=()):
        self.name = name
        self.workers = workers
        ports = os.path.join(folder, f"ports-{name}")
        self.daemon = subprocess.Popen(
            [f"{BIN}/lockstep-coordinator", "--listen=127.0.0.1:0", "--http=127.0.0.1:0",
             "--log-level=error", f"--port-file={ports}", f"--parent-death={os.getpid()}", *flags])
        deadline = time.monotonic() + chromium.deadline_s()
        while not os.path.exists(ports):
            assert self.daemon.poll() is None and time.monotonic() < deadline, "no coordinator"
            time.sleep(0.02)
        grpc, http = re.findall(r"=(\d+)", open(ports, encoding="utf-8").read())
        self.url = f"http://127.0.0.1:{http}/"
        self.fleet = subprocess.Popen(
            [os.path.join(BUILD, "tests/load/fleet"), f"--address=127.0.0.1:{grpc}",
             f"--workers={workers}", f"--job={name}", *fleet], stdout=subprocess.PIPE, text=True)

    def ready(self):
        assert "train" in self.fleet.stdout.readline(), f"the fleet of {self.name} did not start"

    def close(self):
        self.fleet.kill()
        self.fleet.wait()
        self.daemon.terminate()
        try:
            self.daemon.wait(20)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            raise


def shot(page, name, whole=True):
    page.screenshot(os.path.join(SHOTS, f"page-{name}.png"), whole)


def check_any(page, scene):
    """What holds of every scene."""
    wide = page.value("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"{scene.name}: {wide} pixels too wide"
    size, text = page.value(SMALLEST)
    assert size >= 12, f"{scene.name}: {size} pixels: {text}"
    # Texts from workers: as text, and never as elements.
    assert page.value("document.querySelectorAll('b[onclick], u, td img, main script').length") == 0
    assert page.value("!document.title.includes('taken')")
    elsewhere = [url for url in page.asked if not url.startswith((scene.url, "data:", "blob:"))]
    assert not elsewhere, elsewhere
    assert not page.errors, page.errors
    # Every word of the numbers, charts and columns explains itself.
    silent = page.value("[...document.querySelectorAll('#facts button, figcaption button, th button')]"
                        ".filter(e => !(e.dataset.help?.length > 10)).map(e => e.textContent)")
    assert not silent, silent


def check_calm(page, scene):
    """Nothing looks like an alarm."""
    red = page.value("document.querySelectorAll('.bad, .blamed, .dot.stalled, .tag.bad').length")
    assert red == 0, f"{scene.name}: {red} things look like an alarm"
    assert page.value("document.querySelector('#waits').hidden && !document.title.includes('⚠')")


def check_healthy(browser, scene):
    page = browser.open(scene.url, 1280, 900)
    page.wait("document.querySelector('#verdict').className === 'good'")
    page.wait("document.querySelectorAll('.chart[data-title=loss] polyline').length > 0")
    check_calm(page, scene)
    # All ranks are shown at the step that all have settled, or in the next one.
    steps = page.value("[...document.querySelectorAll('#table tbody tr')].map(line => Number("
                       "line.cells[columns.findIndex(column => column.name === 'Step')].textContent))")
    assert len(steps) == scene.workers and max(steps) - min(steps) <= 1, steps
    titles = page.value("[...document.querySelectorAll('.chart')].map(chart => chart.dataset.title)")
    assert titles == ["Step time", "Communication", "Network", "loss", "samples/s"], titles
    # The scale of a chart holds both lines, also of a job of one second.
    assert page.value("scaleOf(STEP_CHART, [{step: 54000, exposed: 158}]).high") >= 54000
    assert page.value("scaleOf(STEP_CHART, Array(99).fill({step: 50, exposed: 1}).concat({step: 9e6})).high") <= 100
    # Communication is both parts of it.
    assert page.value("WIRE_CHART.total({hidden: 1, exposed: 4000})") == 4001
    # A word explains itself to a click, and a chart has values.
    page.value("document.querySelector('#facts .help').click()")
    assert page.value("!document.querySelector('#tip').hidden && tip.textContent.includes('heartbeat')")
    page.value("moveHover(STEP_CHART, document.querySelector('.chart'), 0.5)")
    reading = page.value("document.querySelector('.reading').textContent")
    assert re.fullmatch(r"\d\d:\d\d:\d\d · step [\d.]+ m?s · waiting [\d.]+ m?s", reading), reading
    # What is saved has the same columns, and as many rows as the server has.
    page.value("URL.createObjectURL = blob => { blob.text().then(text => { window.saved = text; }); return '#'; }")
    page.value("document.querySelector('#save-csv').click()")
    lines = page.wait("window.saved").strip().split("\n")
    history = json.loads(get(f"{scene.url}api/v1/jobs/{scene.name}/history"))
    assert lines[0] == "time,span_ms,steps,step_us,exposed_us,hidden_us,bytes_per_s,loss,samples/s", lines[0]
    assert lines[0].split(",")[1:] == history["columns"][1:] and len(lines) - 1 <= len(history["rows"])
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:", lines[1]), lines[1]
    page.value("window.saved = null; document.querySelector('#save-timeline').click()")
    assert "traceEvents" in page.wait("window.saved")
    page.value("document.querySelector('#period-recent').click()")
    page.wait("document.querySelectorAll('.chart polyline').length > 3")
    page.wait(f"document.querySelector('#stragglers').innerText.includes('rank {LATE}')")
    check_any(page, scene)
    shot(page, "healthy")
    page.close()


def check_stalled(browser, scene, dark):
    page = browser.open(scene.url, 1280, 900, dark)
    page.wait("document.querySelector('#verdict').className === 'bad'")
    sentence = page.value("document.querySelector('#sentence').textContent")
    assert f"rank {CULPRIT} " in sentence, sentence
    page.wait("document.querySelector('.culprit').innerText.includes('replay_buffer.py:44')")
    shown = page.value("document.querySelectorAll('#table tbody tr').length")
    assert shown == min(scene.workers, FEW_ROWS), shown
    first = page.value("document.querySelector('#table tbody tr').textContent")
    assert first.startswith(str(CULPRIT)) and "others wait for it" in first, first
    cells = page.value("document.querySelectorAll('#map button').length")
    assert cells == (scene.workers if scene.workers > FEW_ROWS else 0), cells
    assert page.value("!!document.querySelector('#picture svg .node.bad')")
    assert page.value("document.querySelectorAll('#log li').length") > 0
    check_any(page, scene)
    shot(page, f"{scene.workers}-{'dark' if dark else 'light'}")
    if scene.workers > FEW_ROWS:
        check_rows(page, scene.workers)
    else:
        check_stack(page, f"{scene.workers}-stack")
    page.close()


def check_stack(page, name):
    page.value("document.querySelector('#table tbody tr').click()")
    page.wait("document.querySelectorAll('#stack .thread li').length > 1")
    text = page.value("document.querySelector('#stack-body').innerText")
    assert "replay_buffer.py:44" in text and "clock_nanosleep" in text, text
    shot(page, name, whole=False)
    page.value("document.querySelector('#stack-close').click()")


def check_rows(page, workers):
    """More rows, and those that a word finds."""
    page.value("document.querySelector('#more').click()")
    page.wait(f"document.querySelectorAll('#table tbody tr').length === {workers}")
    page.value("(i => { i.value = 'rank 17'; i.dispatchEvent(new Event('input')); })"
               "(document.querySelector('#filter'))")
    found = page.value("document.querySelectorAll('#table tbody tr').length")
    wanted = sum("17" == str(rank)[:2] for rank in range(workers))
    assert found == wanted, (found, wanted)


def check_many(page):
    """4,096 ranks: more than one job of these workers has, so the page is given a state of its own."""
    page.value("stream.close(); clearInterval(jobsTimer); big = JSON.parse(JSON.stringify(state));"
               "big.job.world_size = big.job.joined = 4096;"
               "big.rows = Array.from({length: 4096}, (_, i) => [i, ...state.rows[i % 512].slice(1)])")
    first = page.value("(begin => { take(big, 'Live'); return performance.now() - begin; })(performance.now())")
    again = page.value("(begin => { for (let i = 0; i < 4; i++) take(big, 'Live');"
                       "return (performance.now() - begin) / 4; })(performance.now())")
    assert page.value("document.querySelectorAll('#map button').length") == 4096
    assert page.value("document.querySelectorAll('#table tbody tr').length") <= FEW_ROWS + 500
    print(f"4,096 ranks: {first:.0f} ms at first, then {again:.0f} ms a second")
    shot(page, "4096")


def check_phone(browser, scene):
    page = browser.open(scene.url, 390, 844, True)
    page.wait("document.querySelector('#verdict').className === 'bad'")
    page.wait("document.querySelectorAll('.chart svg').length > 2 && !!document.querySelector('#picture svg .node.bad')")
    assert page.value("!document.querySelector('#scroll-hint').hidden"), "a wide table gives no hint"
    check_any(page, scene)
    shot(page, "phone")
    page.close()


def check_ended(browser, scene, word, part):
    page = browser.open(scene.url, 1280, 900)
    page.wait("document.querySelector('#verdict').className.startsWith('ended')")
    page.wait("document.querySelectorAll('.chart polyline').length > 0")
    assert page.value("document.querySelector('#word').textContent") == word
    sentence = page.value("document.querySelector('#sentence').textContent")
    assert part in sentence, sentence
    detail = page.value("document.querySelector('#detail').textContent")
    job = json.loads(get(scene.url + "api/v1/jobs"))["jobs"][0]
    assert f"Step {job['settled']} is the last one" in detail and "ended" in detail, detail
    assert job["ended_age_ms"] >= 0
    if word == "Finished":
        assert job["step_min"] == job["step_max"] == job["settled"] > 0, job
        # A rank that has left is not in a function of the library.
        assert page.value("rowsOf(state).every(row => row.state === 'left' && called(row) === '')")
    check_calm(page, scene)
    check_any(page, scene)
    shot(page, scene.name)
    page.close()


def check_token(browser, scene):
    """The page asks for the token, and then is live like any other."""
    page = browser.open(scene.url, 1280, 900)
    for token in ("wrong", TOKEN):
        page.wait("document.querySelector('#stack').open && !document.querySelector('#token').hidden")
        assert page.value("document.querySelectorAll('#table tbody tr').length") == 0
        page.value(f"document.querySelector('#token-text').value = '{token}'")
        page.value("document.querySelector('#token').requestSubmit()")
    page.wait("document.querySelector('#link').textContent === 'Live'")
    page.wait(f"document.querySelectorAll('#table tbody tr').length === {scene.workers}")
    page.wait("document.querySelectorAll('.chart svg').length > 2")
    page.value("document.querySelector('#table tbody tr').click()")
    page.wait("document.querySelectorAll('#stack .thread li').length > 1")
    assert not [error for error in page.errors if "401" not in error], page.errors
    page.close()
    page = browser.open(f"{scene.url}?token={TOKEN}", 1280, 900)
    page.wait("document.querySelector('#link').textContent === 'Live'")
    assert page.value("location.href") == scene.url, "the token stays in the address"
    assert not page.value("document.querySelector('#stack').open") and not page.errors, page.errors
    page.close()


def scenes(folder):
    path = os.path.join(folder, "token")
    with open(path, "w", encoding="utf-8") as file:
        file.write(TOKEN + "\n")
    stuck = (f"--culprit={CULPRIT}", "--after-ms=3000")
    floor = ("--stall-floor-ms=500",)
    yield Scene(folder, "healthy", 4, f"--late={LATE}")
    yield Scene(folder, "run-a.b_1", 4, *stuck, "--hostile", flags=floor)
    yield Scene(folder, "many", 512, *stuck, flags=floor)
    yield Scene(folder, "well", 4, "--leave-ms=5000")
    yield Scene(folder, "fault", 4, "--lose-ms=5000")
    yield Scene(folder, "token", 4, flags=(f"--http-token-file={path}",))


def main():
    program = chromium.find()
    if not program:
        print("no Chromium here: tools/install-deps tools/deps-browser.txt")
        return 77
    os.makedirs(SHOTS, exist_ok=True)
    begun = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            begun.extend(scenes(folder))
            with chromium.Browser(program) as browser:
                for scene in begun:
                    scene.ready()
                healthy, few, many, well, fault, token = begun
                check_healthy(browser, healthy)
                check_stalled(browser, few, False)
                check_phone(browser, few)
                check_stalled(browser, many, True)
                page = browser.open(many.url, 1280, 900)
                page.wait("state && state.rows.length === 512")
                check_many(page)
                page.close()
                check_ended(browser, well, "Finished", "All 4 ranks finished")
                check_ended(browser, fault, "Ended by a fault", "rank 1 on host node-0 was lost")
                check_token(browser, token)
                assert "lockstep_coordinator_job_stalled" in get(many.url + "metrics")
        finally:
            for scene in begun:
                scene.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
