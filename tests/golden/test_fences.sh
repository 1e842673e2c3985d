#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A driver or an NCCL that lacks a function is refused only if the library calls that function.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
status=0
for fence in cuda nccl; do
    needed=$(sed -nE 's/^ *NEEDED\(([a-z0-9_]+), .*/\1/p' "$root/worker/device/$fence.c")
    [ -n "$needed" ] || { echo "worker/device/$fence.c has no table"; exit 1; }
    for field in $needed; do
        grep -rqE --include='*.c' "$fence->$field\\b" "$root/worker" && continue
        echo "worker/device/$fence.c needs $field, and no code of worker calls it"
        status=1
    done
done
exit $status
