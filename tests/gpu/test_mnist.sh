#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# MNIST on a GPU and three CPU workers in one job: the loss falls, and all four end with the same
# parameters.
set -eu
trainer=$BUILD/examples/gpu/mnist_cuda
if [ ! -x "$trainer" ]; then
    echo "the CUDA trainer was not built: nvcc is missing"
    exit 77
fi
if [ -n "${LOCKSTEP_CUDA_LIBRARY:-}" ]; then
    echo "the CUDA trainer's own kernels need a real driver"
    exit 77
fi
data=$(tools/get-mnist) || { echo "the MNIST files cannot be had"; exit 77; }
export MNIST_DIR="$data" BUILD
"$LOCKSTEP_TEST_BIN/lockstep" run --no-prefix -n 4 -- sh -c '
    if [ "$LOCKSTEP_RANK_HINT" = 0 ]; then exec "$BUILD/examples/gpu/mnist_cuda" --epochs 1; fi
    exec "$BUILD/examples/mnist" --epochs 1' | tee "$BUILD/tests/gpu/mnist.log"
grep -q 'equal on 4 of 4 ranks' "$BUILD/tests/gpu/mnist.log"
grep -Eq 'test accuracy 9[0-9]' "$BUILD/tests/gpu/mnist.log"
