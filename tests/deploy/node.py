# SPDX-License-Identifier: Apache-2.0
"""One node: a network of pods, and what a kubelet does for each of them.

A pod is a network and host name namespace on a bridge; its one container is a process of
sandbox.py in it. Probes are sent from the node's side. A thread watches each pod. Nothing is put
away here: it runs in network and process namespaces of its own (tests/deploy/run makes them), and
everything ends with its process.
"""

import base64
import http.client
import json
import os
import re
import shlex
import signal
import ssl
import subprocess
import sys
import threading
import time

from names import NameServer
from supported import POD, check

HERE = os.path.dirname(os.path.abspath(__file__))
NODE_ADDRESS = "10.77.0.1"
DOMAIN = "cluster.local"
TICK_S = 0.05
GRACE_S = 30
CAPACITY = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


class Unstartable(Exception):
    """What the kubelet would say instead of starting a container."""


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


def expand(text, environment):
    """$(NAME) in commands and values, as in a pod."""
    return re.sub(r"\$\((\w+)\)", lambda found: environment.get(found[1], found[0]), text)


def write_atomically(folder, files, mode, gid):
    """A directory of a secret as the kubelet keeps it: links that are swung over all at once."""
    fresh = f"..{time.monotonic_ns()}"
    os.makedirs(os.path.join(folder, fresh))
    for name, content in files.items():
        path = os.path.join(folder, fresh, name)
        with open(path, "wb") as file:
            file.write(content)
        os.chmod(path, mode)
        os.chown(path, 0, gid)
        if not os.path.islink(os.path.join(folder, name)):
            os.symlink(f"..data/{name}", os.path.join(folder, name))
    os.symlink(fresh, os.path.join(folder, "..new"))
    os.rename(os.path.join(folder, "..new"), os.path.join(folder, "..data"))


class Probe:
    """One probe's schedule and what came of it."""

    def __init__(self, kind, spec, container):
        self.kind = kind
        get = spec["httpGet"]
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        self.port = ports.get(get["port"], get["port"])
        self.path = get["path"]
        self.tls = get.get("scheme") == "HTTPS"
        self.period_s = spec.get("periodSeconds", 10)
        self.timeout_s = spec.get("timeoutSeconds", 1)
        self.threshold = spec.get("failureThreshold", 3)
        self.due = time.monotonic() + spec.get("initialDelaySeconds", 0)
        self.failures = 0
        self.successes = 0
        self.good = None  # None: not known yet.

    def ask(self, address):
        """The status, or None without an answer. As the kubelet does, it trusts any certificate."""
        if self.tls:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            client = http.client.HTTPSConnection(
                address, self.port, timeout=self.timeout_s, context=context)
        else:
            client = http.client.HTTPConnection(address, self.port, timeout=self.timeout_s)
        try:
            client.request("GET", self.path, headers={"User-Agent": "kube-probe/1.0"})
            return client.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            client.close()

    def run(self, address):
        self.due = time.monotonic() + self.period_s
        status = self.ask(address)
        if status is not None and 200 <= status < 400:
            self.failures, self.good = 0, True
            self.successes += 1
        else:
            self.failures += 1
            if self.failures >= self.threshold:
                self.good = False


class Pod:
    """One pod with one container, from its creation to its end."""

    def __init__(self, node, name, template, hostname=None, annotations=None):
        check(template["spec"], POD, f"pod {name}: spec")
        self.node = node
        self.name = name
        self.spec = template["spec"]
        if len(self.spec["containers"]) != 1:
            raise Unstartable(f"pod {name}: the runner starts one container, not more")
        self.container = self.spec["containers"][0]
        self.labels = template.get("metadata", {}).get("labels", {})
        self.annotations = {**template.get("metadata", {}).get("annotations", {}),
                            **(annotations or {})}
        self.hostname = hostname or self.spec.get("hostname") or name
        self.folder = os.path.join(node.folder, name)
        self.log = os.path.join(node.folder, f"{name}.log")
        self.phase = "Pending"
        self.ready = False
        self.restarts = 0
        self.exit_code = None
        self.disrupted = False  # The condition DisruptionTarget.
        self.killed = False  # The grace period was over.
        self.deadline = None  # When a SIGTERM that was sent becomes a SIGKILL.
        self.deleted = False
        self.process = None
        self.probes = {}
        self.ready_history = []
        node.attach(self)
        threading.Thread(target=self.watch, daemon=True).start()

    # ---- what the container gets -------------------------------------------------------------

    def field(self, path):
        known = {"metadata.name": self.name, "metadata.namespace": self.node.namespace,
                 "status.podIP": self.address, "spec.nodeName": "node"}
        found = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path)
        if found:
            table = self.labels if found[1] == "labels" else self.annotations
            return table.get(found[2], "")
        if path not in known:
            raise Unstartable(f"fieldRef {path} is not implemented by the runner")
        return known[path]

    def value_of(self, variable, environment):
        source = variable.get("valueFrom")
        if source is None:
            return expand(variable.get("value", ""), environment)
        if "fieldRef" in source:
            return self.field(source["fieldRef"]["fieldPath"])
        kind = "ConfigMap" if "configMapKeyRef" in source else "Secret"
        reference = source.get("configMapKeyRef") or source["secretKeyRef"]
        return self.node.data(kind, reference["name"])[reference["key"]].decode()

    def environment(self, image):
        result = dict(image.environment, HOSTNAME=self.hostname,
                      PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        result.update({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"})
        if self.spec.get("enableServiceLinks", True):
            result.update(self.node.service_links())
        for source in self.container.get("envFrom", []):
            kind, reference = ("ConfigMap", source["configMapRef"]) \
                if "configMapRef" in source else ("Secret", source["secretRef"])
            for key, value in self.node.data(kind, reference["name"]).items():
                result[key] = value.decode()
        for variable in self.container.get("env", []):
            result[variable["name"]] = self.value_of(variable, result)
        # The Job controller sets this one.
        index = self.annotations.get("batch.kubernetes.io/job-completion-index")
        if index is not None:
            result["JOB_COMPLETION_INDEX"] = index
        return result

    def command(self, image, environment):
        entry = self.container.get("command") or image.entrypoint
        arguments = self.container.get("args")
        if arguments is None:
            arguments = [] if self.container.get("command") else image.command
        argv = [expand(word, environment) for word in [*entry, *arguments]]
        path = image.find(argv[0])
        if path is None:
            raise Unstartable(f"pod {self.name}: image {image.name} has no {argv[0]}")
        return [path, *argv[1:]]

    def volume(self, volume, group):
        """The node's directory of a volume, or the size of one in memory."""
        if "emptyDir" in volume:
            empty = volume["emptyDir"] or {}
            if empty.get("medium") == "Memory":
                limit = str(empty.get("sizeLimit", "64Mi"))
                return {"tmpfs_bytes": int(limit[:-2]) * CAPACITY[limit[-2:]], "gid": group}
            folder = os.path.join(self.folder, volume["name"])
            os.makedirs(folder, exist_ok=True)
            os.chown(folder, 0, group)
            os.chmod(folder, 0o2777)
            return {"source": folder}
        kind, source = ("Secret", volume["secret"]) if "secret" in volume \
            else ("ConfigMap", volume["configMap"])
        name = source.get("secretName") or source.get("name")
        folder = os.path.join(self.folder, volume["name"])
        if not os.path.isdir(folder):
            os.makedirs(folder)
        write_atomically(folder, self.node.data(kind, name), source.get("defaultMode", 0o644), group)
        return {"source": folder}

    def mounts(self, group):
        volumes = {volume["name"]: volume for volume in self.spec.get("volumes", [])}
        result = []
        for mounted in self.container.get("volumeMounts", []):
            volume = volumes[mounted["name"]]
            read_only = mounted.get("readOnly", False) or "emptyDir" not in volume
            result.append({"target": mounted["mountPath"], "read_only": read_only,
                           **self.volume(volume, group)})
        return result

    def user(self, image):
        pod = self.spec.get("securityContext", {})
        own = self.container.get("securityContext", {})
        uid = pod.get("runAsUser", image.uid)
        if pod.get("runAsNonRoot") and uid == 0:
            raise Unstartable(f"pod {self.name}: it would run as root, and runAsNonRoot is set")
        return {
            "uid": uid,
            "gid": pod.get("runAsGroup", image.gid),
            "groups": [pod["fsGroup"]] if "fsGroup" in pod else [],
            "no_new_privileges": own.get("allowPrivilegeEscalation") is False,
            "drop_all": own.get("capabilities", {}).get("drop") == ["ALL"],
            "seccomp": "seccompProfile" in pod,
        }

    def etc(self):
        node = self.node
        search = f"{node.namespace}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}"
        return {
            "hosts": f"127.0.0.1 localhost\n::1 localhost\n{self.address} {self.hostname}\n",
            "resolv.conf": f"nameserver {NODE_ADDRESS}\nsearch {search}\noptions ndots:5\n",
            "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
            "passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\n",
            "group": "root:x:0:\n",
            "hostname": f"{self.hostname}\n",
        }

    def describe(self):
        image = self.node.image(self.container["image"])
        user = self.user(image)
        environment = self.environment(image)
        root = os.path.join(self.folder, "root")
        os.makedirs(root, exist_ok=True)
        return {
            "root": root,
            "image": {"usr": image.usr, "etc": self.etc(), "data": image.data},
            "mounts": self.mounts(self.spec.get("securityContext", {}).get("fsGroup", 0)),
            "read_only": self.container.get("securityContext", {})
                             .get("readOnlyRootFilesystem", False),
            "user": user,
            "argv": self.command(image, environment),
            "env": environment,
        }

    # ---- what the kubelet does ---------------------------------------------------------------

    def start(self):
        description = self.describe()
        path = os.path.join(self.folder, "container.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(description, file)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                ["nsenter", f"--target={self.keeper.pid}", "--net", "--uts", "--",
                 "unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--",
                 sys.executable, os.path.join(HERE, "sandbox.py"), path],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.probes = {
            kind: Probe(kind, self.container[kind + "Probe"], self.container)
            for kind in ("startup", "liveness", "readiness") if kind + "Probe" in self.container
        }
        self.phase = "Running"

    def init_pid(self):
        """The node's number of the container's process 1, or None."""
        if self.process is None:
            return None
        try:
            with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children",
                      encoding="ascii") as file:
                return int(file.read().split()[0])
        except (OSError, IndexError):
            return None

    def signal(self, number):
        pid = self.init_pid()
        if pid is not None:
            os.kill(pid, number)

    def terminate(self):
        """SIGTERM, and SIGKILL after the grace period."""
        if self.process is None or self.deadline is not None:
            return
        grace = self.spec.get("terminationGracePeriodSeconds", GRACE_S)
        self.deadline = time.monotonic() + grace
        self.signal(signal.SIGTERM)

    def delete(self, disrupted=False):
        """As `kubectl delete pod` does, or, disrupted, the drain of a node. Does not wait."""
        self.disrupted = self.disrupted or disrupted
        self.deleted = True
        self.terminate()

    def set_ready(self, ready):
        if ready != self.ready:
            self.ready_history.append((time.monotonic(), ready))
        self.ready = ready

    def probe(self):
        startup = self.probes.get("startup")
        if startup is not None and startup.good is not True:
            if startup.good is False:
                self.terminate()
            elif time.monotonic() >= startup.due:
                startup.run(self.address)
            return
        for kind in ("liveness", "readiness"):
            probe = self.probes.get(kind)
            if probe is not None and time.monotonic() >= probe.due:
                probe.run(self.address)
        liveness, readiness = self.probes.get("liveness"), self.probes.get("readiness")
        if liveness is not None and liveness.good is False:
            self.terminate()
        self.set_ready(readiness.good is True if readiness is not None else True)

    def ended(self, code):
        self.set_ready(False)
        self.exit_code = code if code >= 0 else 128 - code
        if self.spec.get("restartPolicy", "Always") == "Always" and not self.deleted:
            self.restarts += 1
            self.deadline = None
            self.start()
            return False
        self.phase = "Succeeded" if self.exit_code == 0 else "Failed"
        self.node.detach(self)
        return True

    def watch(self):
        try:
            self.start()
        except (Unstartable, KeyError) as error:
            with open(self.log, "a", encoding="utf-8") as log:
                log.write(f"{error}\n")
            self.phase, self.exit_code = "Failed", 128
            self.node.detach(self)
            return
        while True:
            code = self.process.poll()
            if code is not None:
                if self.ended(code):
                    return
            elif self.deadline is not None and time.monotonic() > self.deadline:
                self.killed = True
                self.signal(signal.SIGKILL)
            else:
                self.probe()
            time.sleep(TICK_S)

    def execute(self, *command):
        """Runs a command in the container, as `kubectl exec` and health commands do."""
        pid = self.init_pid()
        with open(f"/proc/{pid}/environ", encoding="utf-8") as file:
            environment = dict(entry.split("=", 1) for entry in file.read().split("\0") if entry)
        user = self.user(self.node.image(self.container["image"]))
        return subprocess.run(
            ["nsenter", f"--target={pid}", "--mount", "--net", "--uts", "--pid", "--root", "--",
             "/usr/bin/setpriv", f"--reuid={user['uid']}", f"--regid={user['gid']}",
             "--clear-groups", "--", *command],
            env=environment, capture_output=True, text=True, check=False, timeout=30)

    def said(self):
        try:
            with open(self.log, encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def finished(self):
        return self.phase in ("Succeeded", "Failed")


class Node:
    """The network, the name server, and the objects that pods refer to."""

    def __init__(self, folder, namespace, images):
        self.folder = folder
        self.namespace = namespace
        self.images = images
        self.objects = {}  # (kind, name): object
        self.pods = []
        self.next_host = 2
        self.lock = threading.Lock()
        os.makedirs(folder, exist_ok=True)
        ip("link", "set", "lo", "up")
        ip("link", "add", "br0", "type", "bridge")
        ip("address", "add", f"{NODE_ADDRESS}/16", "dev", "br0")
        ip("link", "set", "br0", "up")
        self.names = NameServer(NODE_ADDRESS, self.lookup)

    # ---- objects -----------------------------------------------------------------------------

    def apply(self, objects):
        for thing in objects:
            self.objects[thing["kind"], thing["metadata"]["name"]] = thing

    def kind(self, kind):
        return [thing for (of, _), thing in self.objects.items() if of == kind]

    def data(self, kind, name):
        """A ConfigMap or Secret as bytes by key."""
        thing = self.objects.get((kind, name))
        if thing is None:
            raise Unstartable(f"{kind} {name} does not exist")
        result = {key: text.encode() for key, text in thing.get("data", {}).items()}
        if kind == "Secret":
            result = {key: base64.b64decode(text) for key, text in result.items()}
            result.update({key: text.encode() for key, text in thing.get("stringData", {}).items()})
        return result

    def update_secret(self, name, files):
        """A secret with new content: the kubelet swings the links in the pods that mount it."""
        secret = self.objects["Secret", name]
        secret["data"] = {key: base64.b64encode(content).decode() for key, content in files.items()}
        for pod in self.pods:
            for volume in pod.spec.get("volumes", []):
                if volume.get("secret", {}).get("secretName") == name and not pod.finished():
                    write_atomically(os.path.join(pod.folder, volume["name"]), files,
                                     volume["secret"]["defaultMode"], pod.spec["securityContext"]["fsGroup"])

    def image(self, reference):
        name = reference.rsplit("/", 1)[-1].split("@")[0].split(":")[0]
        if name not in self.images:
            raise Unstartable(f"there is no image {reference}")
        return self.images[name]

    def service_links(self):
        """The variables that Kubernetes makes of services, where they are not switched off."""
        result = {}
        for service in self.kind("Service"):
            if service["spec"].get("clusterIP") == "None":
                continue
            name = service["metadata"]["name"].upper().replace("-", "_")
            port = service["spec"]["ports"][0]["port"]
            result[f"{name}_SERVICE_HOST"] = "10.96.0.2"
            result[f"{name}_SERVICE_PORT"] = str(port)
            result[f"{name}_PORT"] = f"tcp://10.96.0.2:{port}"
        return result

    # ---- network -----------------------------------------------------------------------------

    def attach(self, pod):
        with self.lock:
            number = self.next_host
            self.next_host += 1
        pod.address = f"10.77.{number // 256}.{number % 256}"
        pod.link = f"pod{number}"
        pod.keeper = subprocess.Popen(
            ["unshare", "--net", "--uts", "--kill-child", "--fork", "sh", "-c",
             f"hostname {shlex.quote(pod.hostname)}; echo; exec sleep infinity"],
            stdout=subprocess.PIPE)
        pod.keeper.stdout.readline()
        inside = ["nsenter", f"--target={pod.keeper.pid}", "--net", "--"]
        ip("link", "add", pod.link, "type", "veth", "peer", "name", "eth0",
           "netns", str(pod.keeper.pid))
        ip("link", "set", pod.link, "master", "br0", "up")
        for command in (["link", "set", "lo", "up"],
                        ["address", "add", f"{pod.address}/16", "dev", "eth0"],
                        ["link", "set", "eth0", "up"]):
            subprocess.run([*inside, "ip", *command], check=True)
        self.pods.append(pod)

    def detach(self, pod):
        """The pod's network ends with it, and so does every connection."""
        pod.keeper.kill()
        pod.keeper.wait()

    def pods_of(self, selector):
        return [pod for pod in self.pods if not pod.finished() and pod.process is not None
                and all(pod.labels.get(key) == value for key, value in selector.items())]

    def lookup(self, name):
        """What the cluster's name server says. A service's own address stands for itself here: it
        is that of its pods, because ports and target ports are the same."""
        tail = f".{self.namespace}.svc.{DOMAIN}"
        if not name.endswith(tail):
            return None
        *host, service = name[:-len(tail)].split(".")
        spec = self.objects.get(("Service", service), {}).get("spec")
        if spec is None or len(host) > 1:
            return None
        pods = [pod for pod in self.pods_of(spec["selector"])
                if (pod.ready and not pod.deleted) or spec.get("publishNotReadyAddresses")]
        if host:
            pods = [pod for pod in pods if pod.hostname == host[0]
                    and pod.spec.get("subdomain") == service]
            return [pod.address for pod in pods] or None
        return [pod.address for pod in pods]
