#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The kernels under NVIDIA's compute-sanitizer, where it is installed: no access out of bounds, no
# race on shared memory, no barrier that some of a warp miss.
set -eu
if ! command -v compute-sanitizer >/dev/null; then
    echo "compute-sanitizer is not installed"
    exit 77
fi
for tool in memcheck racecheck synccheck; do
    compute-sanitizer --tool $tool --error-exitcode 1 "$BUILD/tests/gpu/test_kernels"
done
