#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The table that `make bench-peers` writes, from a small recorded report, compared with peers/table.md
# (UPDATE=1 rewrites it), and the figures below it. No peer is needed, and nothing is measured.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
work=$(mktemp -d)
failures=0
trap 'rm -rf "$work"' EXIT

cp "$here/peers/report.json" "$work"
"$root/bench/peers/report.py" "$work/report.json" --no-plots >"$work/said" || failures=1
[ -z "${UPDATE:-}" ] || cp "$work/table.md" "$here/peers/table.md"
diff -u "$here/peers/table.md" "$work/table.md" || failures=1
grep -q '^warm only .*one host, registered' "$work/said" || { cat "$work/said"; failures=1; }
"$here/peers/check.py" "$root" || failures=1

# The same with plots, of every place, where there is matplotlib.
if python3 -c 'import matplotlib' 2>/dev/null || /usr/bin/python3 -c 'import matplotlib' 2>/dev/null; then
    "$root/bench/peers/report.py" "$work/report.json" >"$work/drawn" 2>&1 || { cat "$work/drawn"; failures=1; }
    ls "$work"/*.png >/dev/null || failures=1
else
    echo "no matplotlib: nothing was drawn"
fi

# The runner loads, and says what it takes, before it enters any namespace.
"$root/bench/peers/run.py" --help >"$work/help" && grep -q -- --quick "$work/help" || failures=1
exit "$failures"
