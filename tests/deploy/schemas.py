# SPDX-License-Identifier: Apache-2.0
"""Objects against the schemas of several Kubernetes versions, strictly: an unknown field is an error.

Custom resources have none there; their fields are compared with the lists of crds/*.yaml.
"""

import glob
import os

import kubernetes_validate
import yaml

VERSIONS = ("1.29", "1.33", "1.37")
SCALARS = {"string": str, "integer": int, "boolean": bool}


def field_lists(folder):
    """(apiVersion, kind) to the tree of its fields."""
    result = {}
    for path in glob.glob(os.path.join(folder, "*.yaml")):
        with open(path, encoding="utf-8") as file:
            for kind in yaml.safe_load_all(file):
                result[kind["apiVersion"], kind["kind"]] = kind
    return result


def compare(value, tree, path):
    """Yields what of a custom resource is not in the tree of its fields, or of another type."""
    if tree == "any":
        return
    if isinstance(tree, str):
        if not isinstance(value, SCALARS[tree]) or (tree == "integer" and value is True):
            yield f"{path}: {value!r} is no {tree}"
    elif isinstance(tree, list):
        if not isinstance(value, list):
            yield f"{path}: {value!r} is no list"
            return
        for index, element in enumerate(value):
            yield from compare(element, tree[0], f"{path}[{index}]")
    elif not isinstance(value, dict):
        yield f"{path}: {value!r} is no object"
    elif "*" in tree:
        for key, element in value.items():
            yield from compare(element, tree["*"], f"{path}.{key}")
    else:
        for key, element in value.items():
            if key.rstrip("!") not in {name.rstrip("!") for name in tree}:
                yield f"{path}.{key}: there is no such field"
            else:
                yield from compare(element, tree.get(key, tree.get(key + "!")), f"{path}.{key}")
        for key in tree:
            if key.endswith("!") and key[:-1] not in value:
                yield f"{path}.{key[:-1]}: is missing"


def problems_of_custom(thing, lists):
    tree = lists[thing["apiVersion"], thing["kind"]]["spec"]
    yield from compare(thing["spec"], tree, f"{thing['kind']} {thing['metadata']['name']}: spec")
    if thing["kind"] == "ClusterTrainingRuntime":
        # What is inside is a JobSet.
        yield from problems_of({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
                                "metadata": thing["metadata"], "spec": thing["spec"]["template"]["spec"]},
                               lists)
    if thing["kind"] == "JobSet":
        # The template inside is a Kubernetes object again.
        for group in thing["spec"]["replicatedJobs"]:
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": group["name"]},
                   "spec": group["template"]["spec"]}
            yield from problems_of(job, lists)


def problems_of(thing, lists):
    """Sentences about what is wrong with an object, in any version."""
    if (thing["apiVersion"], thing["kind"]) in lists:
        yield from problems_of_custom(thing, lists)
        return
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(thing, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            where = ".".join(str(part) for part in error.path)
            yield (f"{thing['kind']} {thing['metadata']['name']}, Kubernetes {version}: "
                   f"{where}: {error.message[:200]}")
        except kubernetes_validate.SchemaNotFoundError as error:
            yield f"Kubernetes {version}: {error.message}"
