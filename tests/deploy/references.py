# SPDX-License-Identifier: Apache-2.0
"""What one object says of another, and of the programs, has to be so. Each check yields sentences.

`objects` are those of an overlay together with those of the examples: what a namespace would hold.
"""

import base64
import re

from manifests import environment, named, of_kind, templates
from policies import allowed, matches
from setting import certificate_uris

# Made by hand, as deploy/README.md says, not by any manifest.
EXTERNAL_SECRETS = {"lockstep-http-token"}
PROGRAM_VARIABLES = re.compile(r"LOCKSTEP_[A-Z_]+")


def containers(objects):
    for where, template in templates(objects):
        for container in template["spec"]["containers"]:
            yield where, template, container


def check_secrets(objects):
    made = {secret["metadata"]["name"] for secret in of_kind(objects, "Secret")}
    made |= {item["spec"]["secretName"] for item in of_kind(objects, "Certificate")}
    for where, template, _ in containers(objects):
        for volume in template["spec"].get("volumes", []):
            name = volume.get("secret", {}).get("secretName")
            if name and name not in made | EXTERNAL_SECRETS:
                yield f"{where}: nothing makes the secret {name}"
    for monitor in of_kind(objects, "ServiceMonitor"):
        for endpoint in monitor["spec"]["endpoints"]:
            for source in (endpoint["authorization"]["credentials"],
                           endpoint["tlsConfig"]["ca"]["secret"]):
                if source["name"] not in made | EXTERNAL_SECRETS:
                    yield f"ServiceMonitor: nothing makes the secret {source['name']}"


def check_config(objects):
    for where, _, container in containers(objects):
        for source in container.get("envFrom", []):
            name = source["configMapRef"]["name"]
            if not named(objects, "ConfigMap", name):
                yield f"{where}: there is no ConfigMap {name}"


def check_mounts(objects):
    for where, template, container in containers(objects):
        volumes = {volume["name"] for volume in template["spec"].get("volumes", [])}
        mounted = {item["name"] for item in container.get("volumeMounts", [])}
        if volumes != mounted:
            yield f"{where}: volumes {sorted(volumes)}, mounted {sorted(mounted)}"
        paths = [item["mountPath"] for item in container.get("volumeMounts", [])]
        for key, value in environment(objects, container).items():
            if key.endswith(("_DIR", "_FILE")) and not any(
                    value == path or value.startswith(path + "/") for path in paths):
                yield f"{where}: nothing is mounted at {key}={value}"


def check_variables(objects, flags, library):
    """flags: the daemon's; library: the strings in liblockstep."""
    for where, _, container in containers(objects):
        for key in environment(objects, container):
            if key.startswith("LOCKSTEP_COORDINATOR_"):
                if "--" + key[len("LOCKSTEP_COORDINATOR_"):].lower().replace("_", "-") not in flags:
                    yield f"{where}: the daemon has no flag for {key}"
            elif key.startswith("LOCKSTEP_") and key not in library:
                yield f"{where}: the library knows no {key}"
        if where.startswith("Deployment"):
            for argument in container.get("args", []):
                if argument.split("=")[0] not in flags:
                    yield f"{where}: the daemon has no flag {argument}"


def port_of(address):
    return int(address.rsplit(":", 1)[1])


def coordinator(objects):
    """(template, container, environment, ports by name) of the Deployment."""
    template = named(objects, "Deployment", "lockstep-coordinator")["spec"]["template"]
    container = template["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    return template, container, environment(objects, container), ports


def check_ports(objects):
    _, container, variables, ports = coordinator(objects)
    for name, key in (("grpc", "LISTEN"), ("http", "HTTP")):
        wanted = port_of(variables["LOCKSTEP_COORDINATOR_" + key])
        if ports.get(name) != wanted:
            yield f"port {name} is {ports.get(name)}, the daemon listens on {wanted}"
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container.get(kind, {}).get("httpGet", {})
        if probe.get("port") != "http":
            yield f"{kind} asks port {probe.get('port')}, not http"
        if probe.get("scheme") != ("HTTPS" if "--http-tls" in container.get("args", []) else "HTTP"):
            yield f"{kind}: scheme {probe.get('scheme')}, and the daemon speaks another"


def check_services(objects):
    pods = list(templates(objects))
    for service in of_kind(objects, "Service"):
        name, spec = service["metadata"]["name"], service["spec"]
        chosen = [template for _, template in pods
                  if matches({"matchLabels": spec["selector"]}, template["metadata"]["labels"])]
        if not chosen:
            yield f"Service {name}: its selector finds no pod"
        for port in spec.get("ports", []):
            for template in chosen:
                names = {item["name"]: item["containerPort"]
                         for item in template["spec"]["containers"][0].get("ports", [])}
                if names.get(port["targetPort"]) != port["port"]:
                    yield f"Service {name}: port {port['port']}, target {port['targetPort']} is " \
                          f"{names.get(port['targetPort'])}"


def check_selectors(objects):
    pods = list(templates(objects))
    for kind, field in (("NetworkPolicy", "podSelector"), ("PodDisruptionBudget", "selector")):
        for thing in of_kind(objects, kind):
            if not any(matches(thing["spec"][field], template["metadata"]["labels"])
                       for _, template in pods):
                yield f"{kind} {thing['metadata']['name']}: its selector finds no pod"
    for monitor in of_kind(objects, "ServiceMonitor"):
        found = [service for service in of_kind(objects, "Service")
                 if matches(monitor["spec"]["selector"], service["metadata"].get("labels", {}))]
        for endpoint in monitor["spec"]["endpoints"]:
            if not any(port["name"] == endpoint["port"]
                       for service in found for port in service["spec"].get("ports", [])):
                yield f"ServiceMonitor: no service that it finds has a port {endpoint['port']}"
    for budget in of_kind(objects, "PodDisruptionBudget"):
        if budget["spec"].get("maxUnavailable") != 1:
            yield "PodDisruptionBudget: with one replica it would block drains"


def worker_labels(objects):
    """(where, labels, variables) of everything that is no Deployment. Variables that are missing are
    for check_config to report."""
    result = []
    for where, template, container in containers(objects):
        variables = environment(objects, container)
        if not where.startswith("Deployment") and "LOCKSTEP_COORDINATOR" in variables:
            result.append((where, template["metadata"]["labels"], variables))
    return result


def check_name_servers(policies, where, labels):
    """Workers may ask for names in an ordinary cluster, on OpenShift, and at a cache of the node."""
    def may(port, protocol, namespace=None, address=None):
        found = namespace and {"kubernetes.io/metadata.name": namespace}
        return allowed(policies, "Egress", labels, None, port, found, protocol, address)
    for protocol in ("UDP", "TCP"):
        for port, namespace, address in ((53, "kube-system", None), (5353, "openshift-dns", None),
                                         (53, None, "169.254.20.10")):
            if not may(port, protocol, namespace, address):
                yield f"{where}: it may not ask for names of {namespace or address} by {protocol}"
        for port, namespace, address in ((443, "kube-system", None), (53, "default", None),
                                         (53, None, "169.254.169.254"), (80, None, "169.254.20.10")):
            if may(port, protocol, namespace, address):
                yield f"{where}: {namespace or address}, port {port} is let through"


def check_policies(objects):
    """Everything that has to get through does, and next to it nothing."""
    policies = of_kind(objects, "NetworkPolicy")
    _, _, _, ports = coordinator(objects)
    serving = coordinator(objects)[0]["metadata"]["labels"]
    stranger = {"app": "stranger"}
    for where, labels, variables in worker_labels(objects):
        first, last = map(int, variables["LOCKSTEP_DATA_PORTS"].split("-"))
        open_to = {"Egress": [(serving, ports["grpc"])], "Ingress": []}
        for direction in open_to:
            open_to[direction] += [(labels, first), (labels, last)]
            for peer, port in open_to[direction]:
                if not allowed(policies, direction, labels, peer, port):
                    yield f"{where}: {direction} to port {port} is denied"
            for peer, port in ((labels, first - 1), (labels, last + 1), (stranger, first),
                               (None, first), (serving, ports["http"])):
                if allowed(policies, direction, labels, peer, port):
                    yield f"{where}: {direction}, {peer}, port {port} is let through"
        if not allowed(policies, "Ingress", serving, labels, ports["grpc"]):
            yield f"{where}: the coordinator does not let it in"
        yield from check_name_servers(policies, where, labels)
    for peer in (stranger, None):
        for port in ports.values():
            if allowed(policies, "Ingress", serving, peer, port):
                yield f"the coordinator lets {peer} in at port {port}"
    if allowed(policies, "Egress", serving, stranger, 443):
        yield "the coordinator may connect to others"


def check_names(objects):
    """The names under which the coordinator is asked for are services, and in its certificate."""
    asked = {variables["LOCKSTEP_COORDINATOR"].rsplit(":", 1)[0]
             for _, _, variables in worker_labels(objects)}
    asked |= {endpoint["tlsConfig"]["serverName"] for monitor in of_kind(objects, "ServiceMonitor")
              for endpoint in monitor["spec"]["endpoints"]}
    for name in asked:
        if not named(objects, "Service", name):
            yield f"{name} is asked for, and is no service"
        for certificate in of_kind(objects, "Certificate"):
            if certificate["spec"]["secretName"] == "lockstep-coordinator-tls" \
                    and name not in certificate["spec"]["dnsNames"]:
                yield f"{name} is not in the coordinator's certificate"
    for _, _, variables in worker_labels(objects):
        host, port = variables["LOCKSTEP_COORDINATOR"].rsplit(":", 1)
        service = named(objects, "Service", host)
        if service and service["spec"]["ports"][0]["port"] != int(port):
            yield f"workers connect to port {port}, the service has another"


def secret_uris(objects):
    """What the certificate in each secret allows, by the secret's name: its URIs. Some secrets are
    filled by cert-manager, and some hold the files themselves."""
    uris = {certificate["spec"]["secretName"]: certificate["spec"].get("uris", [])
            for certificate in of_kind(objects, "Certificate") if not certificate["spec"].get("isCA")}
    for secret in of_kind(objects, "Secret"):
        if "tls.crt" in secret.get("data", {}):
            pem = base64.b64decode(secret["data"]["tls.crt"]).decode()
            uris[secret["metadata"]["name"]] = certificate_uris(pem)
    return uris


def check_certificates(objects):
    """Each pod's certificate is for that pod's own job, or is the coordinator's; none is for all jobs."""
    uris = secret_uris(objects)
    for name, found in uris.items():
        if any(uri.startswith("lockstep://job/*") for uri in found):
            yield f"the certificate in {name} is for every job: name one job in its URI"
    for where, template, container in containers(objects):
        job = environment(objects, container).get("LOCKSTEP_JOB")
        wanted = "lockstep://coordinator" if where.startswith("Deployment") else f"lockstep://job/{job}/worker"
        for volume in template["spec"].get("volumes", []):
            name = volume.get("secret", {}).get("secretName")
            if name in uris and uris[name] != [wanted]:
                yield f"{where}: the certificate in {name} has the URIs {uris[name]}, not {wanted}"
    for certificate in of_kind(objects, "Certificate"):
        if not named(objects, "Issuer", certificate["spec"]["issuerRef"]["name"]):
            yield f"Certificate {certificate['metadata']['name']}: its issuer is not there"


def check_worlds(objects):
    for job in of_kind(objects, "Job"):
        spec = job["spec"]
        size = environment(objects, spec["template"]["spec"]["containers"][0])["LOCKSTEP_WORLD_SIZE"]
        if not int(size) == spec["completions"] == spec["parallelism"]:
            yield f"Job {job['metadata']['name']}: completions, parallelism and world size differ"
        if spec["completionMode"] != "Indexed":
            yield f"Job {job['metadata']['name']}: without an index there is no rank"
    for runtime in of_kind(objects, "ClusterTrainingRuntime"):
        group, = runtime["spec"]["template"]["spec"]["replicatedJobs"]
        template = group["template"]["spec"]["template"]
        size = environment(objects, template["spec"]["containers"][0])["LOCKSTEP_WORLD_SIZE"]
        if int(size) != runtime["spec"]["mlPolicy"]["numNodes"]:
            yield f"ClusterTrainingRuntime {runtime['metadata']['name']}: numNodes and world size differ"
        for job in of_kind(objects, "TrainJob"):
            if job["spec"].get("trainer", {}).get("numNodes", int(size)) != int(size):
                yield f"TrainJob {job['metadata']['name']}: numNodes and world size differ"
            if job["spec"]["runtimeRef"]["name"] != runtime["metadata"]["name"]:
                yield f"TrainJob {job['metadata']['name']}: there is no such runtime"
    queues = {queue["metadata"]["name"] for queue in of_kind(objects, "LocalQueue")}
    for job in of_kind(objects, "Job") + of_kind(objects, "JobSet") + of_kind(objects, "TrainJob"):
        queue = job["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name")
        if queue and queue not in queues:
            yield f"{job['kind']} {job['metadata']['name']}: there is no queue {queue}"
    for jobset in of_kind(objects, "JobSet"):
        groups = jobset["spec"]["replicatedJobs"]
        for group in groups:
            template = group["template"]["spec"]["template"]
            size = environment(objects, template["spec"]["containers"][0])["LOCKSTEP_WORLD_SIZE"]
            if int(size) != sum(item["replicas"] for item in groups):
                yield f"JobSet {group['name']}: world size {size}, replicas are others"


def check_grace(objects):
    template, _, variables, _ = coordinator(objects)
    drain_s = int(variables["LOCKSTEP_COORDINATOR_DRAIN_MS"]) / 1000
    if drain_s + 5 > template["spec"]["terminationGracePeriodSeconds"]:
        yield "the grace period is shorter than the drain"


def check_restricted(objects):
    """The pod security standard `restricted`, and what goes beyond it."""
    for where, template, container in containers(objects):
        pod, own = template["spec"], container.get("securityContext", {})
        context = pod.get("securityContext", {})
        wanted = {
            "runAsNonRoot": context.get("runAsNonRoot") is True,
            "runAsUser": context.get("runAsUser", 0) > 0,
            "seccompProfile": context.get("seccompProfile") == {"type": "RuntimeDefault"},
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "capabilities": own.get("capabilities") == {"drop": ["ALL"]},
            "readOnlyRootFilesystem": own.get("readOnlyRootFilesystem") is True,
            "automountServiceAccountToken": pod.get("automountServiceAccountToken") is False,
            "enableServiceLinks": pod.get("enableServiceLinks") is False,
            "resources.requests": "requests" in container.get("resources", {}),
            "resources.limits.memory": "memory" in container.get("resources", {}).get("limits", {}),
        }
        for name, good in wanted.items():
            if not good:
                yield f"{where}: {name} is not as it has to be"
        for volume in pod.get("volumes", []):
            if not set(volume) <= {"name", "secret", "configMap", "emptyDir"}:
                yield f"{where}: volume {volume['name']} is of a kind that is not allowed"


def check_accounts(objects):
    for where, template in templates(objects):
        name = template["spec"].get("serviceAccountName")
        account = named(objects, "ServiceAccount", name)
        if not account or account.get("automountServiceAccountToken") is not False:
            yield f"{where}: service account {name} is missing, or mounts a token"


CHECKS = (check_secrets, check_config, check_mounts, check_ports, check_services, check_selectors,
          check_policies, check_names, check_certificates, check_worlds, check_grace,
          check_restricted, check_accounts)


def problems(objects, flags, library):
    result = [sentence for check in CHECKS for sentence in check(objects)]
    return result + list(check_variables(objects, flags, library))
