# SPDX-License-Identifier: Apache-2.0
"""Alarms and dashboard against what real coordinators serve: of a job that trains, of one that hangs,
and of one that has a slow rank.

The metrics are scraped each second, written as series of promtool's tests, and the last samples are
held, so that minutes of an alarm's patience need no minutes here.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import unittest
import urllib.request

import yaml

import setting

RULES = os.path.join(setting.ROOT, "deploy/prometheus/rules.yaml")
DASHBOARD = os.path.join(setting.ROOT, "deploy/grafana/dashboard.json")
PREFIX = "lockstep_coordinator_"
SAMPLES = 8
HELD_S = 1200
# Grafana's own, in the dashboard's expressions.
GRAFANA = {"$__rate_interval": "1m", "$job": ".*"}


def parse(text):
    """Prometheus text to {series: value}."""
    result = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            series, value = line.rsplit(" ", 1)
            result[series] = float(value)
    return result


class Observed:
    """A coordinator with jobs on it, and its metrics once a second."""

    def __init__(self, name):
        self.folder = os.path.join(setting.FOLDER, name)
        os.makedirs(self.folder, exist_ok=True)
        ports = os.path.join(self.folder, "ports")
        self.log = open(os.path.join(self.folder, "log"), "wb")
        self.processes = [subprocess.Popen(
            [setting.DAEMON, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--port-file", ports,
             "--stall-floor-ms", "1000", "--parent-death",
             "--tls-dir", os.path.join(setting.CERTIFICATES, "coordinator")], stderr=self.log)]
        end = time.monotonic() + 10
        while not os.path.exists(ports):
            if time.monotonic() > end:
                raise TimeoutError("the coordinator did not start")
            time.sleep(0.02)
        with open(ports, encoding="ascii") as file:
            self.grpc, self.http = re.findall(r"=(\d+)", file.read())
        self.scrapes = []
        self.last_text = ""

    def start(self, job, size, *command):
        certificate = os.path.join(self.folder, job)
        setting.issue_worker(setting.CERTIFICATES, job, certificate)
        for rank in range(size):
            environment = dict(os.environ, LOCKSTEP_COORDINATOR=f"127.0.0.1:{self.grpc}",
                               LOCKSTEP_JOB=job, LOCKSTEP_WORLD_SIZE=str(size),
                               LOCKSTEP_RANK_HINT=str(rank),
                               LOCKSTEP_TLS_DIR=certificate)
            self.processes.append(subprocess.Popen(command, env=environment, stdout=self.log,
                                                   stderr=self.log))

    def slow_down(self, process):
        """Holds a worker up for most of the time, in pieces too short to look like a hang."""
        def pulses():
            while process.poll() is None:
                process.send_signal(signal.SIGSTOP)
                time.sleep(0.05)
                process.send_signal(signal.SIGCONT)
                time.sleep(0.02)
        threading.Thread(target=pulses, daemon=True).start()

    def scrape(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics", timeout=5) as answer:
            self.last_text = answer.read().decode()
        self.scrapes.append(parse(self.last_text))
        return self.scrapes[-1]

    def scrape_until(self, condition, seconds=40):
        end = time.monotonic() + seconds
        while not condition(self.scrape()):
            if time.monotonic() > end:
                raise TimeoutError("what was waited for is not in the metrics")
            time.sleep(1)

    def series(self):
        """The latest scrapes as series of a promtool test, the last value held."""
        latest = self.scrapes[-SAMPLES:]
        names = {name for scrape in latest for name in scrape}
        for name in sorted(names):
            values = [str(scrape[name]) if name in scrape else "_" for scrape in latest]
            held = f" {latest[-1][name]}x{HELD_S}" if name in latest[-1] else ""
            yield {"series": name, "values": " ".join(values) + held}

    def close(self):
        for process in self.processes[1:]:
            process.kill()
        self.processes[0].terminate()
        for process in self.processes:
            process.wait()
        self.log.close()


def expressions(panel_list):
    for panel in panel_list:
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", []))
        yield from expressions(panel.get("panels", []))


def alarm(name, at_s, *fired):
    """One of promtool's tests; fired: (labels, annotations) of each alert that has to be there."""
    return {"eval_time": f"{at_s}s", "alertname": name,
            "exp_alerts": [{"exp_labels": labels, "exp_annotations": notes}
                           for labels, notes in fired]}


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not shutil.which("promtool"):
            raise unittest.SkipTest("promtool is not installed (Debian: prometheus)")
        with open(RULES, encoding="utf-8") as file:
            cls.rules = {rule["alert"]: rule for rule in yaml.safe_load(file)["groups"][0]["rules"]}
        with open(DASHBOARD, encoding="utf-8") as file:
            cls.dashboard = json.load(file)
        cls.healthy, cls.stalled, cls.lame = map(Observed, ("healthy", "stalled", "lame"))
        mnist = os.path.join(setting.BUILD, "examples/mnist")
        phases = os.path.join(setting.BUILD, "examples/phases")
        cls.healthy.start("calm", 2, mnist, "--data", setting.MNIST, "--epochs", "500")
        cls.stalled.start("stuck", 2, phases, "--hang", "3")
        cls.lame.start("lame", 2, phases, "--iterations", "1000000")
        cls.lame.slow_down(cls.lame.processes[-1])
        cls.healthy.scrape_until(
            lambda now: now.get(PREFIX + 'job_step_seconds{job="calm"}', 0) > 0)
        for _ in range(SAMPLES):
            cls.healthy.scrape()
            time.sleep(1)
        cls.lame.scrape_until(
            lambda now: now.get(PREFIX + 'job_straggler_score{job="lame",rank="1"}', 0) > 0)
        cls.stalled.scrape_until(lambda now: now.get(PREFIX + 'job_stalled{job="stuck"}') == 1)
        for _ in range(SAMPLES // 2):
            cls.stalled.scrape()
            time.sleep(1)

    @classmethod
    def tearDownClass(cls):
        cls.healthy.close()
        cls.stalled.close()
        cls.lame.close()

    def promtool(self, *arguments, text=None):
        done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True,
                              check=False)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)

    def check(self, name, tests):
        """Gives promtool a file of its tests."""
        path = os.path.join(setting.FOLDER, f"{name}.yaml")
        with open(path, "w", encoding="utf-8") as file:
            yaml.safe_dump({"rule_files": [RULES], "evaluation_interval": "5s", "tests": tests}, file)
        self.promtool("test", "rules", path)

    def expected(self, name, **labels):
        """An alert as it has to be when it fires without a value in its texts."""
        rule = self.rules[name]
        texts = {}
        for key, text in rule["annotations"].items():
            for label, value in labels.items():
                text = text.replace("{{ $labels.%s }}" % label, value)
            texts[key] = text
        return {**rule["labels"], **labels}, texts

    def test_syntax(self):
        self.promtool("check", "rules", RULES)
        for observed in (self.healthy, self.stalled):
            self.promtool("check", "metrics", text=observed.last_text)

    def test_healthy_job_raises_nothing(self):
        self.check("healthy", [{
            "interval": "1s", "input_series": list(self.healthy.series()),
            "alert_rule_test": [alarm(name, 1000) for name in self.rules]}])

    def test_stalled_job_raises_one(self):
        late = SAMPLES + 100
        tests = [alarm("LockstepJobStalled", 2), alarm(
            "LockstepJobStalled", late, self.expected("LockstepJobStalled", job="stuck"))]
        tests += [alarm(name, late) for name in self.rules if name != "LockstepJobStalled"]
        self.check("stalled", [{"interval": "1s", "input_series": list(self.stalled.series()),
                                "alert_rule_test": tests}])

    def test_straggler_raises_one(self):
        """The alarm wants minutes of a score; here they pass at once."""
        firing = 'count(ALERTS{alertname="%s",alertstate="firing"%s}) or vector(0)'
        tests = [{"expr": firing % (name, labels), "eval_time": "900s",
                  "exp_samples": [{"labels": "{}", "value": int(name == "LockstepStraggler")}]}
                 for name, labels in [("LockstepStraggler", ',job="lame",rank="1"')]
                 + [(name, "") for name in self.rules]]
        series = [dict(item, values="0.6x1200") if 'score{job="lame",rank="1"}' in item["series"]
                  else item for item in self.lame.series()]
        self.check("lame", [{"interval": "1s", "input_series": series, "promql_expr_test": tests}])

    def changed(self, **values):
        """The healthy job's metrics with series changed: what cannot be had in seconds."""
        series = {item["series"]: item["values"] for item in self.healthy.series()}
        for name, text in values.items():
            found = [key for key in series if key.startswith(PREFIX + name)]
            self.assertTrue(found, f"{name} is not served")
            for key in found:
                series[key] = text
        return [{"series": key, "values": text} for key, text in series.items()]

    def test_other_alarms(self):
        """Each fires when its metric says so."""
        cases = {
            "LockstepJobGathering": dict(job_workers="1x1200", job_world_size="2x1200",
                                         job_gathering="1x1200"),
            "LockstepWorkersLost": dict(halts_total="0+1x1200"),
            "LockstepWorkersRefused": dict(refusals_total="0+1x1200"),
            "LockstepHandshakesFail": dict(tls_handshakes_failed_total="0+1x1200"),
            "LockstepUnauthorized": dict(streams_unauthorized_total="0x700 1x600"),
            "LockstepCertificateUnusable": dict(tls_reload_failures_total="0 1x1200"),
            "LockstepCertificateEnds": dict(tls_certificate_expires_seconds="100000x1200"),
            "LockstepMemoryShort": dict(budget_ended_total="0x700 1x600"),
            "LockstepCoordinatorDeaf": dict(listening="0x1200"),
        }
        tests = []
        for name, values in cases.items():
            expression = f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) > bool 0'
            tests.append({"interval": "1s", "input_series": self.changed(**values),
                          "promql_expr_test": [{"expr": expression, "eval_time": "900s",
                                                "exp_samples": [{"labels": "{}", "value": 1}]}]})
        # A rank of a running job has left.
        expression = 'count(ALERTS{alertname="LockstepJobGathering"}) or vector(0)'
        tests.append({"interval": "1s",
                      "input_series": self.changed(job_workers="1x1200", job_world_size="2x1200"),
                      "promql_expr_test": [{"expr": expression, "eval_time": "900s",
                                            "exp_samples": [{"labels": "{}", "value": 0}]}]})
        absent = alarm("LockstepCoordinatorAbsent", 900, self.expected("LockstepCoordinatorAbsent"))
        tests.append({"interval": "1s", "input_series": [{"series": "up", "values": "0x1200"}],
                      "alert_rule_test": [absent]})
        self.assertEqual(set(self.rules), {*cases, "LockstepCoordinatorAbsent", "LockstepJobStalled",
                                           "LockstepStraggler"})
        self.check("others", tests)

    def test_names_are_served(self):
        served = {re.match(r"\w+", series)[0] for observed in (self.healthy, self.lame)
                  for series in observed.scrapes[-1]}
        texts = [rule["expr"] for rule in self.rules.values()]
        texts += [text for _, text in expressions(self.dashboard["panels"])]
        texts += [item["query"] for item in self.dashboard["templating"]["list"] if "query" in item]
        used = {name for text in texts for name in re.findall(PREFIX + r"\w+", str(text))}
        self.assertEqual(set(), used - served)

    def test_dashboard_shows_something(self):
        """Every expression of the dashboard has samples, of the job that it is about."""
        for title, text in expressions(self.dashboard["panels"]):
            with self.subTest(title):
                for name, value in GRAFANA.items():
                    text = text.replace(name, value)
                kinds = {"Stall": self.stalled, "Stragglers": self.lame}
                observed = next((kinds[word] for word in kinds if title.startswith(word)), self.healthy)
                test = {"expr": f"count({text}) > bool 0", "eval_time": f"{SAMPLES + 60}s",
                        "exp_samples": [{"labels": "{}", "value": 1}]}
                self.check("dashboard", [{"interval": "1s", "input_series": list(observed.series()),
                                          "promql_expr_test": [test]}])
