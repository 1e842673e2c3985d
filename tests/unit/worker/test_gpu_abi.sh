#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compares the declarations of worker/device/cuda.h and worker/device/nccl.h with NVIDIA's headers, if the machine has
# them. CUDA_INCLUDE and NCCL_INCLUDE name their directories; without them the script looks in the usual places.
# Nothing of it is run.
set -eu
root=$(cd "$(dirname "$0")/../../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# with FILE DIRECTORY...: the first of them that has it; nothing when none has.
with() {
    file=$1
    shift
    for directory; do
        [ ! -e "$directory/$file" ] || { echo "$directory"; return; }
    done
}
skip() {
    echo "skipped: there is no $1 (name its directory with $2)"
    exit 77
}

# list FILE: the table of functions of a fence, as the compiler wants it.
list() {
    sed -nE 's/^ *(NEEDED|OPTIONAL)\(([a-z0-9_]+), "([A-Za-z0-9_]+)"\),$/ABI(\2, \3)/p' "$root/worker/device/$1.c" \
        >"$work/$1.abi"
    [ "$(grep -c '"),$' "$root/worker/device/$1.c")" = "$(grep -c . "$work/$1.abi")" ] || {
        echo "worker/device/$1.c: a line of its table was not understood"
        exit 1
    }
}

wheels=$(python3 -c 'import site; print(" ".join(p + "/nvidia/nccl/include" for p in site.getsitepackages()))' 2>/dev/null || :)
cuda=$(with cuda.h "${CUDA_INCLUDE:-/usr/local/cuda/include}" /usr/include)
nccl=$(with nccl.h "${NCCL_INCLUDE:-/usr/include}" /usr/local/cuda/include $wheels)
compiler=$(command -v "${CXX:-g++}" || :)
[ -n "$compiler" ] || skip "C++ compiler" CXX
[ -n "$cuda" ] || skip cuda.h CUDA_INCLUDE
[ -n "$nccl" ] || skip nccl.h NCCL_INCLUDE
list cuda
list nccl
"$compiler" -std=c++17 -Wall -Wextra -fsyntax-only -I"$root" -I"$work" -isystem "$cuda" -isystem "$nccl" \
    "$root/tests/unit/worker/gpu_abi.cc"
echo "$(grep -c . "$work/cuda.abi") functions of CUDA $(sed -nE 's/^#define CUDA_VERSION ([0-9]+).*/\1/p' "$cuda/cuda.h")," \
    "$(grep -c . "$work/nccl.abi") of NCCL $(sed -nE 's/^#define NCCL_VERSION_CODE ([0-9]+).*/\1/p' "$nccl/nccl.h"): as declared here"
