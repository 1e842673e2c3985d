# SPDX-License-Identifier: Apache-2.0
"""Builds liblockstep.so and the programs with make, and puts them into the package.

LOCKSTEP_BUILD names a directory in which make has built them already; then make is not called.
"""

import json
import os
import shutil
import subprocess

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
HEADERS = os.path.join(ROOT, "include", "lockstep")
SONAME = "liblockstep.so.0"
PROGRAMS = ("lockstep", "lockstep-coordinator")


def version():
    with open(os.path.join(HEADERS, "lockstep.json"), encoding="utf-8") as file:
        return json.load(file)["version"]


def built():
    """The build directory, after make."""
    given = os.environ.get("LOCKSTEP_BUILD")
    if given:
        return given
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    subprocess.check_call(["make", "-C", ROOT, "python-programs"], env=environment)
    return os.path.join(ROOT, "build")


class BuildWithMake(build_py):
    """The package with what make builds in it."""

    def run(self):
        shutil.rmtree(self.build_lib, ignore_errors=True)  # What an earlier build has left.
        super().run()
        if self.editable_mode:  # Then the package finds the build of its checkout.
            built()
            return
        build, package = built(), os.path.join(self.build_lib, "lockstep")
        self.put(os.path.join(build, "lib", SONAME), os.path.join(package, "lib"))
        for name in PROGRAMS:
            self.put(os.path.join(build, "bin", name), os.path.join(package, "bin"))
        headers = os.path.join(package, "include", "lockstep")
        os.makedirs(headers, exist_ok=True)
        for name in sorted(os.listdir(HEADERS)):
            shutil.copy(os.path.join(HEADERS, name), headers)

    def put(self, source, folder):
        """Copies a binary file, without what only debuggers need."""
        os.makedirs(folder, exist_ok=True)
        target = os.path.join(folder, os.path.basename(source))
        shutil.copy(os.path.realpath(source), target)
        subprocess.check_call(["strip", "--strip-unneeded", target])
        os.chmod(target, 0o755)


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3 of one platform."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class WithLibraries(Distribution):
    """A distribution with files of one platform. No extension module is among them."""

    def has_ext_modules(self):
        return True


# Nothing is written beside the sources.
SCRATCH = os.path.join(ROOT, "build", "python")
os.makedirs(SCRATCH, exist_ok=True)
setup(version=version(), distclass=WithLibraries,
      cmdclass={"build_py": BuildWithMake, "bdist_wheel": PlatformWheel},
      options={"build": {"build_base": SCRATCH}, "egg_info": {"egg_base": SCRATCH}})
