#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# examples/waits.c trains where all ranks wait in one order. Where they do not, every rank says what
# docs/waits.md shows, but for the name of the host.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
waits=$BUILD/examples/waits

fail() {
    cat "$work/out"
    echo "$*"
    exit 1
}

env -u LOCKSTEP_COORDINATOR -u LOCKSTEP_WORLD_SIZE "$waits" >"$work/out" 2>&1 ||
    fail "waits failed alone"
"$LOCKSTEP_TEST_BIN/lockstep" run -n 3 -- "$waits" >>"$work/out" 2>&1 || fail "waits failed"
for rank in 0 1 2; do
    grep -q "rank $rank of 3: actor 1\.000, critic 1\.000" "$work/out" || fail "rank $rank is wrong"
done

if "$LOCKSTEP_TEST_BIN/lockstep" run -n 2 --grace 60s -- "$waits" --swap >"$work/out" 2>&1; then
    fail "waits --swap was to fail"
fi
sed -n '/waits --swap$/,/^$/s/^    \(\[[01]\] .*\)/\1/p' "$root/docs/waits.md" | sort >"$work/wanted"
grep '^\[[01]\] ' "$work/out" | sed 's/(host [^)]*)/(host vm)/g' | sort >"$work/said"
[ "$(wc -l <"$work/wanted")" -eq 2 ] || fail "docs/waits.md shows no error"
diff -u "$work/wanted" "$work/said" || fail "docs/waits.md and what is said differ"
