# SPDX-License-Identifier: Apache-2.0
"""Where things are, and a copy of the manifests with certificates for the tests."""

import os
import re
import shutil
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("BUILD", os.path.join(ROOT, "build")))
MNIST = os.environ.get("MNIST_DIR", os.path.join(BUILD, "data/mnist"))
FOLDER = os.path.join(BUILD, "deploy")
TREE = os.path.join(FOLDER, "kustomize")
CERTIFICATES = os.path.join(TREE, "components/tls-secret")
LOCKSTEP = os.path.join(BUILD, "bin/lockstep")
DAEMON = os.path.join(BUILD, "bin/lockstep-coordinator")
LIBRARY = os.path.join(BUILD, "lib/liblockstep.so")
EXAMPLE_JOBS = ("mnist", "mixed")
TOKEN = "0123456789abcdef0123456789abcdef"

SERVER_NAMES = ("lockstep-coordinator", "lockstep-coordinator.lockstep.svc",
                "lockstep-coordinator-http", "localhost", "127.0.0.1")


def alone():
    """Whether we are in a network namespace that tests/deploy/run has made for us."""
    return os.environ.get("LOCKSTEP_TEST_DEPLOY_ALONE") == "1"


def run(*command):
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def make_certificates(folder):
    """An authority, and certificates as components/tls-secret wants them, as deploy/README.md says."""
    run(LOCKSTEP, "certs", "init", "--dir", folder)
    issue_coordinator(folder, os.path.join(folder, "coordinator"))
    for job in EXAMPLE_JOBS:
        issue_worker(folder, job, os.path.join(folder, job))


def issue_coordinator(folder, out):
    """A coordinator's certificate of the authority in `folder`."""
    names = [word for name in SERVER_NAMES for word in ("--name", name)]
    run(LOCKSTEP, "certs", "issue", "--dir", folder, "--role", "coordinator", "--out", out, *names)


def issue_worker(folder, job, out):
    """A certificate of that authority for the workers of one job; of every job if `job` is None."""
    which = ["--job", job] if job else []
    run(LOCKSTEP, "certs", "issue", "--dir", folder, "--role", "worker", *which, "--out", out)


def certificate_uris(pem):
    """The URIs that a certificate names, of the text of its file."""
    said = subprocess.run(["openssl", "x509", "-noout", "-ext", "subjectAltName"], input=pem, check=True,
                          capture_output=True, text=True).stdout
    return re.findall(r"URI:([^,\s]+)", said)


def prepare():
    """A fresh copy of deploy/kustomize, in which every overlay can be rendered."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    shutil.copytree(os.path.join(ROOT, "deploy/kustomize"), TREE)
    make_certificates(CERTIFICATES)
    with open(os.path.join(CERTIFICATES, "token"), "w", encoding="ascii") as file:
        file.write(TOKEN + "\n")


def daemon_flags():
    return set(re.findall(r"--[a-z-]+", run(DAEMON, "--help")))


def library_strings():
    with open(LIBRARY, "rb") as file:
        return set(re.findall(r"LOCKSTEP_[A-Z_]+", file.read().decode("latin-1")))
