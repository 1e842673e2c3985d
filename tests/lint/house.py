#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The layout of the sources, as docs/internals/source.md describes it: wings, floors and doors.

A wing is a folder with C files. The rules, each with lines in fixtures/house/ that break it:

floor    a file of worker/ includes headers of its own wing and of wings on lower floors only
door     from another wing of worker/ a file includes only the headers that its README.md names
         in the line "Doors: ..."
header   a header declares only functions of the .c file of its name
name     an external function begins with the name of its file or of its wing
pure     a file whose head says "Pure" includes only C11 headers without state, vector intrinsics
         and headers of pure files
struct   no two structs of one name in one program; no struct has more than STRUCT_FIELDS fields,
         pointers to functions not counted
length   no file has more than FILE_LINES lines
circle   no circle of calls between wings
dialect  `!x` and `x` in conditions, not a comparison with NULL; `sizeof(x)` with parentheses
readme   every wing has a README.md

--table    prints the measurements of the tree instead: files, lines, functions, structs, circles.
--root R   checks another tree.
--self-test  checks fixtures/house/, where exactly the lines marked '// broken: RULE' break a rule.
"""

import collections
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TOPS = ("base", "protos", "coordinator", "server", "cli", "worker")
FLOORS = (
    "support kernels", "memory", "link device stacks", "transport/flow",
    "transport/ring transport/pair transport/direct transport/host transport/device",
    "transport order control watch", "session", "engine", "api",
)
FLOOR = {"worker/" + wing: n for n, wings in enumerate(FLOORS) for wing in wings.split()}
FLOOR["worker/session/module"] = FLOOR["worker/session"]
# The programs, by their folders: no two structs of one name meet in one of them.
PROGRAMS = (("worker",), ("coordinator", "server"), ("cli",), ("base", "protos"))
# These lie inside another wing and are one with it for floors and doors.
ROOMS = {"worker/session/module": "worker/session"}
STRUCT_FIELDS = 40
FILE_LINES = 600
# Headers of C11 without state, and the intrinsics of x86, which are functions of their arguments.
C11 = {
    f"{name}.h" for name in (
        "assert ctype errno fenv float inttypes iso646 limits math stdalign stdarg stdbool stddef"
        " stdint stdio stdlib stdnoreturn string immintrin").split()
}
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
NAME = re.compile(r"[A-Za-z_]\w*")
KEYWORDS = {"if", "for", "while", "switch", "return", "sizeof", "static_assert", "_Static_assert",
            "_Atomic"}

Definition = collections.namedtuple("Definition", "name path line static lines")


def blank(text):
    """The text without comments and strings; every line keeps its number."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


class File:
    """What the rules need to know of one source file."""

    def __init__(self, root, path):
        self.path = path
        self.wing = os.path.dirname(path)
        with open(os.path.join(root, path), encoding="utf-8") as file:
            self.text = file.read()
        self.lines = self.text.count("\n")
        self.code = blank(self.text)
        head = re.match(r"(?://[^\n]*\n)*", self.text).group()
        self.pure = re.search(r"\bPure\b", head) is not None
        self.includes = [
            (n, *m.groups()) for n, line in enumerate(self.text.split("\n"), 1)
            if (m := INCLUDE.match(line))
        ]
        self.functions, self.declared, self.structs = [], [], []
        self._scan()

    def _scan(self):
        """Top-level definitions and declarations: everything that begins in column 0."""
        code = "\n".join("" if line.lstrip().startswith("#") or line.rstrip().endswith("\\")
                         else line for line in self.code.split("\n"))
        position = 0
        for match in re.finditer(r"^(?=[A-Za-z_])", code, re.M):
            if match.start() < position:
                continue
            start = match.start()
            end = start
            depth = 0
            while end < len(code):
                char = code[end]
                if char in "([":
                    depth += 1
                elif char in ")]":
                    depth -= 1
                elif depth == 0 and char in ";{":
                    break
                end += 1
            head = code[start:end]
            line = code.count("\n", 0, start) + 1
            stop = end + 1
            if end < len(code) and code[end] == "{":
                stop = closing(code, end)
            position = stop
            self._take(head, code[end:stop], line, code.count("\n", start, stop) + 1)

    def _take(self, head, body, line, lines):
        struct = re.match(r"(?:typedef )?(?:struct|union) (\w+)\s*$", head.strip())
        if struct and body.startswith("{"):
            self.structs.append((struct.group(1), line, fields(body)))
            return
        if head.startswith("typedef") or "(" not in head:
            return
        call = re.search(r"(\w+)\s*\(", head)
        name = call.group(1) if call else "_Atomic"
        if name in KEYWORDS or name.isupper() or "=" in head.split("(")[0]:
            return
        static = re.match(r"(static|inline)\b", head) is not None
        found = Definition(name, self.path, line, static, lines)
        if body.startswith("{"):
            self.functions.append(found)
        elif not static and "(*" not in head:
            self.declared.append(found)


def closing(code, start):
    """The end of the block that begins at start."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(code, start):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.end()
    return len(code)


def fields(body):
    """The number of members of a struct body, nested ones counted with their own members."""
    count = 0
    for part in re.split(r"[;]", body.strip("{} \n")):
        part = part.split("{")[-1].split("}")[-1].strip()
        if part and "(*" not in part:
            count += 1 + part.count(",") * ("(" not in part)
    return count


def load(root):
    files = {}
    for top in TOPS:
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in sorted(names):
                if name.endswith((".c", ".h")):
                    path = os.path.relpath(os.path.join(folder, name), root)
                    files[path] = File(root, path)
    return files


def doors(root, wing):
    try:
        with open(os.path.join(root, wing, "README.md"), encoding="utf-8") as file:
            match = re.search(r"^Doors: (.*?)(?:\n\n|\Z)", file.read(), re.M | re.S)
    except OSError:
        return None
    return set(re.findall(r"[\w./]+\.h", match.group(1))) if match else None


def graph(files):
    """Who refers to whose external functions: {(from file, to file): names}."""
    owner = {}
    for file in files.values():
        for function in file.functions:
            if not function.static and file.path.endswith(".c"):
                owner.setdefault(function.name, file.path)
    declared = collections.defaultdict(set)
    for file in files.values():
        for function in file.declared:
            declared[function.name].add(file.path)
    seen = sights(files)
    edges = collections.defaultdict(set)
    for file in files.values():
        own = {f.name for f in file.functions}
        skip = {d.name for d in file.declared} if file.path.endswith(".h") else set()
        for name in set(NAME.findall(file.code)) - own - skip:
            target = owner.get(name)
            if target and target != file.path and declared[name] & seen[file.path]:
                edges[file.path, target].add(name)
    return edges


def sights(files):
    """For each file, itself and all that it includes, directly or not."""
    seen = {}

    def see(path):
        if path not in seen:
            seen[path] = {path}
            for _, quote, header in files[path].includes:
                if quote == '"' and header in files:
                    seen[path] |= see(header)
        return seen[path]

    for path in files:
        see(path)
    return seen


def circles(nodes, edges):
    """Strongly connected components with more than one node, by Tarjan's algorithm."""
    index, low, stack, out, counter = {}, {}, [], [], [0]

    def visit(node):
        work = [(node, iter(sorted(edges.get(node, ()))))]
        index[node] = low[node] = counter[0]
        counter[0] += 1
        stack.append(node)
        while work:
            here, rest = work[-1]
            for following in rest:
                if following not in index:
                    index[following] = low[following] = counter[0]
                    counter[0] += 1
                    stack.append(following)
                    work.append((following, iter(sorted(edges.get(following, ())))))
                    break
                if following in stack:
                    low[here] = min(low[here], index[following])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[here])
                if low[here] == index[here]:
                    part = []
                    while True:
                        part.append(stack.pop())
                        if part[-1] == here:
                            break
                    if len(part) > 1:
                        out.append(sorted(part))

    for node in sorted(nodes):
        if node not in index:
            visit(node)
    return out


def by_wing(edges):
    wings = collections.defaultdict(set)
    why = collections.defaultdict(list)
    for (a, b), names in edges.items():
        x, y = os.path.dirname(a), os.path.dirname(b)
        if x != y:
            wings[x].add(y)
            why[x, y].append((a, b, sorted(names)))
    return wings, why


def check(root, files):
    """Yields (path, line, rule, message)."""
    known_doors = {wing: doors(root, wing) for wing in {file.wing for file in files.values()}}
    structs = {}
    for path, file in sorted(files.items()):
        yield from check_includes(files, known_doors, file)
        yield from check_names(files, file)
        for name, line, count in file.structs:
            for program in PROGRAMS:
                if path.split("/")[0] in program + PROGRAMS[-1]:
                    other = structs.setdefault((program, name), path)
                    if other != path:
                        yield path, line, "struct", f"struct {name} is defined in {other}, too"
            if count > STRUCT_FIELDS:
                yield path, line, "struct", f"struct {name} has {count} fields, more than {STRUCT_FIELDS}"
        if file.lines > FILE_LINES:
            yield path, file.lines, "length", f"{file.lines} lines, more than {FILE_LINES}"
        for number, line in enumerate(file.code.split("\n"), 1):
            if re.search(r"== NULL\b|!= NULL\s*(&&|\|\||\?)|(if|while) \(\w+ != NULL\)", line):
                yield path, number, "dialect", "a condition says `x` or `!x`"
            if re.search(r"\bsizeof [\w*]", line):
                yield path, number, "dialect", "sizeof(x) has parentheses"
    for wing, found in sorted(known_doors.items()):
        if not os.path.exists(os.path.join(root, wing, "README.md")):
            first = min(path for path, file in files.items() if file.wing == wing)
            yield first, 1, "readme", f"{wing} has no README.md"
    edges = graph(files)
    wings, why = by_wing(edges)
    for circle in circles(wings, wings):
        inside = set(circle)
        for (x, y), calls in sorted(why.items()):
            if x in inside and y in inside:
                for a, b, names in calls:
                    yield a, 1, "circle", f"{x} -> {y}: {b} ({', '.join(names[:4])})"


def check_includes(files, known_doors, file):
    home = ROOMS.get(file.wing, file.wing)
    for line, quote, header in file.includes:
        if file.pure and quote == "<" and header not in C11:
            yield file.path, line, "pure", f"<{header}> is no C11 header"
        target = files.get(header)
        if quote == "<" or target is None:
            continue
        if file.pure and not target.pure and not header.startswith("protos/"):
            yield file.path, line, "pure", f"{header} does not say that it is pure"
        there = ROOMS.get(target.wing, target.wing)
        if there == home:
            continue
        if home in FLOOR and there in FLOOR:
            if FLOOR[there] >= FLOOR[home]:
                yield file.path, line, "floor", f"{there} is not below {home}"
        allowed = known_doors.get(target.wing)
        if there in FLOOR and allowed is not None and os.path.basename(header) not in allowed:
            yield file.path, line, "door", f"{header} is no door of {there}"


def stems(file):
    """What the external functions of a file may begin with."""
    stem = os.path.basename(file.path).rsplit(".", 1)[0]
    folder = os.path.basename(file.wing)
    names = {stem, folder, stem.rstrip("s"), folder.rstrip("s")}
    if file.wing.startswith("worker"):
        names.add("lockstep")
    if file.wing == "coordinator":
        names.add("core")
    if file.wing == "server/rpc":
        names.add("grpc")
    return {name.replace("ies", "y") if name.endswith("ies") else name for name in names} | names


def check_names(files, file):
    if file.path.endswith(".h"):
        source = file.path[:-2] + ".c"
        defined = {f.name for f in files[source].functions} if source in files else set()
        for declared in file.declared:
            if declared.name not in defined:
                yield file.path, declared.line, "header", f"{declared.name} is not defined in {source}"
        return
    allowed = stems(file)
    for function in file.functions:
        if function.static or function.name == "main":
            continue
        if not any(function.name == a or function.name.startswith(a + "_") for a in allowed):
            yield file.path, function.line, "name", f"{function.name} begins with none of: {', '.join(sorted(allowed))}"


def table(files):
    edges = graph(files)
    _, _ = by_wing(edges)
    wings = collections.defaultdict(list)
    for file in files.values():
        wings[file.wing].append(file)
    print(f"{'folder':28} {'files':>5} {'lines':>6} {'longest':>7} {'functions':>9} {'median':>6}"
          f" {'longest':>7} {'structs':>7} {'fields':>6} {'circle':>6}")
    for wing, members in sorted(wings.items()) + [("all", list(files.values()))]:
        lengths = sorted(f.lines for m in members for f in m.functions)
        paths = {m.path for m in members}
        inner = collections.defaultdict(set)
        for a, b in edges:
            if a in paths and b in paths:
                inner[a].add(b)
        largest = max([len(c) for c in circles(inner, inner)], default=0)
        struct = max([s[2] for m in members for s in m.structs], default=0)
        print(f"{wing:28} {len(members):5} {sum(m.lines for m in members):6}"
              f" {max(m.lines for m in members):7} {len(lengths):9}"
              f" {lengths[len(lengths) // 2] if lengths else 0:6} {lengths[-1] if lengths else 0:7}"
              f" {sum(len(m.structs) for m in members):7} {struct:6} {largest:6}")
    wide, _ = by_wing(edges)
    found = circles(wide, wide)
    print("circles of calls between wings:", len(found), *(" ".join(c) for c in found))


def self_test():
    global STRUCT_FIELDS, FILE_LINES
    STRUCT_FIELDS, FILE_LINES = 3, 30
    root = os.path.join(HERE, "fixtures", "house")
    files = load(root)
    found = {(path, line, rule) for path, line, rule, _ in check(root, files)}
    wanted = set()
    for file in files.values():
        for number, line in enumerate(file.text.split("\n"), 1):
            for rule in re.findall(r"// broken: (\w+)", line):
                wanted.add((file.path, number, rule))
    for path, line, rule in sorted(wanted ^ found):
        word = "should" if (path, line, rule) in wanted else "should not"
        print(f"fixtures/house/{path}:{line}: {word} have been reported ({rule})")
    return 1 if wanted != found or not wanted else 0


def main():
    arguments = sys.argv[1:]
    root = ROOT
    if "--root" in arguments:
        root = arguments[arguments.index("--root") + 1]
    if "--self-test" in arguments:
        return self_test()
    files = load(root)
    if "--table" in arguments:
        table(files)
        return 0
    found = sorted(set(check(root, files)))
    for path, line, rule, message in found:
        print(f"{path}:{line}: {rule}: {message}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
