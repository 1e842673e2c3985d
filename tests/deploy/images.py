# SPDX-License-Identifier: Apache-2.0
"""What the container files of deploy/images make, as far as it can be had without a registry: their
own packages and files, unpacked, and what they say about user, entry point and environment. The
base image is not there; the host's /usr stands in for it (sandbox.py).
"""

import glob
import json
import os
import re
import shutil
import subprocess

INSTRUCTIONS = ("ARG", "FROM", "COPY", "RUN", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK",
                "ENTRYPOINT", "CMD", "ENV")


class Image:
    def __init__(self, name):
        self.name = name
        self.usr = None
        self.data = {}
        self.entrypoint = []
        self.command = []
        self.environment = {}
        self.health = []
        self.uid = self.gid = 0

    def find(self, program):
        """The path of a program in the container, or None."""
        folders = [""] if "/" in program else ["/usr/local/bin/", "/usr/bin/", "/usr/sbin/"]
        for folder in folders:
            path = folder + program
            for where in (os.path.dirname(self.usr), ""):
                if os.access(where + path, os.X_OK):
                    return path
        return None


def instructions(path):
    """(INSTRUCTION, rest) of a container file. One that is not known here is an error."""
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"^\s*#.*\n", "", file.read(), flags=re.MULTILINE).replace("\\\n", " ")
    for line in filter(str.strip, text.split("\n")):
        word, rest = line.split(None, 1)
        if word not in INSTRUCTIONS:
            raise ValueError(f"{path}: {word} is not implemented by the runner")
        yield word, rest.strip()


def copy(image, sources_at, words):
    """Packages are unpacked; a directory is mounted where it goes; a file is copied below /usr.
    sources_at: where the beginnings of the build context's paths really are."""
    *sources, target = words
    for pattern in sources:
        place = max((start for start in sources_at if pattern.startswith(start)), key=len)
        found = glob.glob(os.path.join(sources_at[place], pattern[len(place):]))
        if not found:
            raise FileNotFoundError(f"image {image.name}: there is no {pattern}")
        for source in found:
            if source.endswith(".deb"):
                subprocess.run(["dpkg-deb", "--extract", source, os.path.dirname(image.usr)],
                               check=True)
            elif os.path.isdir(source):
                image.data[target.rstrip("/")] = os.path.realpath(source)
            else:
                path = os.path.dirname(image.usr) + target
                os.makedirs(os.path.dirname(path), exist_ok=True)
                shutil.copy(source, path)


def build(root, sources_at, folder, name, base=None):
    """The image of deploy/images/NAME.Containerfile, in folder."""
    image = Image(f"lockstep-{name}")
    image.usr = os.path.join(folder, name, "usr")
    shutil.rmtree(os.path.dirname(image.usr), ignore_errors=True)
    if base is None:
        os.makedirs(image.usr)
    else:
        shutil.copytree(os.path.dirname(base.usr), os.path.dirname(image.usr), symlinks=True)
        image.entrypoint, image.uid, image.gid = base.entrypoint, base.uid, base.gid
        image.environment = dict(base.environment)
    for word, rest in instructions(os.path.join(root, f"deploy/images/{name}.Containerfile")):
        if word == "COPY":
            copy(image, sources_at, rest.split())
        elif word == "USER":
            image.uid, image.gid = map(int, rest.split(":"))
        elif word == "ENTRYPOINT":
            image.entrypoint = json.loads(rest)
        elif word == "CMD":
            image.command = json.loads(rest)
        elif word == "HEALTHCHECK":
            image.health = json.loads(rest[rest.index("["):])
        elif word == "ENV":
            key, value = rest.split("=", 1)
            image.environment[key] = value
    return image
