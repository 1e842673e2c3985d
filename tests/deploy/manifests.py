# SPDX-License-Identifier: Apache-2.0
"""Renders the kustomizations of a tree, and finds things in what comes out."""

import os
import re
import subprocess

import yaml

OVERLAYS = ("overlays/dev", "overlays/prod")
EXAMPLES = ("examples/indexed-job", "examples/jobset", "examples/kueue", "examples/kubeflow")
KUSTOMIZE_LEAST = (5, 0)  # Components with patches, labels with templates.


class Unrendered(Exception):
    """A sentence of kubectl's, or why there is none that will do."""


def require_kubectl():
    """The version of kustomize in kubectl. One that is missing or old is named, and how to get one."""
    how = "get kubectl 1.27 or newer: https://kubernetes.io/docs/tasks/tools/ (one file, no cluster)"
    try:
        said = subprocess.run(["kubectl", "version", "--client"], capture_output=True, text=True,
                              check=False).stdout
    except FileNotFoundError:
        raise Unrendered(f"kubectl is not installed; {how}") from None
    found = re.search(r"Kustomize Version: v(\d+)\.(\d+)", said)
    if not found or (int(found[1]), int(found[2])) < KUSTOMIZE_LEAST:
        raise Unrendered(f"kubectl is too old, its kustomize is "
                         f"{found[0] if found else 'unknown'}; {how}")
    return f"{found[1]}.{found[2]}"


def render(folder):
    result = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True,
                            check=False)
    if result.returncode != 0:
        raise Unrendered(f"{folder}: {result.stderr.strip()}")
    return [thing for thing in yaml.safe_load_all(result.stdout) if thing]


def render_all(tree):
    return {name: render(os.path.join(tree, name)) for name in (*OVERLAYS, *EXAMPLES)}


def of_kind(objects, kind):
    return [thing for thing in objects if thing["kind"] == kind]


def named(objects, kind, name):
    """The object, or None. ConfigMaps are also found without the hash at the end of the name."""
    for thing in of_kind(objects, kind):
        if thing["metadata"]["name"] == name:
            return thing
    return None


def templates(objects):
    """(what it is in, the pod template) for everything that makes pods."""
    for thing in objects:
        name = f"{thing['kind']} {thing['metadata']['name']}"
        if thing["kind"] in ("Deployment", "Job"):
            yield name, thing["spec"]["template"]
        elif thing["kind"] in ("JobSet", "ClusterTrainingRuntime"):
            jobset = thing if thing["kind"] == "JobSet" else thing["spec"]["template"]
            for group in jobset["spec"]["replicatedJobs"]:
                yield f"{name} {group['name']}", group["template"]["spec"]["template"]


def environment(objects, container):
    """The variables of a container, as far as they are known without a pod."""
    result = {}
    for source in container.get("envFrom", []):
        found = named(objects, "ConfigMap", source["configMapRef"]["name"])
        result.update(found["data"] if found else {})
    for variable in container.get("env", []):
        result[variable["name"]] = variable.get("value", "")
    return result
