#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Process 1 of a container: makes its root from a description and becomes its command.

Started by node.py in new mount and pid namespaces, and in the network namespace of its pod. What it
makes is what a container runtime makes of an image and a pod: a root of the image's files, volumes,
a user, no capabilities, a filter of system calls. The rest of the host's /usr shows through below
the image's own, because no base image can be had here. Argument: a JSON file.
"""

import ctypes
import json
import os
import platform
import signal
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND = 1, 2, 4, 32, 4096
MS_REC, MS_PRIVATE = 16384, 1 << 18
MNT_DETACH = 2
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP, PR_SET_SECCOMP = 38, 24, 22
SECCOMP_MODE_FILTER = 2
DEVICES = ("null", "zero", "full", "random", "urandom")

# System calls that the default profile of container runtimes refuses to a process without
# capabilities, by number on x86-64: process_vm_*, perf_event_open, io_uring_*, memory policies,
# namespaces, mounts, keys, bpf.
REFUSED_X86_64 = (
    155, 161, 163, 165, 166, 167, 168, 169, 170, 171, 172, 173, 175, 176, 212, 227, 237, 238, 239,
    246, 248, 249, 250, 256, 272, 279, 298, 303, 304, 305, 308, 310, 311, 312, 313, 320, 321, 323,
    425, 426, 427, 428, 429, 430, 431, 432, 433, 442,
)
AUDIT_ARCH_X86_64 = 0xC000003E
EPERM = 1


def call(result, what):
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def mount(source, target, kind=None, flags=0, data=None):
    coded = [None if text is None else text.encode() for text in (source, target, kind)]
    call(libc.mount(*coded, ctypes.c_ulong(flags), None if data is None else data.encode()),
         f"mount {target}")


def bind(source, target, read_only):
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "a", encoding="ascii"):
            pass
    mount(source, target, flags=MS_BIND | MS_REC)
    flags = MS_BIND | MS_REMOUNT | MS_NOSUID | MS_NODEV
    mount("", target, flags=flags | (MS_RDONLY if read_only else 0))


def make_image(root, image):
    """The files of the image, over those of the host's /usr."""
    os.makedirs(f"{root}/usr")
    mount("overlay", f"{root}/usr", "overlay", MS_RDONLY, f"lowerdir={image['usr']}:/usr")
    for name in ("bin", "sbin", "lib", "lib64"):
        os.symlink(f"usr/{name}", f"{root}/{name}")
    os.makedirs(f"{root}/etc")
    for name, text in image["etc"].items():
        with open(f"{root}/etc/{name}", "w", encoding="utf-8") as file:
            file.write(text)
    for target, source in image["data"].items():
        bind(source, root + target, True)


def make_system(root):
    for name in ("proc", "dev", "tmp", "run"):
        os.makedirs(f"{root}/{name}", exist_ok=True)
    mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV)
    mount("tmpfs", f"{root}/dev", "tmpfs", MS_NOSUID, "mode=755,size=64k")
    for name in DEVICES:
        with open(f"{root}/dev/{name}", "w", encoding="ascii"):
            pass
        mount(f"/dev/{name}", f"{root}/dev/{name}", flags=MS_BIND)
    os.symlink("/proc/self/fd", f"{root}/dev/fd")
    os.makedirs(f"{root}/dev/shm")
    mount("tmpfs", f"{root}/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=64m")


def make_volumes(root, mounts):
    for volume in mounts:
        target = root + volume["target"]
        if volume.get("tmpfs_bytes"):
            os.makedirs(target, exist_ok=True)
            mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV,
                  f"mode=2777,gid={volume['gid']},size={volume['tmpfs_bytes']}")
        else:
            bind(volume["source"], target, volume["read_only"])


def enter(root, read_only):
    os.chdir(root)
    if read_only:
        mount("", root, flags=MS_REMOUNT | MS_BIND | MS_RDONLY)
    call(libc.syscall(SYS_PIVOT_ROOT[platform.machine()], b".", b"."), "pivot_root")
    call(libc.umount2(b".", MNT_DETACH), "umount2")
    os.chdir("/")


def filter_calls(refused=REFUSED_X86_64):
    """Refuses these calls with EPERM: a program of the kernel's packet filter, whose jumps have 8
    bits."""
    if platform.machine() != "x86_64":
        return
    assert len(refused) < 255
    load, equal, give = 0x20, 0x15, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | EPERM
    code = [(load, 0, 0, 4), (equal, 1, 0, AUDIT_ARCH_X86_64), (give, 0, 0, allow), (load, 0, 0, 0)]
    code += [(equal, len(refused) - i, 0, number) for i, number in enumerate(refused)]
    code += [(give, 0, 0, allow), (give, 0, 0, refuse)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in code))
    header = struct.pack("@HP", len(code), ctypes.addressof(program))
    call(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0), "seccomp")


def become(user):
    """Gives up what the pod's security context takes away."""
    if user["drop_all"]:
        number = 0
        while libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
            number += 1
    os.setgroups(user["groups"])
    os.setresgid(user["gid"], user["gid"], user["gid"])
    os.setresuid(user["uid"], user["uid"], user["uid"])
    if user["no_new_privileges"]:
        call(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        if user["seccomp"]:
            filter_calls()


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        container = json.load(file)
    root = container["root"]
    os.umask(0o022)
    mount("", "/", flags=MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID, "mode=755,size=8m")
    make_image(root, container["image"])
    make_system(root)
    make_volumes(root, container["mounts"])
    enter(root, container["read_only"])
    become(container["user"])
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execve(container["argv"][0], container["argv"], container["env"])


if __name__ == "__main__":
    main()
