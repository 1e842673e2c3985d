#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every fuzzer over its seeds and some changes of each, the same ones on every run. Without
# sanitizers only what crashes is found; make asan runs the same.
set -uo pipefail
[ "${LOCKSTEP_TEST_SANITIZER:-}" != thread ] || { echo "decoders start no threads"; exit 77; }
here=$(cd "$(dirname "$0")" && pwd)
failures=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
count=0

for fuzzer in "$BUILD"/tests/fuzz/fuzz_*; do
    case $fuzzer in *.d | *.o) continue ;; esac
    name=${fuzzer##*/fuzz_}
    changes=2000
    [ "$name" != http ] || changes=40 # Over real connections.
    if ! "$fuzzer" "$here/seeds/$name" "$changes" >"$work/said" 2>&1; then
        # Again, because it does the same, and keeping each input takes a while.
        LOCKSTEP_TEST_FUZZ_LAST=/tmp/lockstep-fuzz-$name "$fuzzer" "$here/seeds/$name" "$changes" >/dev/null 2>&1
        echo "fuzz_$name fails on /tmp/lockstep-fuzz-$name:"
        tail -n 30 "$work/said"
        failures=1
    fi
    count=$((count + 1))
done
[ "$count" -ge 12 ] || { echo "only $count fuzzers were built"; failures=1; }
exit "$failures"
