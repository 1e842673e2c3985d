#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The program in docs/first-trainer.md is examples/hello.c to the letter. It compiles as C11 and as
# C++11 with the flags of pkg-config, without a warning, and learns w = 2 alone and with three workers.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sed -n '/^```c$/,/^```$/p' "$root/docs/first-trainer.md" | sed '/^```/d' >"$work/hello.c"
if ! diff -u "$root/examples/hello.c" "$work/hello.c"; then
    echo "docs/first-trainer.md and examples/hello.c differ"
    exit 1
fi

export PKG_CONFIG_PATH="$LOCKSTEP_TEST_LIB/pkgconfig"
flags=$(pkg-config --cflags --libs lockstep)
case ${LOCKSTEP_TEST_SANITIZER:-} in
'') sanitize= ;;
*) sanitize=-fsanitize=$LOCKSTEP_TEST_SANITIZER ;;
esac
case $CC in
*clang*) cxx=clang++ ;;
*) cxx=g++ ;;
esac

# expect WORLD_SIZE COMMAND...: every rank says that it has learned w = 2.
expect() {
    world_size=$1
    shift
    "$@" >"$work/out" 2>&1 || { cat "$work/out"; echo "failed: $*"; exit 1; }
    rank=0
    while [ "$rank" -lt "$world_size" ]; do
        if ! grep -q "rank $rank of $world_size: w = 2\.000" "$work/out"; then
            cat "$work/out"
            echo "rank $rank of $world_size did not learn w = 2: $*"
            exit 1
        fi
        rank=$((rank + 1))
    done
}

# $flags hold libraries, which follow the source; they are several words.
warnings="-Wall -Wextra -Wpedantic -Werror"
$CC -std=c11 $warnings $sanitize "$work/hello.c" -o "$work/hello" $flags
$cxx -x c++ -std=c++11 $warnings $sanitize "$work/hello.c" -x none -o "$work/hello++" $flags
export LD_LIBRARY_PATH="$LOCKSTEP_TEST_LIB"
for program in hello hello++; do
    expect 1 env -u LOCKSTEP_COORDINATOR -u LOCKSTEP_WORLD_SIZE "$work/$program"
    expect 3 "$LOCKSTEP_TEST_BIN/lockstep" run -n 3 -- "$work/$program"
done
