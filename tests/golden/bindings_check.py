#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A binding that is made of lockstep.json alone: types, structs with their defaults, and functions.

It trains one step in a world of one and compares what comes back. Arguments: lockstep.json,
liblockstep.so.
"""

import ctypes
import json
import sys

NUMBERS = {
    "char": ctypes.c_char, "int": ctypes.c_int, "size_t": ctypes.c_size_t,
    "float": ctypes.c_float, "double": ctypes.c_double,
    **{f"{sign}int{bits}_t": getattr(ctypes, f"c_{sign}int{bits}")
       for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


class Binding:
    """The library as the description has it."""

    def __init__(self, description, library):
        self.types = dict(NUMBERS, void=None)
        self.values = {entry["name"]: entry["value"] for entry in description["constants"]}
        for enum in description["enums"]:
            assert enum["size"] == 4, enum["name"]
            self.types[enum["name"]] = ctypes.c_int32 if enum["signed"] else ctypes.c_uint32
            self.values.update((c["name"], c["value"]) for c in enum["constants"])
        for handle in description["handles"]:
            self.types[handle["name"]] = type(handle["name"], (ctypes.Structure,), {})
        for entry in description["function_types"]:
            self.types[entry["name"]] = self.callback(entry)
        for struct in description["structs"]:
            self.types[struct["name"]] = self.struct(struct)
        for entry in description["functions"]:
            function = getattr(library, entry["name"])
            function.restype = self.type(entry["returns"])
            function.argtypes = [self.member(p) for p in entry["parameters"]]
            setattr(self, entry["name"].removeprefix("lockstep_"), function)

    def type(self, text):
        """The type of ctypes for a type of the description."""
        words = text.replace("*", " * ").replace("const", " ").replace("struct ", " ").split()
        stars, base = words.count("*"), words[0]
        if base == "char" and stars:
            base, stars, found = "", stars - 1, ctypes.c_char_p
        elif base == "void" and stars:
            stars, found = stars - 1, ctypes.c_void_p
        else:
            found = self.types[base]
        for _ in range(stars):
            found = ctypes.POINTER(found)
        return found

    def member(self, entry):
        """The type of a field or parameter."""
        if "function" in entry:
            return self.callback(entry["function"])
        found = self.type(entry["type"])
        return found * entry["length"] if "length" in entry else found

    def callback(self, entry):
        return ctypes.CFUNCTYPE(
            self.type(entry["returns"]), *(self.member(p) for p in entry["parameters"]))

    def struct(self, entry):
        """A structure whose objects begin with the values of the initializer."""
        initial = {f["name"]: f["initial"] for f in entry["fields"] if "initial" in f}

        class Made(ctypes.Structure):
            _fields_ = [(f["name"], self.member(f)) for f in entry["fields"]]

            def __init__(self, **values):
                super().__init__(**{**initial, **values})

        assert ctypes.sizeof(Made) == entry["size"], entry["name"]
        assert ctypes.alignment(Made) == entry["alignment"], entry["name"]
        for field in entry["fields"]:
            there = getattr(Made, field["name"])
            assert (there.offset, there.size) == (field["offset"], field["size"]), field["name"]
        return Made


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        description = json.load(file)
    lockstep = Binding(description, ctypes.CDLL(sys.argv[2]))
    types, values = lockstep.types, lockstep.values
    said = []

    def check(status):
        if status < 0:
            sys.exit(f"{lockstep.status_name(status).decode()}: {lockstep.error_text().decode()}")

    @types["lockstep_log_sink"]
    def log(context, level, line):
        said.append((context, level, line))

    assert lockstep.version().decode() == description["version"]
    config = types["lockstep_config"](
        log=log, log_context=7, log_level=values["LOCKSTEP_LOG_DEBUG"])
    assert config.rank_hint == -1 and config.struct_bytes == ctypes.sizeof(config)

    session = ctypes.POINTER(types["lockstep_session"])()
    check(lockstep.open(config, session))
    rank, world_size = ctypes.c_uint32(9), ctypes.c_uint32()
    check(lockstep.world(session, rank, world_size))
    assert (rank.value, world_size.value) == (0, 1)

    value, gradient = (ctypes.c_float * 3)(1, 2, 3), (ctypes.c_float * 3)()
    parameter = types["lockstep_parameter"](
        name=b"w", dims=1, shape=(ctypes.c_int64 * 1)(3), data=ctypes.addressof(value),
        gradient=ctypes.addressof(gradient))
    module = ctypes.POINTER(types["lockstep_module"])()
    check(lockstep.module_register(session, types["lockstep_module_config"](
        name=b"net", parameters=ctypes.pointer(parameter), parameter_count=1,
        ignore=(ctypes.c_char_p * 1)(b"nothing.*"), ignore_count=1), module))
    check(lockstep.start(session))
    # The pattern is a line in the log.
    assert any(context == 7 and b"nothing.*" in line for context, _, line in said), said

    view, call = types["lockstep_step_view"](), ctypes.POINTER(types["lockstep_call"])()
    check(lockstep.step_begin(session, types["lockstep_step_options"](weight=5), view))
    assert (view.step, view.rank, view.world_size) == (1, 0, 1)
    check(lockstep.call_begin(module, call))
    gradient[:] = (0.5, -1, 4)
    check(lockstep.grad_ready(module, call, 0, None, None))
    check(lockstep.call_end(call))
    check(lockstep.step_end(session, None))
    assert list(gradient) == [0.5, -1, 4] and list(value) == [1, 2, 3]
    report = types["lockstep_report"]()
    check(lockstep.step_report(session, 1, 0, report))
    assert (report.step, report.weight_total) == (1, 5), (report.step, report.weight_total)

    # An array of counts, a struct by pointer, a callback without a type of its own.
    source, target = (ctypes.c_int32 * 2)(3, 4), (ctypes.c_int32 * 2)()
    work, done = ctypes.POINTER(types["lockstep_work"])(), []
    check(lockstep.collective_begin(session, types["lockstep_collective"](
        kind=values["LOCKSTEP_ALL_GATHER"], name=b"pair", dtype=values["LOCKSTEP_INT32"],
        input=ctypes.addressof(source), output=ctypes.addressof(target),
        output_counts=(ctypes.c_uint64 * 1)(2), count=2), work))
    notify = lockstep.work_notify.argtypes[1](done.append)
    check(lockstep.work_notify(work, notify, 11))
    check(lockstep.work_wait(work, values["LOCKSTEP_WAIT_FOREVER"]))
    assert list(target) == [3, 4] and done == [11], (list(target), done)

    assert lockstep.step_end(session, None) == values["LOCKSTEP_E_INVALID"]
    assert lockstep.error_text()
    check(lockstep.close(session))


if __name__ == "__main__":
    main()
