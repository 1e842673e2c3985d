#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# lockstep.hpp compiles without a warning with g++ and clang++, as C++17 and C++20. examples/hello.cpp
# learns w = 2 alone and with three workers. A step that an exception leaves is given up.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PKG_CONFIG_PATH="$LOCKSTEP_TEST_LIB/pkgconfig" LD_LIBRARY_PATH="$LOCKSTEP_TEST_LIB"
unset LOCKSTEP_COORDINATOR LOCKSTEP_WORLD_SIZE
flags=$(pkg-config --cflags --libs lockstep)
include=$(pkg-config --cflags lockstep)
sanitize=${LOCKSTEP_TEST_SANITIZER:+-fsanitize=$LOCKSTEP_TEST_SANITIZER}
case $CC in
*clang*) cxx=clang++ other=g++ ;;
*) cxx=g++ other=clang++ ;;
esac
warnings="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror"

fail() {
    cat "$work/out"
    echo "$*"
    exit 1
}

# $flags hold libraries, which follow the source; they are several words.
for program in examples/hello tests/golden/cpp_check; do
    $cxx -std=c++17 $warnings $sanitize "$root/$program.cpp" -o "$work/${program##*/}" $flags
    $cxx -std=c++20 $warnings -fsyntax-only "$root/$program.cpp" $include
    if command -v $other >/dev/null; then
        $other -std=c++17 $warnings -fsyntax-only "$root/$program.cpp" $include
    else
        echo "skipped: there is no $other"
    fi
done
if $cxx -std=c++17 -fno-exceptions -fsyntax-only "$root/examples/hello.cpp" $include 2>"$work/out"; then
    fail "hello.cpp compiled without exceptions"
fi
grep -q 'use lockstep/lockstep.h without them' "$work/out" || fail "the error without exceptions is another one"

"$work/hello" >"$work/out" 2>&1 || fail "hello failed"
grep -q 'rank 0 of 1: w = 2\.000, largest error 0\.000' "$work/out" || fail "hello learned something else"
"$LOCKSTEP_TEST_BIN/lockstep" run -n 3 -- "$work/hello" >"$work/out" 2>&1 || fail "hello failed with 3 ranks"
for rank in 0 1 2; do
    grep -q "rank $rank of 3: w = 2\.000, largest error 0\.000" "$work/out" || fail "rank $rank is wrong"
done

"$work/cpp_check" alone >"$work/out" 2>&1 || fail "alone"
for what in given-up further left thrown told; do
    "$LOCKSTEP_TEST_BIN/lockstep" run -n 2 -- "$work/cpp_check" $what >"$work/out" 2>&1 || fail "$what"
    [ "$(grep -c "$what: as promised" "$work/out")" -eq 2 ] || fail "$what: a rank said nothing"
done
