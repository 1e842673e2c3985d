#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A trainer without a word about its world, started with the variables of each launcher: with a
# coordinator it finds the launcher's world, and without one it says what to set.
set -uo pipefail
bin=${LOCKSTEP_TEST_BIN:-build/bin}
hello=${BUILD:-build}/examples/hello
work=$(mktemp -d)
failures=0
"$bin/lockstep-coordinator" --listen 127.0.0.1:0 --http off --log-level error --port-file "$work/port" \
    --parent-death=$$ 2>"$work/daemon" &
daemon=$!
trap 'kill $daemon 2>/dev/null; rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $*"
    failures=1
}

# Nothing of the machine on which this runs may count.
own=(env)
for name in $(compgen -e | grep -E '^(LOCKSTEP_|SLURM_|PMI|OMPI_|HOROVOD_|FLUX_|TORCHELASTIC|RANK$|WORLD_SIZE$|JOB_COMPLETION)'); do
    own+=(-u "$name")
done

for ((i = 0; i < 1000; i++)); do
    [ -s "$work/port" ] && break
    sleep 0.02
done
port=$(sed -n "s/^grpc=\([0-9]*\).*/\1/p" "$work/port")
[ -n "$port" ] || { cat "$work/port" "$work/daemon"; fail "no port"; exit 1; }

# world NAME VARIABLE...: two processes, @ in a value is the rank. Each must end with its own rank of 2.
world() {
    local name=$1 rank
    shift
    for rank in 0 1; do
        "${own[@]}" LOCKSTEP_COORDINATOR="127.0.0.1:$port" LOCKSTEP_OPEN_TIMEOUT_MS=30000 \
            "${@//@/$rank}" "$hello" >"$work/$rank" 2>&1 &
    done
    wait $(jobs -p | grep -vx "$daemon")
    for rank in 0 1; do
        grep -qx "rank $rank of 2: w = 2.000" "$work/$rank" || fail "$name, rank $rank: $(cat "$work/$rank")"
    done
}

# refused NAME TEXT VARIABLE...: the trainer ends with a sentence that has the text. Every third time, because
# it measures for half a second, lockstep doctor has to say the same.
asked=0
refused() {
    local name=$1 text=$2
    shift 2
    if "${own[@]}" "$@" "$hello" >"$work/out" 2>&1; then
        fail "$name: it trained: $(cat "$work/out")"
    fi
    grep -qF -- "$text" "$work/out" || fail "$name: no '$text' in: $(cat "$work/out")"
    ((asked++ % 3 == 0)) || return
    "${own[@]}" "$@" "$bin/lockstep" doctor --json --python false >"$work/json"
    python3 - "$work/json" "$text" <<'END' || fail "$name: doctor says: $(head -c 400 "$work/json")"
import json, sys
place = json.load(open(sys.argv[1]))["findings"][0]
assert place["name"] == "place" and place["status"] != "ok" and sys.argv[2] in place["meaning"], place
END
}

world torchrun RANK=@ WORLD_SIZE=2 TORCHELASTIC_RUN_ID=run7
world 'RANK and WORLD_SIZE' RANK=@ WORLD_SIZE=2
world Slurm SLURM_PROCID=@ SLURM_NTASKS=2 SLURM_JOB_ID=7 SLURM_STEP_ID=0
world OpenMPI OMPI_COMM_WORLD_RANK=@ OMPI_COMM_WORLD_SIZE=2
world PMI PMI_RANK=@ PMI_SIZE=2
world horovodrun HOROVOD_RANK=@ HOROVOD_SIZE=2 HOROVOD_LOCAL_RANK=@
world Flux FLUX_TASK_RANK=@ FLUX_JOB_SIZE=2 FLUX_JOB_ID=ƒ4abc
world Kubernetes JOB_COMPLETION_INDEX=@ LOCKSTEP_WORLD_SIZE=2
world 'torchrun inside srun' RANK=@ WORLD_SIZE=2 TORCHELASTIC_RUN_ID=a SLURM_PROCID=0 SLURM_NTASKS=1
world 'a size of its own' LOCKSTEP_WORLD_SIZE=2 RANK=@ WORLD_SIZE=2
world 'a range' LOCKSTEP_WORLD_MIN=2 LOCKSTEP_WORLD_MAX=2 LOCKSTEP_RANK_HINT=@

refused 'RANK and WORLD_SIZE' 'no coordinator is named' RANK=1 WORLD_SIZE=4
refused Slurm 'Slurm says that this is rank 0 of 4' SLURM_PROCID=0 SLURM_NTASKS=4
refused OpenMPI 'OpenMPI says that this is rank 1 of 2' OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2
refused PMI 'PMI says that this is rank 1 of 2' PMI_RANK=1 PMI_SIZE=2
refused 'a rank alone' 'OpenMPI says that this is rank 1 (OMPI_COMM_WORLD_RANK=1), but not of how many' \
    OMPI_COMM_WORLD_RANK=1
refused 'a rank that is no number' "SLURM_PROCID='x' is not a number" SLURM_PROCID=x SLURM_NTASKS=4
refused Kubernetes 'but not of how many' JOB_COMPLETION_INDEX=0
refused 'a misspelt variable' 'is LOCKSTEP_COORDINATOR meant?' LOCKSTEP_COORDINATR=127.0.0.1:7
refused 'no size' 'not how many workers' LOCKSTEP_COORDINATOR="127.0.0.1:$port"
refused 'two that disagree' 'unset the variables that are wrong' SLURM_PROCID=1 SLURM_NTASKS=4 RANK=0 WORLD_SIZE=1
refused 'a smaller size' 'but LOCKSTEP_WORLD_SIZE=2: make them equal' LOCKSTEP_WORLD_SIZE=2 \
    LOCKSTEP_COORDINATOR="127.0.0.1:$port" RANK=1 WORLD_SIZE=4
refused 'a rank above its world' 'does not fit a world of 4' LOCKSTEP_RANK_HINT=4 LOCKSTEP_WORLD_SIZE=4 \
    LOCKSTEP_COORDINATOR="127.0.0.1:$port"
refused 'an empty world' 'LOCKSTEP_WORLD_SIZE is 0' LOCKSTEP_WORLD_SIZE=0
refused 'a size that is no number' 'is not a number' LOCKSTEP_WORLD_SIZE=x
refused 'a size alone' 'a world of 4 needs a coordinator' LOCKSTEP_WORLD_SIZE=4 LOCKSTEP_RANK_HINT=0
refused 'a range alone' 'a world of 2 needs a coordinator' LOCKSTEP_WORLD_MIN=2
refused 'a largest world alone, of a coordinator' 'LOCKSTEP_WORLD_MAX=4 is set, and not how many' \
    LOCKSTEP_WORLD_MAX=4 LOCKSTEP_COORDINATOR="127.0.0.1:$port"
refused 'a range from 1, alone' 'a world of 4 needs a coordinator (LOCKSTEP_WORLD_MAX=4)' \
    LOCKSTEP_WORLD_MIN=1 LOCKSTEP_WORLD_MAX=4
refused 'a range upside down' 'LOCKSTEP_WORLD_MIN=3 is above LOCKSTEP_WORLD_MAX=2' \
    LOCKSTEP_WORLD_MIN=3 LOCKSTEP_WORLD_MAX=2
refused 'a wrong name of a run' "(LOCKSTEP_JOB sets another), 'two words' is no job name" \
    RANK=0 WORLD_SIZE=1 TORCHELASTIC_RUN_ID='two words'
refused 'a long name of a run' 'at most 63' RANK=0 WORLD_SIZE=1 TORCHELASTIC_RUN_ID="$(printf 'a%.0s' {1..70})"
refused 'a wrong name of a job' 'is no job name' LOCKSTEP_JOB='a b' LOCKSTEP_WORLD_SIZE=1
refused 'a wrong address' "(LOCKSTEP_COORDINATOR, config.coordinator) 'nonsense'" LOCKSTEP_COORDINATOR=nonsense LOCKSTEP_WORLD_SIZE=2
for path in 'a,b' 'a#b' 'a?b' 'a%41b'; do
    refused "a path $path" 'which gRPC does not take in the path of a socket' \
        LOCKSTEP_COORDINATOR="unix:$work/$path" LOCKSTEP_WORLD_SIZE=2
done

# Said by name, one process alone trains.
grep -qx 'rank 0 of 1: w = 2.000' <("${own[@]}" LOCKSTEP_WORLD_MAX=1 "$hello") || fail "LOCKSTEP_WORLD_MAX=1 alone"
grep -qx 'rank 0 of 1: w = 2.000' <("${own[@]}" SLURM_PROCID=0 "$hello") || fail "a batch script"
grep -qx 'rank 0 of 1: w = 2.000' <("${own[@]}" SLURM_PROCID=1 SLURM_NTASKS=4 LOCKSTEP_WORLD_SIZE=1 "$hello") ||
    fail "LOCKSTEP_WORLD_SIZE=1 alone"
exit $failures
