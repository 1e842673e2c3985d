# SPDX-License-Identifier: Apache-2.0
"""Licences of the sources (REUSE), and the bill of materials (SPDX), each by the tool of its makers."""

import json
import os
import re
import shutil
import subprocess
import sys
import unittest

import setting

TOOLS = os.path.dirname(sys.executable)


class Sources(unittest.TestCase):
    def copy(self):
        """The files that git knows, and nothing else of the checkout."""
        folder = os.path.join(setting.FOLDER, "sources")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        names = setting.run("git", "-C", setting.ROOT, "ls-files")
        subprocess.run(["cp", "-P", "--parents", "-t", folder, *names.split()], cwd=setting.ROOT, check=True)
        return folder

    def reuse(self, folder):
        return subprocess.run([os.path.join(TOOLS, "reuse"), "--root", folder, "lint", "--lines"],
                              capture_output=True, text=True, check=False)

    def test_reuse(self):
        folder = self.copy()
        done = self.reuse(folder)
        self.assertEqual((0, ""), (done.returncode, done.stdout.strip()))
        # A licence without its text is found.
        with open(os.path.join(folder, "foreign.c"), "w", encoding="ascii") as file:
            file.write("// SPDX-License-" + "Identifier: MIT\n")
        self.assertNotEqual(0, self.reuse(folder).returncode)
        with open(os.path.join(setting.ROOT, "LICENSE"), "rb") as one, \
                open(os.path.join(setting.ROOT, "LICENSES/Apache-2.0.txt"), "rb") as other:
            self.assertEqual(one.read(), other.read())

    def test_bill_of_materials(self):
        path = os.path.join(setting.FOLDER, "sbom/lockstep.spdx.json")
        version = re.search(r"\d[.\d]+", setting.run(setting.LOCKSTEP, "--version"))[0]
        setting.run(os.path.join(setting.ROOT, "tools/sbom"), version, setting.BUILD, path)
        setting.run(os.path.join(TOOLS, "pyspdxtools"), "-i", path)
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        names = {package["name"] for package in document["packages"]}
        self.assertLessEqual({"lockstep", "libgrpc-dev", "libnanopb-dev", "libc6"}, names)
        # Without its checksum a document is refused.
        del document["files"][0]["checksums"]
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file)
        with self.assertRaises(RuntimeError):
            setting.run(os.path.join(TOOLS, "pyspdxtools"), "-i", path)
