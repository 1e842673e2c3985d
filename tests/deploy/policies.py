# SPDX-License-Identifier: Apache-2.0
"""Network policies: what they allow, and which connections pods really make.

Nothing is filtered here. Instead every connection that stands in a pod is looked at, and one that
the policies would not have allowed is a failure; a connection that a cluster would hold back is so
found without needing its network plugin. Very short connections can be missed.
"""

import ipaddress
import socket
import struct
import threading
import time

ESTABLISHED, LISTENING = "01", "0A"
LOOK_S = 0.03
NAME_SERVER_LABELS = {"kubernetes.io/metadata.name": "kube-system"}


def matches(selector, labels):
    return all(labels.get(key) == value
               for key, value in (selector or {}).get("matchLabels", {}).items())


def peer_matches(peer, pod_labels, namespace_labels, address):
    """pod_labels None: no pod of ours. Without namespaceSelector only pods of the namespace count."""
    if "ipBlock" in peer:
        return address is not None and \
            ipaddress.ip_address(address) in ipaddress.ip_network(peer["ipBlock"]["cidr"])
    if "namespaceSelector" in peer:
        return namespace_labels is not None and matches(peer["namespaceSelector"], namespace_labels)
    return pod_labels is not None and matches(peer["podSelector"], pod_labels)


def port_matches(ports, port, protocol):
    if not ports:
        return True
    return any(entry.get("protocol", "TCP") == protocol
               and entry["port"] <= port <= entry.get("endPort", entry["port"]) for entry in ports)


def allowed(policies, direction, own_labels, peer_labels, port, peer_namespace=None, protocol="TCP",
            address=None):
    """Whether policies let a pod with own_labels have a connection; direction Ingress or Egress.
    port is that of the side which accepts."""
    side, who = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
    bound = [policy["spec"] for policy in policies
             if direction in policy["spec"]["policyTypes"]
             and matches(policy["spec"]["podSelector"], own_labels)]
    if not bound:
        return True
    return any(
        port_matches(rule.get("ports"), port, protocol)
        and (who not in rule or any(peer_matches(peer, peer_labels, peer_namespace, address)
                                    for peer in rule[who]))
        for spec in bound for rule in spec.get(side, []))


def sockets(pid):
    """(local address, local port, remote address, remote port, state) in a process's namespace."""
    for family in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{family}", encoding="ascii") as file:
                lines = file.readlines()[1:]
        except OSError:
            continue
        for line in lines:
            local, remote, state = line.split()[1:4]
            yield (*decode(local), *decode(remote), state)


def decode(text):
    """"0100007F:1F90" and IPv4 in IPv6 to an address and a port. Other IPv6: None."""
    address, port = text.split(":")
    if len(address) == 32:
        if not address.startswith("0" * 16 + "FFFF0000") and address.strip("0"):
            return None, int(port, 16)
        address = address[-8:]
    return socket.inet_ntoa(struct.pack("=I", int(address, 16))), int(port, 16)


class Watch:
    """Collects who was connected to whom: (from pod, to address, port)."""

    def __init__(self, node):
        self.node = node
        self.seen = set()
        self.listened = {}  # Ports of each pod, by its process.
        self.stopped = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stopped:
            for pod in list(self.node.pods):
                if not pod.finished():
                    self.look(pod)
            time.sleep(LOOK_S)

    def look(self, pod):
        table = list(sockets(pod.keeper.pid))
        # A rank listens only until its world has formed.
        listening = self.listened.setdefault(pod.keeper.pid, set())
        listening |= {port for _, port, _, _, state in table if state == LISTENING}
        for address, port, remote, remote_port, state in table:
            if state != ESTABLISHED or address is None or address.startswith("127."):
                continue
            if port in listening:
                self.seen.add((remote, pod, port, "Ingress"))
            else:
                self.seen.add((remote, pod, remote_port, "Egress"))

    def stop(self):
        self.stopped = True
        self.thread.join()

    def forbidden(self, policies, node_address):
        """Sentences about connections that the policies forbid."""
        by_address = {pod.address: pod for pod in self.node.pods}
        for remote, pod, port, direction in sorted(self.seen, key=str):
            if remote == node_address:
                continue  # The kubelet's probes.
            peer = by_address.get(remote)
            if not allowed(policies, direction, pod.labels, peer.labels if peer else None, port):
                other = peer.name if peer else remote
                yield f"{direction} of {pod.name}, {other}, port {port}"
