# SPDX-License-Identifier: Apache-2.0
"""The Helm chart, rendered by helm: the same objects as of the kustomizations, and wrong values refused."""

import copy
import json
import os
import re
import shutil
import subprocess
import unittest

import yaml

import manifests
import references
import schemas
import setting
from manifests import EXAMPLES, named, of_kind

CHART = os.path.join(setting.ROOT, "deploy/helm/lockstep")
LISTS = schemas.field_lists(os.path.join(os.path.dirname(__file__), "crds"))
# Objects of a kustomization that the chart does not make: secrets, whose content would be in the release.
LEFT_OUT = ("Secret",)
DIGEST = "sha256:" + 64 * "0"

DEV = {"namespace": {"create": True}}
PROD = {**DEV, "certManager": {"enabled": True}, "prometheus": {"enabled": True},
        "jobs": ["mnist", "mixed"],
        "image": {"repository": "registry.example.com/lockstep-coordinator", "digest": DIGEST}}
JOB = {"job": {"enabled": True}}

# Values, and a piece of the sentence that refuses them.
WRONG = (
    ({"replicas": 2}, "additional properties 'replicas' not allowed"),
    ({"image": {"name": "x"}}, "additional properties 'name' not allowed"),
    ({"image": {"digest": "sha256:12"}}, "at '/image/digest'"),
    ({"image": {"repository": ""}}, "at '/image/repository'"),
    ({"job": {"workers": -1}}, "at '/job/workers': minimum: got -1, want 1"),
    ({"job": {"workers": 1025}}, "at '/job/workers': maximum: got 1,025, want 1,024"),
    ({"job": {"workers": "3"}}, "at '/job/workers': got string, want integer"),
    ({"job": {"name": "Mnist"}}, "at '/job/name'"),
    ({"jobs": ["*"]}, "at '/jobs/0'"),
    ({"certManager": True}, "at '/certManager': got boolean, want object"),
    ({"environment": {"LOCKSTEP_DATA_PORTS": "1"}}, "additional properties 'LOCKSTEP_DATA_PORTS' not allowed"),
    ({"environment": {"LOCKSTEP_COORDINATOR_DRAIN_MS": 1}}, "got number, want string"),
    ({"dataPorts": {"first": 53}}, "at '/dataPorts/first'"),
    ({"dataPorts": {"first": 20100}}, "dataPorts.first is 20100, above dataPorts.last, 20099"),
    ({**PROD, "job": {"enabled": True, "name": "llama"}}, "nothing would make the secret lockstep-llama-tls"),
)


def helm(values, namespace="lockstep"):
    return subprocess.run(["helm", "template", "lockstep", CHART, "--namespace", namespace, "--values", "-"],
                          input=json.dumps(values), capture_output=True, text=True, check=False)


def render(values, namespace="lockstep"):
    done = helm(values, namespace)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return [thing for thing in yaml.safe_load_all(done.stdout) if thing]


def plain(objects):
    """The objects by kind and name, without the hash in the name of the coordinator's ConfigMap."""
    text = json.dumps([thing for thing in objects if thing["kind"] not in LEFT_OUT])
    text = re.sub(r'"lockstep-coordinator-[0-9a-z]{10}"', '"lockstep-coordinator-HASH"', text)
    result = {}
    for thing in json.loads(text):
        key = f"{thing['kind']} {thing['metadata']['name']}"
        if key in result:
            raise AssertionError(f"{key} is there twice")
        result[key] = thing
    return result


class Helm(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        if not shutil.which("helm"):
            raise unittest.SkipTest("there is no helm (tests/deploy/get_helm.py)")
        cls.kustomized = manifests.render_all(setting.TREE)

    def test_version(self):
        said = subprocess.run(["helm", "version", "--short"], check=True, capture_output=True, text=True)
        self.assertRegex(said.stdout, r"^v[34]\.")

    def test_lint(self):
        done = subprocess.run(["helm", "lint", "--strict", CHART], check=False, capture_output=True, text=True)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertNotIn("[WARNING]", done.stdout)

    def assert_same(self, values, objects):
        rendered = plain(render(values))
        wanted = plain(objects)
        self.assertEqual(sorted(wanted), sorted(rendered))
        for key, thing in wanted.items():
            self.assertEqual(thing, rendered[key], key)

    def test_same_as_overlay_dev(self):
        self.assert_same(DEV, self.kustomized["overlays/dev"])

    def test_same_as_overlay_prod(self):
        self.assert_same(PROD, self.kustomized["overlays/prod"])

    def test_same_as_indexed_job(self):
        self.assert_same({**DEV, **JOB}, [*self.kustomized["overlays/dev"],
                                          *self.kustomized["examples/indexed-job"]])

    def test_same_as_kueue(self):
        values = {"job": {"enabled": True, "queue": "lockstep"}}
        self.assertEqual(of_kind(self.kustomized["examples/kueue"], "Job"), of_kind(render(values), "Job"))

    def test_a_difference_is_found(self):
        """Each single value of the objects counts."""
        for kind, name, damage in (
                ("Deployment", "lockstep-coordinator", lambda o: o["spec"].update(replicas=2)),
                ("NetworkPolicy", "lockstep-workers", lambda o: o["spec"]["egress"].pop()),
                ("ConfigMap", "lockstep-workers", lambda o: o["data"].pop("LOCKSTEP_TLS_DIR")),
                ("Namespace", "lockstep", lambda o: o["metadata"].pop("labels"))):
            objects = copy.deepcopy(self.kustomized["overlays/dev"])
            damage(named(objects, kind, name))
            with self.assertRaises(AssertionError, msg=kind):
                self.assert_same(DEV, objects)
        with self.assertRaises(AssertionError):
            self.assert_same(DEV, self.kustomized["overlays/dev"][1:])

    def test_schemas_and_references(self):
        """Also with values that no kustomization has."""
        others = [thing for name in EXAMPLES for thing in self.kustomized[name]
                  if (thing["kind"], thing["metadata"]["name"]) != ("Job", "mnist")]
        for values, namespace in (
                ({**PROD, **JOB}, "lockstep"),
                ({**PROD, "job": {"enabled": True, "workers": 5, "queue": "lockstep"},
                  "dataPorts": {"first": 30000, "last": 30009},
                  "environment": {"LOCKSTEP_COORDINATOR_LOG_LEVEL": "debug"}}, "elsewhere")):
            objects = render(values, namespace)
            for thing in objects:
                self.assertEqual([], list(schemas.problems_of(thing, LISTS)))
                self.assertEqual(None if thing["kind"] == "Namespace" else namespace,
                                 thing["metadata"].get("namespace"))
            found = references.problems([*copy.deepcopy(others), *objects], setting.daemon_flags(),
                                        setting.library_strings())
            self.assertEqual([], found)

    def test_names_of_another_namespace(self):
        certificate = named(render(PROD, "elsewhere"), "Certificate", "lockstep-coordinator")
        self.assertIn("lockstep-coordinator.elsewhere.svc.cluster.local", certificate["spec"]["dnsNames"])
        self.assertNotIn("lockstep.svc", " ".join(certificate["spec"]["dnsNames"]))

    def test_config_rolls_the_coordinator(self):
        def config(values):
            template = named(render(values), "Deployment", "lockstep-coordinator")["spec"]["template"]
            return template["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"]
        debug = {"environment": {"LOCKSTEP_COORDINATOR_LOG_LEVEL": "debug"}}
        self.assertEqual(config({}), config(JOB))
        self.assertNotEqual(config({}), config(debug))
        drain = named(render({"environment": {"LOCKSTEP_COORDINATOR_DRAIN_MS": "9000"}}), "ConfigMap",
                      config({"environment": {"LOCKSTEP_COORDINATOR_DRAIN_MS": "9000"}}))
        self.assertEqual("9000", drain["data"]["LOCKSTEP_COORDINATOR_DRAIN_MS"])

    def test_wrong_values_are_refused(self):
        for values, sentence in WRONG:
            with self.subTest(values=values):
                done = helm(values)
                self.assertNotEqual(0, done.returncode)
                self.assertIn(sentence, done.stderr)
