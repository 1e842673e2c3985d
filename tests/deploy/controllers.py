# SPDX-License-Identifier: Apache-2.0
"""What the controllers of a cluster make of a Deployment, an Indexed Job and a JobSet, on one node.

Left out, because a test has no time for it: the back-off of ten seconds and more before a failed pod
comes again; here it is RETRY_S. Each `step` looks once, and is called again and again.
"""

import copy
import itertools
import os
import time

from node import Pod
from supported import DEPLOYMENT, JOB, JOBSET, check

RETRY_S = 0.3
TICK_S = 0.05
serial = itertools.count(1)


class TimedOut(Exception):
    """What was waited for did not come; the text has the pods' last words."""


def patience():
    """How much longer than on a machine of one's own things may take."""
    slow = float(os.environ.get("LOCKSTEP_TEST_SLOW", "1"))
    return max(slow, 5) if os.environ.get("CI") == "true" else slow


def wait(what, condition, pods, seconds=60):
    """Waits until condition() is true."""
    seconds *= patience()
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            states = "\n".join(f"--- {pod.name}: {pod.phase}, exit code {pod.exit_code}\n"
                               + pod.said()[-1500:] for pod in pods())
            raise TimedOut(f"{what}: not after {seconds} s\n{states}")
        time.sleep(TICK_S)


class Deployment:
    """One replica; a new pod begins when the old one has ended (Recreate)."""

    def __init__(self, node, spec):
        check(spec, DEPLOYMENT, "Deployment")
        self.node = node
        self.name = spec["metadata"]["name"]
        self.template = spec["spec"]["template"]
        self.pod = None
        self.old = []
        self.create()

    def create(self):
        self.pod = Pod(self.node, f"{self.name}-{next(serial):05}", self.template)

    def pods(self):
        return [*self.old, self.pod]

    def wait_ready(self, seconds=30):
        wait(f"{self.name} is ready", lambda: self.pod.ready, self.pods, seconds)

    def delete_pod(self):
        """As a rollout or a drained node does: the pod ends in its own time. Returns it."""
        self.pod.delete(disrupted=True)
        return self.pod

    def replace(self, seconds=40):
        """Waits for the old pod's end, then begins the new one."""
        wait(f"{self.pod.name} has ended", self.pod.finished, self.pods, seconds)
        self.old.append(self.pod)
        self.create()


class Job:
    """A pod for each index. A pod that failed comes again, as podFailurePolicy says."""

    def __init__(self, node, spec):
        check(spec, JOB, "Job")
        self.node = node
        self.name = spec["metadata"]["name"]
        self.spec = spec["spec"]
        self.indexed = self.spec.get("completionMode") == "Indexed"
        self.count = self.spec["completions"]
        if self.spec.get("parallelism", self.count) != self.count:
            raise ValueError(f"Job {self.name}: parallelism below completions would wait for ever")
        self.failures = 0
        self.ignored = 0
        self.failed = None  # Why.
        self.all_pods = []
        self.done = set()
        self.retry_at = {}
        self.current = {index: self.create(index) for index in range(self.count)}

    def create(self, index):
        template = copy.deepcopy(self.spec["template"])
        annotations, hostname = {}, None
        if self.indexed:
            annotations["batch.kubernetes.io/job-completion-index"] = str(index)
            hostname = f"{self.name}-{index}"
        template.setdefault("metadata", {}).setdefault("labels", {})[
            "batch.kubernetes.io/job-name"] = self.name
        pod = Pod(self.node, f"{self.name}-{index}-{next(serial):05}", template, hostname,
                  annotations)
        self.all_pods.append(pod)
        return pod

    def pods(self):
        return self.all_pods

    def action(self, pod):
        """What podFailurePolicy says of a failed pod: the first rule that holds counts."""
        for rule in self.spec.get("podFailurePolicy", {}).get("rules", []):
            conditions = [item["type"] for item in rule.get("onPodConditions", [])]
            if pod.disrupted and "DisruptionTarget" in conditions:
                return rule["action"]
            if pod.exit_code in rule.get("onExitCodes", {}).get("values", []):
                return rule["action"]
        return "Count"

    def fail(self, why):
        self.failed = why
        for pod in self.current.values():
            pod.delete()

    def see_failure(self, index, pod):
        action = self.action(pod)
        self.retry_at[index] = time.monotonic() + RETRY_S
        if action == "Ignore":
            self.ignored += 1
        elif action == "FailJob":
            self.fail(f"{pod.name} ended with {pod.exit_code}, which fails the job")
        else:
            self.failures += 1
            if self.failures > self.spec.get("backoffLimit", 6):
                self.fail(f"{self.failures} pods have failed, backoffLimit is exceeded")

    def step(self):
        for index, pod in self.current.items():
            if self.failed or index in self.done or not pod.finished():
                continue
            if pod.phase == "Succeeded":
                self.done.add(index)
            elif index not in self.retry_at:
                self.see_failure(index, pod)
            elif time.monotonic() > self.retry_at[index]:
                del self.retry_at[index]
                self.current[index] = self.create(index)

    def complete(self):
        self.step()
        return len(self.done) == self.count or \
            (self.failed is not None and all(pod.finished() for pod in self.current.values()))

    def wait_complete(self, seconds=90):
        wait(f"job {self.name} is complete", self.complete, self.pods, seconds)
        if self.failed:
            raise TimedOut(f"job {self.name} failed: {self.failed}\n"
                           + "\n".join(pod.said()[-1000:] for pod in self.all_pods))


def jobs_of(jobset):
    """The child jobs of a JobSet, as its controller makes them; they are numbered through all."""
    check(jobset, JOBSET, "JobSet")
    name = jobset["metadata"]["name"]
    number = itertools.count()
    for group in jobset["spec"]["replicatedJobs"]:
        for replica in range(group["replicas"]):
            spec = copy.deepcopy(group["template"]["spec"])
            labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
            labels["jobset.sigs.k8s.io/jobset-name"] = name
            labels["jobset.sigs.k8s.io/job-global-index"] = str(next(number))
            spec["template"]["spec"]["subdomain"] = name
            yield {"apiVersion": "batch/v1", "kind": "Job",
                   "metadata": {"name": f"{name}-{group['name']}-{replica}"}, "spec": spec}
