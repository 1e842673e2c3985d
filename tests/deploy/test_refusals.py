# SPDX-License-Identifier: Apache-2.0
"""The runner refuses what it does not carry out, by name, instead of passing over it."""

import copy
import os
import unittest
import unittest.mock

import controllers
import manifests
import policies
import setting
from manifests import of_kind
from supported import DEPLOYMENT, JOB, JOBSET, Unsupported, check


def pod(objects):
    return objects["spec"]["template"]["spec"]


def container(objects):
    return pod(objects)["containers"][0]


# Additions to the Indexed Job, and the field that has to be named.
REFUSED = (
    (lambda j: pod(j).update(hostNetwork=True), "spec.hostNetwork"),
    (lambda j: pod(j).update(initContainers=[]), "spec.initContainers"),
    (lambda j: pod(j).update(shareProcessNamespace=True), "spec.shareProcessNamespace"),
    (lambda j: pod(j).update(automountServiceAccountToken=True), "automountServiceAccountToken: True"),
    (lambda j: pod(j).update(restartPolicy="OnFailure"), "restartPolicy: 'OnFailure'"),
    (lambda j: pod(j)["securityContext"].update(supplementalGroups=[1]), "supplementalGroups"),
    (lambda j: pod(j)["securityContext"].update(seccompProfile={"type": "Unconfined"}), "Unconfined"),
    (lambda j: pod(j)["volumes"].append({"name": "d", "hostPath": {"path": "/"}}), "[2].hostPath"),
    (lambda j: pod(j)["volumes"][0]["secret"].update(items=[]), "secret.items"),
    (lambda j: container(j).update(lifecycle={}), "containers[0].lifecycle"),
    (lambda j: container(j).update(workingDir="/"), "containers[0].workingDir"),
    (lambda j: container(j).update(livenessProbe={"exec": {}}), "livenessProbe.exec"),
    (lambda j: container(j)["securityContext"].update(privileged=True), "privileged"),
    (lambda j: container(j)["securityContext"]["capabilities"].update(add=["SYS_ADMIN"]), ".add"),
    (lambda j: container(j)["resources"]["limits"].update(cpu="1"), "limits.cpu"),
    (lambda j: container(j)["volumeMounts"][0].update(subPath="x"), "subPath"),
    (lambda j: container(j)["env"].append(
        {"name": "A", "valueFrom": {"resourceFieldRef": {}}}), "resourceFieldRef"),
    (lambda j: j["spec"].update(backoffLimitPerIndex=1), "spec.backoffLimitPerIndex"),
    (lambda j: j["spec"].update(activeDeadlineSeconds=1), "spec.activeDeadlineSeconds"),
)


class Ended:
    """As much of a pod as a job's failure policy looks at."""

    def __init__(self, code, disrupted=False):
        self.exit_code = code
        self.disrupted = disrupted


class Refusals(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.job, = of_kind(manifests.render(os.path.join(setting.TREE, "examples/indexed-job")), "Job")

    def test_supported_as_they_are(self):
        check(self.job, JOB, "Job")
        jobset, = manifests.render(os.path.join(setting.TREE, "examples/jobset"))
        check(jobset, JOBSET, "JobSet")
        for overlay in manifests.OVERLAYS:
            for thing in of_kind(manifests.render(os.path.join(setting.TREE, overlay)), "Deployment"):
                check(thing, DEPLOYMENT, "Deployment")

    def test_unknown_fields_are_refused(self):
        for damage, field in REFUSED:
            with self.subTest(field):
                job = copy.deepcopy(self.job)
                damage(job)
                with self.assertRaises(Unsupported) as caught:
                    check(job, JOB, "Job")
                self.assertIn(field, str(caught.exception))

    def test_kubectl_is_asked_for(self):
        """A machine without one, or with an old one, says how to get it."""
        folder = os.path.join(setting.FOLDER, "old")
        os.makedirs(folder, exist_ok=True)
        for said, sentence in ((None, "kubectl is not installed"),
                               ("Kustomize Version: v4.5.7", "kubectl is too old")):
            if said:
                with open(os.path.join(folder, "kubectl"), "w", encoding="ascii") as file:
                    file.write(f"#!/bin/sh\necho '{said}'\n")
                os.chmod(os.path.join(folder, "kubectl"), 0o755)
            with unittest.mock.patch.dict(os.environ, PATH=folder + (":/usr/bin" if said else "")):
                with self.assertRaises(manifests.Unrendered) as caught:
                    manifests.require_kubectl()
            self.assertIn(sentence, str(caught.exception))
            self.assertIn("https://kubernetes.io", str(caught.exception))

    def test_failure_policy(self):
        """Of a job that is not started."""
        job = controllers.Job.__new__(controllers.Job)
        job.spec = self.job["spec"]
        for code, disrupted, action in ((137, False, "Count"), (143, True, "Ignore"),
                                        (75, False, "Ignore"), (78, False, "FailJob"),
                                        (1, False, "Count")):
            self.assertEqual(action, job.action(Ended(code, disrupted)), code)

    def test_policies(self):
        deny = {"spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": []}}
        self.assertTrue(policies.allowed([], "Ingress", {}, {}, 80))
        self.assertFalse(policies.allowed([deny], "Ingress", {}, {}, 80))
        self.assertTrue(policies.allowed([deny], "Egress", {}, {}, 80))
        rule = {"from": [{"podSelector": {"matchLabels": {"a": "b"}}}],
                "ports": [{"port": 80, "endPort": 82}]}
        some = {"spec": dict(deny["spec"], ingress=[rule])}
        for labels, port, good in (({"a": "b"}, 82, True), ({"a": "b"}, 83, False), ({}, 80, False),
                                   (None, 80, False)):
            self.assertEqual(good, policies.allowed([deny, some], "Ingress", {}, labels, port))
