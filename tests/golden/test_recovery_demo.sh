#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/demo-recovery on few images: four workers train, one is killed by SIGKILL in each of two
# epochs, the two survivors end well with equal parameters. The demo fails if the accuracy is below
# its aim.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
mnist=$BUILD/examples/mnist
[ -x "$mnist" ] || { echo "$mnist is missing: run make first"; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! data=$("$root/tools/get-mnist" 2>"$work/why"); then
    echo "no MNIST data: $(tail -n 1 "$work/why")"
    exit 77
fi

# few NAME COUNT HEAD ITEM: the first COUNT items of ITEM bytes, after a head of HEAD bytes.
few() {
    {
        head -c 4 "$data/$1"
        # shellcheck disable=SC2059
        printf "\\0\\0\\$(printf %03o $(($2 / 256)))\\$(printf %03o $(($2 % 256)))"
        tail -c +9 "$data/$1" | head -c $(($3 - 8 + $2 * $4))
    } >"$work/few/$1"
}
mkdir "$work/few"
few train-images-idx3-ubyte 6000 16 784
few train-labels-idx1-ubyte 6000 8 1
few t10k-images-idx3-ubyte 500 16 784
few t10k-labels-idx1-ubyte 500 8 1

demo() {
    "$root/tools/demo-recovery" --data "$work/few" --batch 16 "$@" >"$work/demo.out" 2>&1
}

if ! demo --accuracy 0.75; then
    cat "$work/demo.out"
    exit 1
fi
cat "$work/demo.out"
for text in "4 workers train" "2 workers finished step" "2 survivors of 4 workers" \
    "lockstep status: recoveries: 2, the last in" \
    "; enough for --survive=2"; do
    grep -q "$text" "$work/demo.out" || { echo "the demo does not say: $text"; exit 1; }
done
if demo --accuracy 1.01; then
    echo "the demo cannot fail"
    exit 1
fi
grep -q "FAILED: 101% of the test images are wanted" "$work/demo.out" ||
    { cat "$work/demo.out"; echo "the demo fails for another reason"; exit 1; }
