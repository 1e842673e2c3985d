# SPDX-License-Identifier: Apache-2.0
"""The Debian packages, unpacked and used, and the systemd unit."""

import os
import re
import shutil
import subprocess
import sys
import time
import unittest

import setting

DEBS = os.path.join(setting.BUILD, "deb")
UNIT = "deploy/systemd/lockstep-coordinator.service"
CALL_NUMBERS = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"
EXPOSURE_MOST = 2.0  # The most that systemd-analyze calls OK; 1.2 as of systemd 252.
# Lintian's tags that say something known: a distributor names the maintainer (DEB_MAINTAINER), and the
# unit is not enabled, so debhelper's scripts do not fit.
LINTIAN_KNOWN = ("bogus-mail-host", "bogus-mail-host-in-debian-changelog",
                 "maintainer-script-calls-systemctl")


def packages():
    return [os.path.join(DEBS, name) for name in sorted(os.listdir(DEBS)) if name.endswith(".deb")]


def calls_of(group):
    """The system calls of a group of systemd's, such as @network-io."""
    said = setting.run("systemd-analyze", "syscall-filter", group).splitlines()[1:]
    names = {line.strip() for line in said if line.strip() and not line.strip().startswith("#")}
    return {call for name in names for call in (calls_of(name) if name[0] == "@" else {name})}


def refused_calls(unit):
    """The numbers of the calls that the unit's SystemCallFilter leaves out."""
    with open(CALL_NUMBERS, encoding="ascii") as file:
        numbers = dict(re.findall(r"#define __NR_(\w+) (\d+)", file.read()))
    taken = set()
    with open(unit, encoding="utf-8") as file:
        for line in re.findall(r"^SystemCallFilter=(.*)$", file.read(), flags=re.MULTILINE):
            calls = {call for group in line.lstrip("~").split() for call in calls_of(group)}
            taken = taken - calls if line.startswith("~") else taken | calls
    return sorted(int(number) for name, number in numbers.items() if name not in taken)


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = os.path.join(setting.FOLDER, "unpacked")
        shutil.rmtree(cls.root, ignore_errors=True)
        for package in packages():
            subprocess.run(["dpkg-deb", "--extract", package, cls.root], check=True)
        cls.triplet = setting.run("dpkg-architecture", "-qDEB_HOST_MULTIARCH").strip()
        cls.libraries = os.path.join(cls.root, "usr/lib", cls.triplet)

    def test_depends_are_stated(self):
        for package in packages():
            depends = setting.run("dpkg-deb", "--field", package, "Depends")
            wanted = {"lockstep_": "libevent", "liblockstep0_": "libssl",
                      "liblockstep-dev_": "liblockstep0 (=", "lockstep-dbgsym_": "lockstep (=",
                      "liblockstep0-dbgsym_": "liblockstep0 (="}
            prefix, = (key for key in wanted if os.path.basename(package).startswith(key))
            self.assertIn(wanted[prefix], depends)

    def test_programs_run(self):
        environment = dict(os.environ, LD_LIBRARY_PATH=self.libraries)
        for program in ("lockstep", "lockstep-coordinator"):
            said = subprocess.run([os.path.join(self.root, "usr/bin", program), "--version"],
                                  env=environment, check=True, capture_output=True, text=True)
            self.assertRegex(said.stdout, rf"^{program} \d+\.\d+\.\d+\n$")
            tags = setting.run("readelf", "--dynamic", os.path.join(self.root, "usr/bin", program))
            self.assertNotRegex(tags, "RPATH|RUNPATH")

    def test_a_program_links(self):
        """examples/hello.c, with what the packages say of themselves through pkg-config."""
        environment = dict(os.environ, PKG_CONFIG_SYSROOT_DIR=self.root,
                           PKG_CONFIG_LIBDIR=os.path.join(self.libraries, "pkgconfig"))
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "lockstep"], env=environment,
                               check=True, capture_output=True, text=True).stdout.split()
        hello = os.path.join(setting.FOLDER, "hello")
        setting.run(os.environ.get("CC", "cc"), os.path.join(setting.ROOT, "examples/hello.c"),
                    "-o", hello, f"-I{self.root}/usr/include", *flags)
        said = subprocess.run([hello], env={"LD_LIBRARY_PATH": self.libraries}, check=True,
                              capture_output=True, text=True).stdout
        self.assertIn("rank 0 of 1: w = 2.000", said)

    def test_symbols(self):
        """The packages of symbols hold those of the programs and of the library, by their build ids."""
        for file in ("usr/bin/lockstep", "usr/bin/lockstep-coordinator",
                     f"usr/lib/{self.triplet}/liblockstep.so.0"):
            notes = setting.run("readelf", "--notes", os.path.join(self.root, file))
            build_id = re.search("Build ID: ([0-9a-f]+)", notes)[1]
            symbols = os.path.join(self.root, "usr/lib/debug/.build-id", build_id[:2],
                                   build_id[2:] + ".debug")
            self.assertIn(".debug_info", setting.run("readelf", "--sections", "--wide", symbols))

    def test_lintian(self):
        if not shutil.which("lintian"):
            self.skipTest("lintian is not installed")
        said = subprocess.run(["lintian", "--allow-root", *packages()], capture_output=True, text=True,
                              check=False).stdout
        found = [line for line in said.splitlines() if re.match("[EW]: ", line)
                 and line.split()[2] not in LINTIAN_KNOWN]
        self.assertEqual([], found)

    def test_unit(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("systemd-analyze is not installed")
        # The unit as it is installed, beside the program that it starts, and what systemd itself
        # brings along.
        for name in ("sysinit.target", "basic.target", "shutdown.target", "network-online.target",
                     "multi-user.target", "system.slice", "-.slice"):
            path = os.path.join(self.root, "usr/lib/systemd/system", name)
            with open(path, "w", encoding="ascii") as file:
                file.write("[Unit]\nDescription=Stands in\n")
        said = subprocess.run(["systemd-analyze", "verify", f"--root={self.root}", "--man=no",
                               "lockstep-coordinator.service"],
                              capture_output=True, text=True, check=False)
        ours = [line for line in said.stderr.splitlines() if "lockstep" in line]
        self.assertEqual([], ours)
        said = setting.run("systemd-analyze", "security", "--offline=true",
                           os.path.join(setting.ROOT, UNIT))
        exposure = float(re.search(r"Overall exposure level.*: ([\d.]+)", said)[1])
        self.assertLess(exposure, EXPOSURE_MOST)

    def test_unit_leaves_the_calls_that_are_needed(self):
        """The daemon under the unit's filter of system calls: it starts, forms a job, and drains."""
        if not (shutil.which("systemd-analyze") and os.path.exists(CALL_NUMBERS)):
            self.skipTest("systemd-analyze or the kernel's headers are not installed")
        refused = refused_calls(os.path.join(setting.ROOT, UNIT))
        self.assertGreater(len(refused), 50)
        ports = os.path.join(setting.FOLDER, "filtered")
        confined = [sys.executable, "-c", f"""
import os, sys
sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
import sandbox
assert sandbox.libc.prctl(sandbox.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
sandbox.filter_calls({refused})
try:
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # A system call of @resources.
    sys.exit("the filter is not in force")
except PermissionError:
    os.execv(sys.argv[1], sys.argv[1:])
"""]
        environment = dict(os.environ, LD_LIBRARY_PATH=self.libraries)
        daemon = subprocess.Popen(
            [*confined, os.path.join(self.root, "usr/bin/lockstep-coordinator"),
             "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--port-file", ports],
            env=environment, stderr=subprocess.PIPE, text=True)
        try:
            end = time.monotonic() + 10
            while not os.path.exists(ports) and time.monotonic() < end and daemon.poll() is None:
                time.sleep(0.02)
            with open(ports, encoding="ascii") as file:
                grpc = re.search(r"grpc=(\d+)", file.read())[1]
            hello = os.path.join(setting.BUILD, "examples/hello")
            done = subprocess.run(
                [setting.LOCKSTEP, "run", "-n", "2", "--coordinator", f"127.0.0.1:{grpc}", "--", hello],
                capture_output=True, text=True, check=False, timeout=30)
            self.assertEqual(0, done.returncode, done.stderr)
        finally:
            daemon.terminate()
            said = daemon.communicate(timeout=10)[1]
        self.assertEqual(0, daemon.returncode, said)
