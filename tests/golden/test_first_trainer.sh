#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The program in docs/first-trainer.md is examples/hello.c to the letter. It compiles as C11 and as
# C++11 with the flags of pkg-config, without a warning, and learns w = 2 alone and with three workers.
# LOCKSTEP_LOG shows the library's log on stderr; without it the library prints nothing.
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

# logs COUNT PATTERN COMMAND...: so many lines of stderr match, and no other line looks like the log.
logs() {
    count=$1
    pattern=$2
    shift 2
    "$@" >/dev/null 2>"$work/err" || { cat "$work/err"; echo "failed: $*"; exit 1; }
    # A slow machine may add a line about a coordinator that is late.
    if [ "$(grep -c "$pattern" "$work/err")" != "$count" ] ||
        [ "$(grep -v event=coordinator_unreached "$work/err" | grep -c level=)" != "$count" ]; then
        cat "$work/err"
        echo "not $count lines '$pattern': $*"
        exit 1
    fi
}

alone="env -u LOCKSTEP_COORDINATOR -u LOCKSTEP_WORLD_SIZE LOCKSTEP_TRACE_DIR=/no/such/dir"
date='ts=[0-9-]*T[0-9:.]*Z'
logs 0 level= env -u LOCKSTEP_LOG $alone "$work/hello"
logs 0 level= $alone LOCKSTEP_LOG= "$work/hello"
logs 0 level= $alone LOCKSTEP_LOG=error "$work/hello"
logs 1 "^$date level=warn event=trace_dir_refused " $alone LOCKSTEP_LOG=warn "$work/hello"
logs 3 "$date from_rank=[0-2] level=info event=world_formed " \
    env LOCKSTEP_LOG=info "$LOCKSTEP_TEST_BIN/lockstep" run -n 3 -- "$work/hello"
for rank in 0 1 2; do
    grep -q "^\[$rank\] $date from_rank=$rank " "$work/err" || { cat "$work/err"; exit 1; }
done
