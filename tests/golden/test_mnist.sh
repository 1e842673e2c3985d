#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A trainer's losses do not depend on how many workers share its batches: 40 steps on MNIST with one
# to four workers, also with a batch that no world divides evenly, against a run without any launcher.
# And all ranks end with the same parameters. With --virtual-ranks even the bits of the parameters do
# not depend on how many workers there are.
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

# compare NAME: the losses of $work/NAME.csv with those of alone.csv, to 1e-5 relative.
compare() {
    paste -d , "$work/alone.csv" "$work/$1.csv" | awk -F , -v name="$1" -v steps="$steps" '
        NR == 1 { next }
        $1 != $3 { print name ": step " $1 " against step " $3; bad = 1; exit }
        {
            difference = $2 > $4 ? ($2 - $4) / $2 : ($4 - $2) / $2
            if (!(difference <= 1e-5)) {
                print name ": step " $1 ": loss " $4 " instead of " $2; bad = 1; exit
            }
            if (difference > most)
                most = difference
        }
        END {
            if (NR != steps + 1) { print name ": " NR - 1 " steps instead of " steps; bad = 1 }
            if (!bad) printf "%s: %d steps agree to %.1e\n", name, steps, most
            exit bad
        }'
}

# Worlds differ in how they cut and sum, which no sanitizer sees.
worlds="1 2 3 4" steps=40
[ -z "${LOCKSTEP_TEST_SANITIZER:-}" ] || worlds=3 steps=15

# few NAME BYTES: the first 500 items of test data; all are tried in the end, and that would take long.
few() {
    { head -c 4 "$data/$1" && printf '\000\000\001\364' && tail -c +9 "$data/$1" | head -c "$2"; } \
        >"$work/few/$1"
}
mkdir "$work/few"
ln -s "$data"/train-* "$work/few"
few t10k-images-idx3-ubyte $((8 + 500 * 784))
few t10k-labels-idx1-ubyte 500
data=$work/few

# An odd batch: no two ranks of a world have equally many images.
train() {
    log=$1
    shift
    "$@" "$mnist" --data "$data" --batch 61 --steps $steps --virtual-ranks $virtual --log-losses "$work/$log.csv" \
        >"$work/$log.out" 2>&1 || { cat "$work/$log.out"; echo "$log: failed"; exit 1; }
}

failed=0 virtual=0
train alone env -u LOCKSTEP_COORDINATOR -u LOCKSTEP_WORLD_SIZE
for workers in $worlds; do
    train "$workers-workers" "$LOCKSTEP_TEST_BIN/lockstep" run -n "$workers" --
    compare "$workers-workers" || failed=1
    if ! grep -q "equal on $workers of $workers ranks" "$work/$workers-workers.out"; then
        cat "$work/$workers-workers.out"
        echo "$workers workers: their parameters differ"
        failed=1
    fi
done

# hash NAME OPTION...: the hash of the parameters at the end, also into $work/NAME.hash.
hash() {
    log=$1
    shift
    train "$log" "$@"
    sed -n 's/^.*parameters: hash \(0x[0-9a-f]*\) .*$/\1/p' "$work/$log.out" >"$work/$log.hash"
    [ -s "$work/$log.hash" ] || { cat "$work/$log.out"; echo "$log: no hash"; exit 1; }
}

# Eight leaves; without a coordinator, and with one to four workers, three of them over TCP.
virtual=8
hash virtual-alone env -u LOCKSTEP_COORDINATOR -u LOCKSTEP_WORLD_SIZE
for workers in $worlds; do
    name=virtual-$workers-workers transport=auto
    [ "$workers" != 3 ] || transport=tcp
    hash "$name" env LOCKSTEP_TRANSPORT=$transport "$LOCKSTEP_TEST_BIN/lockstep" run -n "$workers" --
    compare "$name" || failed=1
    if ! cmp -s "$work/virtual-alone.hash" "$work/$name.hash"; then
        echo "$name: hash $(cat "$work/$name.hash") instead of $(cat "$work/virtual-alone.hash")"
        failed=1
    fi
done
exit $failed
