# SPDX-License-Identifier: Apache-2.0
"""The manifests: rendered, against schemas, and against each other and the programs."""

import base64
import copy
import os
import unittest

import yaml

import manifests
import references
import schemas
import setting
from manifests import EXAMPLES, OVERLAYS, named, of_kind

LISTS = schemas.field_lists(os.path.join(os.path.dirname(__file__), "crds"))


def first(objects, kind, name):
    return named(objects, kind, name)["spec"]


def coordinator(objects):
    return first(objects, "Deployment", "lockstep-coordinator")["template"]["spec"]


def trainer(objects):
    return first(objects, "Job", "mnist")["template"]["spec"]


# Each entry breaks something, and has a piece of the sentence that must report it. They act on the
# overlay prod with the examples beside it.
BREAKS = (
    ("gRPC port", lambda o: coordinator(o)["containers"][0]["ports"][0].update(containerPort=50052),
     "the daemon listens on 50051"),
    ("service port", lambda o: first(o, "Service", "lockstep-coordinator")["ports"][0].update(
        targetPort="grcp"), "target grcp is None"),
    ("probe scheme", lambda o: coordinator(o)["containers"][0]["readinessProbe"]["httpGet"].update(
        scheme="HTTP"), "the daemon speaks another"),
    ("probe port", lambda o: coordinator(o)["containers"][0]["livenessProbe"]["httpGet"].update(
        port="grpc"), "livenessProbe asks port grpc"),
    ("service selector", lambda o: first(o, "Service", "lockstep-workers")["selector"].update(
        {"app.kubernetes.io/component": "wroker"}), "its selector finds no pod"),
    ("policy selector", lambda o: first(o, "NetworkPolicy", "lockstep-workers")["podSelector"].update(
        matchLabels={"a": "b"}), "NetworkPolicy lockstep-workers: its selector finds no pod"),
    ("policy range", lambda o: first(o, "NetworkPolicy", "lockstep-workers")["ingress"][0]["ports"][0]
        .update(endPort=20098), "Ingress to port 20099 is denied"),
    ("policy too wide", lambda o: first(o, "NetworkPolicy", "lockstep-workers")["ingress"][0].pop(
        "ports"), "port 19999 is let through"),
    ("data ports", lambda o: named(o, "ConfigMap", "lockstep-workers")["data"].update(
        LOCKSTEP_DATA_PORTS="20000-20199"), "Ingress to port 20199 is denied"),
    ("open coordinator", lambda o: first(o, "NetworkPolicy", "lockstep-coordinator")["ingress"][0].pop(
        "from"), "the coordinator lets"),
    ("budget", lambda o: first(o, "PodDisruptionBudget", "lockstep-coordinator").update(
        maxUnavailable=0), "it would block drains"),
    ("secret", lambda o: trainer(o)["volumes"][0]["secret"].update(secretName="tsl"),
     "nothing makes the secret tsl"),
    ("config", lambda o: trainer(o)["containers"][0]["envFrom"][0]["configMapRef"].update(name="x"),
     "there is no ConfigMap x"),
    ("mount", lambda o: trainer(o)["containers"][0]["volumeMounts"].pop(),
     "nothing is mounted at LOCKSTEP_TRACE_DIR"),
    ("variable of the daemon", lambda o: coordinator(o)["containers"][0].update(
        env=[{"name": "LOCKSTEP_COORDINATOR_LISTNE", "value": "x"}]), "has no flag for"),
    ("token of the monitor", lambda o: first(o, "ServiceMonitor", "lockstep-coordinator")[
        "endpoints"][0]["authorization"]["credentials"].update(name="x"), "makes the secret x"),
    ("flag", lambda o: coordinator(o)["containers"][0].update(args=["--http-tsl"]),
     "the daemon has no flag --http-tsl"),
    ("variable of a worker", lambda o: trainer(o)["containers"][0]["env"].append(
        {"name": "LOCKSTEP_DATA_PORST", "value": "x"}), "the library knows no"),
    ("server name", lambda o: named(o, "ConfigMap", "lockstep-workers")["data"].update(
        LOCKSTEP_COORDINATOR="coordinator:50051"), "is not in the coordinator's certificate"),
    ("certificate's URI", lambda o: first(o, "Certificate", "lockstep-mnist").update(
        uris=["lockstep://worker"]), "not lockstep://job/mnist/worker"),
    ("certificate of every job", lambda o: first(o, "Certificate", "lockstep-mnist").update(
        uris=["lockstep://job/*/worker"]), "lockstep-mnist-tls is for every job"),
    ("certificate of two jobs", lambda o: first(o, "Certificate", "lockstep-mixed")["uris"].append(
        "lockstep://job/mnist/worker"), "not lockstep://job/mixed/worker"),
    ("another job's certificate", lambda o: trainer(o)["volumes"][0]["secret"].update(
        secretName="lockstep-mixed-tls"), "not lockstep://job/mnist/worker"),
    ("coordinator's certificate", lambda o: first(o, "Certificate", "lockstep-coordinator").update(
        uris=["lockstep://observer"]), "not lockstep://coordinator"),
    ("issuer", lambda o: first(o, "Certificate", "lockstep-mnist")["issuerRef"].update(name="x"),
     "its issuer is not there"),
    ("world size", lambda o: first(o, "Job", "mnist").update(completions=4), "world size differ"),
    ("name servers", lambda o: first(o, "NetworkPolicy", "lockstep-workers")["egress"][2]["ports"].pop(),
     "it may not ask for names of openshift-dns by TCP"),
    ("cache of the node", lambda o: first(o, "NetworkPolicy", "lockstep-workers")["egress"][2]["to"][2][
        "ipBlock"].update(cidr="169.254.0.0/16"), "169.254.169.254, port 53 is let through"),
    ("nodes of a runtime", lambda o: first(o, "ClusterTrainingRuntime", "lockstep-mnist")["mlPolicy"].update(
        numNodes=4), "numNodes and world size differ"),
    ("runtime of a job", lambda o: first(o, "TrainJob", "mnist")["runtimeRef"].update(name="x"),
     "there is no such runtime"),
    ("queue", lambda o: of_kind(o, "LocalQueue")[0]["metadata"].update(name="x"), "there is no queue lockstep"),
    ("no index", lambda o: first(o, "Job", "mnist").update(completionMode="NonIndexed"),
     "there is no rank"),
    ("grace", lambda o: coordinator(o).update(terminationGracePeriodSeconds=20),
     "shorter than the drain"),
    ("root user", lambda o: trainer(o)["securityContext"].update(runAsUser=0), "runAsUser is not"),
    ("writable root", lambda o: trainer(o)["containers"][0]["securityContext"].update(
        readOnlyRootFilesystem=False), "readOnlyRootFilesystem is not"),
    ("host path", lambda o: trainer(o)["volumes"].append({"name": "tls", "hostPath": {"path": "/"}}),
     "of a kind that is not allowed"),
    ("service account", lambda o: trainer(o).update(serviceAccountName="default"),
     "is missing, or mounts a token"),
    ("service monitor", lambda o: first(o, "ServiceMonitor", "lockstep-coordinator")["endpoints"][0]
        .update(port="metrics"), "no service that it finds has a port metrics"),
)


class Manifests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        manifests.require_kubectl()
        cls.rendered = manifests.render_all(setting.TREE)
        cls.flags = setting.daemon_flags()
        cls.library = setting.library_strings()

    def together(self, overlay):
        """What a namespace holds: an overlay and the examples."""
        return copy.deepcopy([thing for name in (overlay, *EXAMPLES)
                              for thing in self.rendered[name]])

    def test_schemas(self):
        for name, objects in self.rendered.items():
            for thing in objects:
                self.assertEqual([], list(schemas.problems_of(thing, LISTS)), name)

    def test_schemas_find_mistakes(self):
        objects = self.together("overlays/prod")
        coordinator(objects)["containers"][0]["livenessProbe"]["httpGet"]["shceme"] = "HTTPS"
        for kind in ("Certificate", "ServiceMonitor", "PrometheusRule", "JobSet", "LocalQueue",
                     "ClusterQueue", "ResourceFlavor", "TrainJob", "ClusterTrainingRuntime"):
            of_kind(objects, kind)[0]["spec"]["wrong"] = 1
        of_kind(objects, "JobSet")[0]["spec"]["replicatedJobs"][0]["template"]["spec"]["wrong"] = 1
        found = [text for thing in objects for text in schemas.problems_of(thing, LISTS)]
        self.assertEqual(len(found), 2 * len(schemas.VERSIONS) + 9, found)

    def test_references(self):
        for overlay in OVERLAYS:
            found = references.problems(self.together(overlay), self.flags, self.library)
            self.assertEqual([], found, overlay)

    def test_references_find_mistakes(self):
        for name, damage, sentence in BREAKS:
            with self.subTest(name):
                objects = self.together("overlays/prod")
                damage(objects)
                found = references.problems(objects, self.flags, self.library)
                self.assertTrue(any(sentence in text for text in found), found)

    def test_files_for_every_job_are_found(self):
        """The same rule for certificates that come from files."""
        folder = os.path.join(setting.FOLDER, "every-job")
        setting.issue_worker(setting.CERTIFICATES, None, folder)
        objects = self.together("overlays/dev")
        with open(os.path.join(folder, "tls.crt"), "rb") as file:
            named(objects, "Secret", "lockstep-mnist-tls")["data"]["tls.crt"] = \
                base64.b64encode(file.read()).decode()
        found = references.problems(objects, self.flags, self.library)
        self.assertTrue(any("lockstep-mnist-tls is for every job" in text for text in found), found)

    def test_config_rolls_the_coordinator(self):
        name = coordinator(self.rendered["overlays/dev"])["containers"][0]["envFrom"][0]
        path = os.path.join(setting.TREE, "base/coordinator.env")
        with open(path, "a", encoding="utf-8") as file:
            file.write("LOCKSTEP_COORDINATOR_LOG_LEVEL=debug\n")
        changed = manifests.render(os.path.join(setting.TREE, "overlays/dev"))
        self.assertNotEqual(name, coordinator(changed)["containers"][0]["envFrom"][0])

    def test_production_names_images_by_digest(self):
        for _, template in manifests.templates(self.rendered["overlays/prod"]):
            for container in template["spec"]["containers"]:
                self.assertRegex(container["image"], "@sha256:[0-9a-f]{64}$")

    def test_rules_are_one(self):
        with open(os.path.join(setting.ROOT, "deploy/prometheus/rules.yaml"), encoding="utf-8") as file:
            plain = yaml.safe_load(file)
        rule = of_kind(self.rendered["overlays/prod"], "PrometheusRule")[0]
        self.assertEqual(plain, rule["spec"])
