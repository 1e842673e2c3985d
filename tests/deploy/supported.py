# SPDX-License-Identifier: Apache-2.0
"""Which fields of pods and their controllers the runner carries out. All others it refuses by name:
a field without effect here would look as if it had been tested.

In a tree, a dict names the fields of an object, a list holds the one tree of its elements, a tuple
the values that may stand there, ANY takes all, and NoEffect says why nothing has to be done.
"""


class Unsupported(Exception):
    """Names the field."""


class NoEffect:
    def __init__(self, why):
        self.why = why


ANY = object()
NAMED = {"name": ANY}

ENVIRONMENT = {
    "name": ANY,
    "value": ANY,
    "valueFrom": {
        "fieldRef": {"fieldPath": ANY, "apiVersion": ("v1",)},
        "configMapKeyRef": {"name": ANY, "key": ANY},
        "secretKeyRef": {"name": ANY, "key": ANY},
    },
}

PROBE = {
    "httpGet": {"path": ANY, "port": ANY, "scheme": ("HTTP", "HTTPS")},
    "initialDelaySeconds": ANY,
    "periodSeconds": ANY,
    "timeoutSeconds": ANY,
    "failureThreshold": ANY,
}

CONTAINER = {
    "name": ANY,
    "image": ANY,
    "imagePullPolicy": NoEffect("images are packages here, nothing is pulled"),
    "command": ANY,
    "args": ANY,
    "env": [ENVIRONMENT],
    "envFrom": [{"configMapRef": NAMED, "secretRef": NAMED}],
    "ports": [{"name": ANY, "containerPort": ANY, "protocol": ("TCP",)}],
    "startupProbe": PROBE,
    "livenessProbe": PROBE,
    "readinessProbe": PROBE,
    "resources": {
        "requests": NoEffect("for the scheduler"),
        "limits": {
            "memory": NoEffect("no memory controller may be had here"),
            "nvidia.com/gpu": NoEffect("for the scheduler"),
        },
    },
    "securityContext": {
        "allowPrivilegeEscalation": (True, False),
        "readOnlyRootFilesystem": (True, False),
        "capabilities": {"drop": (["ALL"],)},
    },
    "volumeMounts": [{"name": ANY, "mountPath": ANY, "readOnly": (True, False)}],
}

POD = {
    "serviceAccountName": NoEffect("no token is mounted, and there is no API server to ask"),
    "automountServiceAccountToken": (False,),
    "enableServiceLinks": (True, False),
    "hostname": ANY,
    "subdomain": ANY,
    "restartPolicy": ("Always", "Never"),
    "terminationGracePeriodSeconds": ANY,
    "tolerations": NoEffect("for the scheduler"),
    "securityContext": {
        "runAsNonRoot": (True, False),
        "runAsUser": ANY,
        "runAsGroup": ANY,
        "fsGroup": ANY,
        "seccompProfile": {"type": ("RuntimeDefault",)},
    },
    "containers": [CONTAINER],
    "volumes": [{
        "name": ANY,
        "secret": {"secretName": ANY, "defaultMode": ANY},
        "configMap": {"name": ANY, "defaultMode": ANY},
        "emptyDir": {"medium": ("", "Memory"), "sizeLimit": ANY},
    }],
}

METADATA = {"name": ANY, "namespace": ANY, "labels": ANY, "annotations": ANY}
TEMPLATE = {"metadata": METADATA, "spec": POD}

DEPLOYMENT = {
    "apiVersion": ("apps/v1",),
    "kind": ("Deployment",),
    "metadata": METADATA,
    "spec": {
        "replicas": (1,),
        "strategy": {"type": ("Recreate",)},
        "selector": ANY,
        "template": TEMPLATE,
    },
}

JOB = {
    "apiVersion": ("batch/v1",),
    "kind": ("Job",),
    "metadata": METADATA,
    "spec": {
        "completionMode": ("Indexed", "NonIndexed"),
        "completions": ANY,
        "parallelism": ANY,
        "backoffLimit": ANY,
        "podFailurePolicy": {"rules": [{
            "action": ("Ignore", "FailJob", "Count"),
            "onPodConditions": [{"type": ANY, "status": ("True",)}],
            "onExitCodes": {"containerName": ANY, "operator": ("In",), "values": ANY},
        }]},
        "template": TEMPLATE,
    },
}

JOBSET = {
    "apiVersion": ("jobset.x-k8s.io/v1alpha2",),
    "kind": ("JobSet",),
    "metadata": METADATA,
    "spec": {
        "network": {"enableDNSHostnames": (True,), "publishNotReadyAddresses": (True,)},
        "successPolicy": {"operator": ("All",)},
        "failurePolicy": NoEffect("a child job that fails fails the test"),
        "replicatedJobs": [{
            "name": ANY, "replicas": ANY, "template": {"spec": JOB["spec"]},
        }],
    },
}


def check(value, tree, path):
    """Raises Unsupported for the first field of value that is not in the tree."""
    if tree is ANY or isinstance(tree, NoEffect):
        return
    if isinstance(tree, tuple):
        if value not in tree:
            raise Unsupported(f"{path}: {value!r} is not implemented by the runner")
    elif isinstance(tree, list):
        for index, element in enumerate(value):
            check(element, tree[0], f"{path}[{index}]")
    else:
        for name, field in value.items():
            if name not in tree:
                raise Unsupported(f"{path}.{name} is not implemented by the runner")
            check(field, tree[name], f"{path}.{name}")
