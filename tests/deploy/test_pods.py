# SPDX-License-Identifier: Apache-2.0
"""The rendered pods, run: what docs/operating.md promises of a deployment is what happens.

Changed for the tests, because of time: how long the coordinator drains, and the period of its
liveness probe. Everything else is run as it was rendered.
"""

import base64
import copy
import http.client
import json
import os
import ssl
import subprocess
import time
import unittest

import images
import manifests
import setting
from controllers import Deployment, Job, TimedOut, jobs_of, patience, wait
from manifests import named, of_kind
from node import NODE_ADDRESS, Node, Pod
from policies import Watch

DRAIN_MS = "2500"
SHORT = ["mnist", "--epochs", "1"]
AGAIN = ["mnist", "--epochs", "2"]  # Begun twice.
LONGER = ["mnist", "--epochs", "4"]  # Than the drain.
UID = 65532


def status_of(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


class Pods(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not setting.alone():
            raise unittest.SkipTest("pods need root and network namespaces of their own")
        rendered = manifests.render_all(setting.TREE)
        cls.objects = rendered["overlays/dev"]
        cls.job, = of_kind(rendered["examples/indexed-job"], "Job")
        cls.jobset, = of_kind(rendered["examples/jobset"], "JobSet")
        cls.runtime, = of_kind(rendered["examples/kubeflow"], "ClusterTrainingRuntime")
        at = {"": setting.ROOT + "/", "build/": setting.BUILD + "/",
              "build/data/mnist/": setting.MNIST + "/"}
        folder = os.path.join(setting.FOLDER, "images")
        build = [images.build(setting.ROOT, at, folder, name) for name in ("coordinator", "worker")]
        build.append(images.build(setting.ROOT, at, folder, "mnist", base=build[1]))
        cls.images = {image.name: image for image in build}
        cls.node = Node(os.path.join(setting.FOLDER, "pods"), "lockstep", cls.images)
        cls.node.apply(copy.deepcopy(cls.objects))
        cls.policies = of_kind(cls.objects, "NetworkPolicy")
        spec = named(cls.node.kind("Deployment"), "Deployment", "lockstep-coordinator")
        for config in cls.node.kind("ConfigMap"):
            if "LOCKSTEP_COORDINATOR_DRAIN_MS" in config["data"]:
                config["data"]["LOCKSTEP_COORDINATOR_DRAIN_MS"] = DRAIN_MS
        spec["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["periodSeconds"] = 1
        cls.deployment = Deployment(cls.node, spec)
        cls.deployment.wait_ready()

    # ---- helpers -----------------------------------------------------------------------------

    def start(self, name, arguments=None, change=None):
        job = copy.deepcopy(self.job)
        container = job["spec"]["template"]["spec"]["containers"][0]
        job["metadata"]["name"] = name
        named_job = [item for item in container["env"] if item["name"] == "LOCKSTEP_JOB"]
        named_job[0]["value"] = name
        self.give_certificate(job, name)
        if arguments:
            container["args"] = arguments
        if change:
            change(job)
        return Job(self.node, job)

    def give_certificate(self, job, name):
        """A secret for the job of that name, mounted, as deploy/README.md says of a second job."""
        secret = f"lockstep-{name}-tls"
        if ("Secret", secret) not in self.node.objects:
            folder = os.path.join(setting.FOLDER, f"job-{name}")
            setting.issue_worker(setting.CERTIFICATES, name, folder)
            self.add_secret(secret, folder)
        job["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"] = secret

    def add_secret(self, name, folder):
        self.node.apply([{"kind": "Secret", "metadata": {"name": name}, "data": {
            key: base64.b64encode(content).decode()
            for key, content in self.secret_from(folder).items()}}])

    def ask(self, path):
        """The coordinator's answer to the node, as JSON or text."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        client = http.client.HTTPSConnection(self.deployment.pod.address, 8080, timeout=10 * patience(),
                                             context=context)
        client.request("GET", path, headers={"Authorization": f"Bearer {setting.TOKEN}"})
        answer = client.getresponse()
        body = answer.read().decode()
        client.close()
        return json.loads(body) if answer.headers["Content-Type"].startswith("application/json") \
            else body

    def secret_from(self, folder):
        files = {}
        for name in ("tls.crt", "tls.key", "ca.crt"):
            with open(os.path.join(folder, name), "rb") as file:
                files[name] = file.read()
        return files

    def wait_step(self, job, step):
        """Until the job's workers have come so far."""
        def there():
            job.step()
            found = [item for item in self.ask("/api/v1/jobs")["jobs"] if item["name"] == job.name]
            return bool(found) and found[0]["state"] == "running" and found[0]["step_min"] >= step
        wait(f"{job.name} is at step {step}", there, job.pods)

    def assert_trained(self, job):
        last = [pod for pod in job.current.values() if pod.hostname == f"{job.name}-0"][0]
        self.assertIn("equal on 3 of 3 ranks", last.said())

    # ---- tests, in this order ----------------------------------------------------------------

    def test_01_trains(self):
        """An Indexed Job trains, through the service's name, inside of what the policies allow."""
        watch = Watch(self.node)
        job = self.start("mnist", SHORT)
        self.wait_step(job, 5)
        trace = os.listdir(os.path.join(f"/proc/{job.current[0].init_pid()}", "root", "trace"))
        job.wait_complete()
        watch.stop()
        self.assert_trained(job)
        self.assertEqual((0, 0), (job.failures, job.ignored))
        self.assertEqual([], list(watch.forbidden(self.policies, NODE_ADDRESS)))
        ports = {port for _, _, port, _ in watch.seen}
        self.assertIn(50051, ports)
        self.assertTrue(any(20000 <= port <= 20099 for port in ports), ports)
        self.assertIn("lockstep-coordinator.lockstep.svc.cluster.local", self.node.names.asked)
        self.assertEqual(1, len(trace), "the trace directory is used, under a read-only root")

    def test_02_confined(self):
        """User, privileges, file systems: what the security context says holds in the process."""
        job = self.start("confined")
        self.wait_step(job, 5)
        for pod in (self.deployment.pod, job.current[1]):
            status = status_of(pod.init_pid())
            self.assertEqual([str(UID)] * 4, status["Uid"].split())
            self.assertEqual([str(UID)] * 4, status["Gid"].split())
            for name in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"):
                self.assertEqual(0, int(status[name], 16), name)
            self.assertEqual("1", status["NoNewPrivs"])
            self.assertEqual("2", status["Seccomp"])
            for path in ("/x", "/tmp/x", "/usr/x", "/etc/lockstep/tls/x"):
                done = pod.execute("/usr/bin/touch", path)
                self.assertIn("Read-only file system", done.stderr, path)
        inside = job.current[1].execute("/usr/bin/lockstep", "trace", "--help")
        self.assertEqual(0, inside.returncode, inside.stderr)
        job.fail("it was only looked at")
        wait("the pods have ended", job.complete, job.pods)

    def test_03_image_alone(self):
        """The coordinator's image without any configuration: on loopback, and its health command."""
        image = self.images["lockstep-coordinator"]
        pod = Pod(self.node, "alone", {"spec": {"containers": [
            {"name": "coordinator", "image": "lockstep-coordinator"}]}})
        health = [image.find(image.health[0]), *image.health[1:]]
        wait("it is healthy", lambda: pod.init_pid() and pod.execute(*health).stdout == "ok\n",
             lambda: [pod], 10)
        self.assertEqual(str(UID), status_of(pod.init_pid())["Uid"].split()[0])
        pod.delete()
        wait("it has ended", pod.finished, lambda: [pod], 10)
        self.assertEqual((0, False), (pod.exit_code, pod.killed))

        asked = self.deployment.pod.execute(health[0], "health", "--http", "https://localhost:8080",
                                            "--cacert", "/etc/lockstep/tls/ca.crt")
        self.assertEqual("ok\n", asked.stdout, asked.stderr)

    def test_04_worker_deleted(self):
        """Its peers say who is gone, all come back, and the job ends well. One failure counts."""
        job = self.start("deleted", AGAIN)
        self.wait_step(job, 20)
        first = dict(job.current)
        first[1].delete()
        wait("all three have ended", lambda: all(pod.finished() for pod in first.values()), job.pods)
        self.assertEqual(143, first[1].exit_code)
        self.assertFalse(first[1].killed, "SIGTERM did not reach the trainer")
        for index in (0, 2):
            self.assertEqual(75, first[index].exit_code, first[index].said())
            self.assertIn("LOCKSTEP_E_PEER_LOST", first[index].said())
            self.assertIn("rank 1", first[index].said())
            self.assertIn("deleted-1", first[index].said())
        job.wait_complete()
        self.assert_trained(job)
        self.assertEqual((1, 2), (job.failures, job.ignored))

    def test_05_node_drained(self):
        """The same by an eviction: nothing counts."""
        job = self.start("evicted", SHORT)
        self.wait_step(job, 20)
        job.current[2].delete(disrupted=True)
        job.wait_complete()
        self.assertEqual((0, 3), (job.failures, job.ignored))

    def test_06_coordinator_drained(self):
        """The job goes on without it and ends well; the next pod serves the next job."""
        job = self.start("onward", LONGER)
        self.wait_step(job, 20)
        began = time.monotonic()
        old = self.deployment.delete_pod()
        wait("it is not ready any more", lambda: not old.ready, self.deployment.pods, 5)
        self.assertEqual([], self.node.lookup("lockstep-coordinator.lockstep.svc.cluster.local"))
        self.deployment.replace()
        self.assertEqual((0, False), (old.exit_code, old.killed), old.said())
        self.assertGreater(time.monotonic() - began, int(DRAIN_MS) / 1000 - 0.5)
        self.assertFalse(job.complete(), "the job ended before the drain did: nothing was shown")
        job.wait_complete()
        self.assert_trained(job)
        self.assertEqual((0, 0), (job.failures, job.ignored))
        self.deployment.wait_ready()
        after = self.start("after", SHORT)
        after.wait_complete()
        self.assert_trained(after)

    def test_07_coordinator_hangs(self):
        """The liveness probe ends it, and the kubelet starts the container again."""
        pod = self.deployment.pod
        pod.spec["terminationGracePeriodSeconds"] = 1
        subprocess.run(["kill", "-STOP", str(pod.init_pid())], check=True)
        wait("it was started again", lambda: pod.restarts == 1, self.deployment.pods)
        self.assertTrue(pod.killed)
        self.deployment.wait_ready()

    def test_08_jobset(self):
        """Two groups of one job; the ranks are the numbers of the child jobs."""
        jobs = list(jobs_of(self.jobset))
        for job in jobs:
            job["spec"]["template"]["spec"]["containers"][0]["args"] = SHORT
        children = [Job(self.node, job) for job in jobs]
        hosts = {}

        def seen():
            for worker in self.ask("/api/v1/jobs/mixed").get("workers", []):
                if worker["rank"] is not None:
                    hosts[worker["rank"]] = worker["host"]
            return len(hosts) == 4
        pods = [pod for child in children for pod in child.pods()]
        wait("four ranks are there", seen, lambda: pods)
        for child in children:
            child.wait_complete()
        for rank, group in enumerate(("gpu-0", "gpu-1", "cpu-0", "cpu-1")):
            self.assertTrue(hosts[rank].startswith(f"mixed-{group}-"), hosts)
        self.assertIn("equal on 4 of 4 ranks", pods[0].said())

    def test_09_training_runtime(self):
        """A child job of Kubeflow's, as its controllers make it of the runtime: a pod for each node."""
        group, = self.runtime["spec"]["template"]["spec"]["replicatedJobs"]
        spec = copy.deepcopy(group["template"]["spec"])
        spec["completions"] = spec["parallelism"] = self.runtime["spec"]["mlPolicy"]["numNodes"]
        spec["template"]["spec"]["containers"][0]["args"] = SHORT
        job = Job(self.node, {"apiVersion": "batch/v1", "kind": "Job",
                              "metadata": {"name": "mnist-node-0"}, "spec": spec})
        job.wait_complete()
        self.assert_trained(job)

    def test_10_certificates_replaced(self):
        """While a job runs: it goes on, and new connections are made with the new ones."""
        job = self.start("rotated", AGAIN)
        self.wait_step(job, 20)
        folder = os.path.join(setting.FOLDER, "renewed-coordinator")
        setting.issue_coordinator(setting.CERTIFICATES, folder)
        self.node.update_secret("lockstep-coordinator-tls", self.secret_from(folder))
        folder = os.path.join(setting.FOLDER, "renewed-worker")
        setting.issue_worker(setting.CERTIFICATES, "rotated", folder)
        self.node.update_secret("lockstep-rotated-tls", self.secret_from(folder))
        reloads = "lockstep_coordinator_tls_reloads_total"
        after = self.start("renewed", SHORT)
        after.wait_complete()
        job.wait_complete()
        self.assert_trained(job)
        self.assert_trained(after)
        self.assertEqual((0, 0), (job.failures, job.ignored))
        self.assertRegex(self.ask("/metrics"), rf"(?m)^{reloads} [1-9]")

    def test_11_strangers_certificate(self):
        """A worker of another authority learns nothing and says why; no job of its name appears."""
        other = os.path.join(setting.FOLDER, "stranger")
        setting.make_certificates(other)
        setting.issue_worker(other, "stranger", os.path.join(other, "stranger"))
        self.add_secret("stranger-tls", os.path.join(other, "stranger"))
        self.assert_kept_out("stranger", "stranger-tls", "is not signed by")

    def test_12_another_jobs_certificate(self):
        """A job that mounts another job's secret is refused, and appears nowhere."""
        self.assert_kept_out("borrower", "lockstep-mnist-tls", "is not a worker's of job borrower")

    def assert_kept_out(self, name, secret, sentence):
        def damage(job):
            template = job["spec"]["template"]["spec"]
            template["volumes"][0]["secret"]["secretName"] = secret
            job["spec"]["backoffLimit"] = 0
        with self.assertRaises(TimedOut) as caught:
            self.start(name, SHORT, damage).wait_complete()
        self.assertIn(sentence, str(caught.exception))
        self.assertNotIn(name, [job["name"] for job in self.ask("/api/v1/jobs")["jobs"]])

    def test_09_misconfigured(self):
        """A mistake in the job's own configuration fails it at once."""
        def damage(job):
            job["spec"]["template"]["spec"]["containers"][0]["env"].append(
                {"name": "LOCKSTEP_TRANSPORT", "value": "pigeon"})
        with self.assertRaises(TimedOut) as caught:
            self.start("mistaken", SHORT, damage).wait_complete()
        self.assertIn("ended with 78, which fails the job", str(caught.exception))
        self.assertIn("LOCKSTEP_TRANSPORT='pigeon'", str(caught.exception))
