#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `make install` into an empty directory: programs run there, a CMake project builds, debuggers find
# lines, man pages and completion have every option that --help has. `make uninstall` leaves nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
fail() {
    echo "FAILED: $*"
    failed=1
}
unset LOCKSTEP_COORDINATOR LOCKSTEP_WORLD_SIZE LD_LIBRARY_PATH
export LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
place=$work/tree/opt/lockstep

# Named as the build itself names it: with another name in its flags all would be compiled again.
make_tree() {
    make -C "$root" BUILD="${BUILD#"$root"/}" CC="$CC" SAN="$LOCKSTEP_TEST_SANITIZER" PREFIX=/opt/lockstep \
        DESTDIR="$work/tree" "$@" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
}

# Other people's files, which stay.
mkdir -p "$place/lib" "$place/share/man/man1" "$place/share/doc/other"
touch "$place/lib/libother.so" "$place/share/man/man1/lock.1" "$place/share/doc/other/README"
(cd "$work/tree" && find . | sort) >"$work/before"
make_tree install
env -u MAKEFLAGS -u MAKELEVEL -u PACKAGES_CHECKED BUILD="$work/other" make -C "$root" build/bin/lockstep \
    >"$work/log" 2>&1 && fail "make made nothing, and says nothing"
grep -q "build/bin/lockstep: nothing is built there, because BUILD is $work/other" "$work/log" || cat "$work/log"

grep -rlF "$root" "$work/tree" && fail "these name the directory in which they were built"

# --- programs ------------------------------------------------------------------------------------

for program in lockstep lockstep-coordinator; do
    grep -qE "^$program [0-9.]+$" <("$place/bin/$program" --version) || fail "$program --version"
    grep -q '\.debug_info' <(readelf --section-headers --wide "$place/bin/$program") &&
        fail "$program is not stripped"
done
"$place/bin/lockstep" run -n 2 -- "$BUILD/examples/hello" >"$work/said" 2>&1 &&
    grep -q 'rank 1 of 2' "$work/said" || { cat "$work/said"; fail "lockstep run"; }

grep -q '"name": "lockstep_open"' "$place/share/lockstep/lockstep.json" || fail "lockstep.json"
[ -e "$place/share/doc/lockstep/docs/../include/lockstep/lockstep.hpp" ] || fail "links of the pages to the headers"

if command -v pkg-config >/dev/null; then
    flags=$(PKG_CONFIG_PATH=$place/lib/pkgconfig pkg-config --define-variable=includedir='/a b' --cflags lockstep)
    [ "${flags% }" = '-I/a\ b' ] || fail "pkg-config with a space in a path: $flags"
fi

# gRPC and what is below it are inside: the daemon always, the library with the archives of `make pic`.
needs() {
    readelf --dynamic "$1" | sed -n 's/.*Shared library: \[\(lib\(grpc\|gpr\|upb\|absl\|re2\)[^]]*\)\]/\1/p'
}
if [ -z "$LOCKSTEP_TEST_SANITIZER" ]; then
    [ -z "$(needs "$place/bin/lockstep-coordinator")" ] || fail "lockstep-coordinator needs gRPC, abseil or RE2"
    if [ -e "$root/build/pic/libre2.a" ]; then
        [ -z "$(needs "$place/lib/liblockstep.so")" ] || fail "liblockstep.so needs gRPC, abseil or RE2"
    fi
fi

# Symbols are in files of their own, and the link to them holds: a line of our source is found.
library=$place/lib/liblockstep.so
grep -q '\.debug_info' <(readelf --section-headers --wide "$library") && fail "$library is not stripped"
address=$(nm --dynamic "$library" | sed -n 's/^0*\([0-9a-f]*\) T lockstep_open\b.*/\1/p')
line=$(addr2line -e "$library" "0x$address")
case $line in
*worker/*.c:[1-9]*) ;;
*) fail "lockstep_open is at '$line'" ;;
esac

# --- CMake ---------------------------------------------------------------------------------------

sanitize=${LOCKSTEP_TEST_SANITIZER:+-fsanitize=$LOCKSTEP_TEST_SANITIZER}
case $CC in
*clang*) cxx=clang++ ;;
*) cxx=g++ ;;
esac
configure() {
    cmake -S "$here/cmake" -B "$work/cmake$1" -DWANTED="$1" -DEXAMPLES="$place/share/doc/lockstep/examples" \
        -DCMAKE_PREFIX_PATH="$place" -DCMAKE_C_COMPILER="${CC##* }" -DCMAKE_CXX_COMPILER="$cxx" \
        -DCMAKE_C_FLAGS="$sanitize" -DCMAKE_CXX_FLAGS="$sanitize" >"$work/log" 2>&1
}
version=$("$place/bin/lockstep" --version | cut -d' ' -f2)
if configure "$version" && cmake --build "$work/cmake$version" >"$work/log" 2>&1; then
    for program in hello hello_static hello_cpp; do
        grep -q 'rank 0 of 1' <("$work/cmake$version/$program" 2>&1) || fail "$program of CMake"
    done
    ldd "$work/cmake$version/hello" >"$work/libraries" 2>&1 || fail "ldd hello"
    grep -q "liblockstep.so.0 => $place/lib" "$work/libraries" ||
        { cat "$work/libraries"; fail "hello has another library"; }
    grep -q liblockstep <(ldd "$work/cmake$version/hello_static") && fail "hello_static is not static"
else
    cat "$work/log"
    fail "CMake"
fi
configure 99.0 && fail "CMake takes version 99.0 for there"
configure 0.0.1 && fail "CMake takes 0.0.1, which another series is not compatible with"

# --- manuals and completion ----------------------------------------------------------------------

commands=$("$place/bin/lockstep" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\)  .*/\1/p')
[ "$(wc -w <<<"$commands")" -ge 9 ] || fail "the commands were not found"

# options PROGRAM [COMMAND]: what --help has at the beginnings of lines.
options() {
    "$place/bin/$1" ${2:+"$2"} --help | sed -n 's/^ *\(-[a-zA-Z]*, \)*\(--[a-z-]*\).*/\2/p' | sort -u
}

# bash_offers WORD...: what bash completes the last word to.
bash_offers() {
    # shellcheck disable=SC2016
    bash --norc -c '. "$1" || exit 1
        shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        "_${1//-/_}"; printf "%s\n" "${COMPREPLY[@]}"' \
        bash "$place/share/bash-completion/completions/$1" "$@" | sort -u
}

# zsh_offers "LINE": what a real zsh lists for it.
zsh_offers() {
    python3 "$here/zsh_offers.py" "$place/share/zsh/site-functions" "$1"
}

# check PROGRAM SECTION [COMMAND]
check() {
    local program=$1 page=$place/share/man/man$2/$1${3:+-$3}.$2 option
    [ -f "$page" ] || { fail "there is no $page"; return; }
    man --warnings -E UTF-8 -l "$page" 2>"$work/warnings" | col -b >"$work/page"
    [ ! -s "$work/warnings" ] || { cat "$work/warnings"; fail "man -l $page"; }
    grep -q '^SYNOPSIS' "$work/page" || fail "$page has no synopsis"
    options "$program" ${3:+"$3"} >"$work/options"
    [ -s "$work/options" ] || fail "$program ${3-} has no options"
    while read -r option; do
        grep -qE "^ +(-[a-z]+, )*$option\b" "$work/page" || fail "$page lacks $option"
    done <"$work/options"
    bash_offers "$program" ${3:+"$3"} -- | grep -- '^--' | diff "$work/options" - ||
        fail "bash completes other options of $program ${3-}"
    zsh_offers "$program ${3:+$3 }--" >"$work/zsh"
    diff "$work/options" "$work/zsh" || fail "zsh completes other options of $program ${3-}"
}
check lockstep 1
check lockstep-coordinator 8
for command in $commands; do
    check lockstep 1 "$command"
done
[ "$(bash_offers lockstep st | tr '\n' ' ')" = "stacks stalls status " ] || fail "bash: lockstep st"
[ "$(bash_offers lockstep-coordinator --log-level '' | tr '\n' ' ')" = "debug error info warn " ] ||
    fail "bash: --log-level"
[ "$(zsh_offers 'lockstep st' | tr '\n' ' ')" = "stacks stalls status " ] || fail "zsh: lockstep st"

# --- and away ------------------------------------------------------------------------------------

make_tree uninstall
(cd "$work/tree" && find . ! -type d | sort) >"$work/after"
grep -vxFf "$work/before" "$work/after" && fail "make uninstall left these"
(cd "$work/tree" && find . | sort) | grep -i lockstep | grep -vxF ./opt/lockstep | grep -v '^./opt/lockstep/[^L]*$' &&
    fail "make uninstall left these directories"
grep -vxFf <(cd "$work/tree" && find . | sort) "$work/before" && fail "make uninstall took these of other people's"
exit $failed
