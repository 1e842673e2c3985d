#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `lockstep doctor`: the JSON is that of docs/cli.md; what is taken away from it is what it says is
# missing; and of jobs it says what their coordinator says. How fast the machine is decides nothing.
set -uo pipefail
bin=${LOCKSTEP_TEST_BIN:-build/bin}
hello=${BUILD:-build}/examples/hello
here=$(dirname "$0")
work=$(mktemp -d)
failures=0
daemon=
trap '[ -z "$daemon" ] || kill "$daemon"; rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $*"
    cat "$work/json" "$work/err"
    failures=1
}

# doctor STATUS ARGUMENTS...: JSON to $work/json. Through a pipe, which no limit of files hurts.
doctor() {
    local wanted=$1 code=0
    shift
    { "$bin/lockstep" doctor --json "$@" 2>"$work/err" || code=$?; } > >(cat >"$work/json")
    wait $!
    [ "$code" = "$wanted" ] || fail "doctor $*: status $code, wanted $wanted"
}

# check WHAT ARGUMENTS...
check() {
    "$here/doctor_check.py" "$@" 2>>"$work/err" || fail "$*"
}

# ---- The machine, with and without ---------------------------------------------------------------

doctor 0
check machine "$here/../../docs/cli.md" "$work/json"

# GPUs: a driver that is none, and NCCL's own files, of which the first that says something counts.
NCCL_ALGO=Ring NCCL_PROTO=Simple LOCKSTEP_CUDA_LIBRARY=libm.so.6 doctor 0
check finding "$work/json" nccl_pinned ok 'Ring, Simple'
check finding "$work/json" gpus ok 0
grep -q 'libm.so.6 has no cuInit' "$work/json" || fail "a driver that is none"
NCCL_COMM_BLOCKING=1 LOCKSTEP_CUDA_LIBRARY=/nowhere doctor 0
grep -q 'NCCL_COMM_BLOCKING is set: unset it' "$work/json" || fail "an NCCL that blocks"
printf 'NCCL_DEBUG=WARN\nNCCL_ALGO=Tree\n' >"$work/nccl.conf"
NCCL_CONF_FILE=$work/nccl.conf LOCKSTEP_CUDA_LIBRARY=/nowhere doctor 0
[ -e /etc/nccl.conf ] || check finding "$work/json" nccl_pinned ok 'Tree, any protocol'
hardware=ok
[ ! -e /proc/driver/nvidia/version ] && [ ! -e /dev/nvidia0 ] || hardware=warning
check finding "$work/json" gpu_driver "$hardware" None

# What every worker refuses: the doctor says it with the worker's sentence.
for refused in LOCKSTEP_SUM=x LOCKSTEP_LINK=1 LOCKSTEP_DEVICE=cuda LOCKSTEP_ADVERTISE=nowhere9 \
    "LOCKSTEP_COORDINATOR=192.0.2.1:5 LOCKSTEP_WORLD_SIZE=2"; do
    for set in $refused; do export "${set?}"; done
    doctor 1
    for set in $refused; do unset "${set%%=*}"; done
    check finding "$work/json" place missing None
    grep -q '"name":"place","value":null,"unit":null,"status":"missing","meaning":"[^"]*'"${refused%%=*}" \
        "$work/json" || fail "the sentence about $refused"
done

soft=$(ulimit -Sn)
ulimit -Sn 50
doctor 1
check finding "$work/json" open_files missing 50
ulimit -Sn 200
doctor 0
check finding "$work/json" open_files warning 200
ulimit -Sn "$soft"

# Memory counts as a file: 64 KiB are not enough to share.
(
    trap '' XFSZ
    ulimit -f 64
    doctor 0
    exit "$failures"
) || failures=1
check finding "$work/json" shared_memory warning no
grep -q 'TCP is used; what failed is getting all its pages (fallocate)' "$work/json" ||
    fail "shared memory without files"

core=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')
if taskset -c "$core" "$bin/lockstep" doctor --json >"$work/json" 2>"$work/err"; then
    check finding "$work/json" cores warning 1
    check finding "$work/json" line warning None
else
    fail "doctor on one core"
fi

if unshare -rn true 2>"$work/err"; then
    unshare -rn "$bin/lockstep" doctor --json >"$work/json" 2>"$work/err"
    [ $? = 1 ] || fail "doctor without a network"
    check finding "$work/json" tcp_latency missing None
fi

# A control group of 512 MiB above all, and huge pages that may be asked for, in a mount namespace.
top=/sys/fs/cgroup/memory file=memory.limit_in_bytes
grep -Eq '^[0-9]+:([a-z_]+,)*memory(,[a-z_]+)*:' /proc/self/cgroup ||
    top=/sys/fs/cgroup file=memory.max
cat >"$work/limited" <<END
mount -t tmpfs none /sys/fs/cgroup && mkdir -p $top && echo 536870912 >$top/$file || exit 77
echo 'always [advise] never' >"$work/pages"
mount --bind "$work/pages" /sys/kernel/mm/transparent_hugepage/shmem_enabled || exit 77
exec "$bin/lockstep" doctor --json
END
code=0
unshare -rm sh "$work/limited" >"$work/json" 2>"$work/err" || code=$?
if [ "$code" = 0 ]; then
    check finding "$work/json" memory_limit warning 536870912
    check finding "$work/json" huge_pages ok advise
fi

# ---- Hooks of PyTorch ----------------------------------------------------------------------------

# A Python that has only what PYTHONPATH names, and a PyTorch that nobody may import.
package=$(realpath "$here/../../bindings/python/src")
python=$(python3 -c 'import sys; print(sys.executable)')
mkdir -p "$work/site/torch" "$work/empty"
printf '#!/bin/sh\nexec "%s" -S "$@"\n' "$python" >"$work/python"
chmod +x "$work/python"
echo 'raise SystemExit("imported")' >"$work/site/torch/__init__.py"
echo "__version__ = '2.13.0+test'" >"$work/site/torch/version.py"
both=$work/site:$package

# hooks STATUS VALUE TEXT [VARIABLE=VALUE...]: the finding, and what its sentence has.
hooks() {
    local status=$1 value=$2 text=$3 code=0
    shift 3
    [ "$status" != missing ] || code=1
    { env XDG_CACHE_HOME="$work/cache" PYTHONPATH="$both" CXX=c++ "$@" \
        "$bin/lockstep" doctor --json --python "$asked" 2>"$work/err"
      [ $? = "$code" ] || echo status >>"$work/err"; } > >(cat >"$work/json")
    wait $!
    ! grep -q '^status$' "$work/err" || fail "hooks $*: the exit status is not $code"
    check finding "$work/json" pytorch_hooks "$status" "$value"
    grep -qF -- "$text" "$work/json" || fail "hooks $*: no '$text'"
}

asked=$work/python
hooks ok none 'has no PyTorch' PYTHONPATH=
hooks ok none 'pip install lockstep' PYTHONPATH="$work/site"
hooks ok possible "for PyTorch 2.13.0+test of "
hooks ok possible "the build goes into $work/cache/lockstep"
hooks ok possible '-m lockstep.torch.build'
hooks warning python 'there is no C++ compiler' CXX= PATH="$work/empty"
hooks warning python 'false cannot compile c++20 (exit status 1)' CXX=false
hooks warning python 'nothing cannot compile c++20 (No such file or directory)' CXX=/nothing
hooks warning python 'cannot be written: set XDG_CACHE_HOME' XDG_CACHE_HOME=/dev/null
hooks ok python 'LOCKSTEP_TORCH_HOOKS is python' LOCKSTEP_TORCH_HOOKS=python
hooks missing none 'LOCKSTEP_TORCH_HOOKS is native, and' LOCKSTEP_TORCH_HOOKS=native CXX=false
hooks missing none 'not native, python or auto' LOCKSTEP_TORCH_HOOKS=some
built=$(XDG_CACHE_HOME=$work/cache PYTHONPATH=$both "$asked" -c "import runpy
print(runpy.run_path('$package/lockstep/torch/build.py')['path']())")
mkdir -p "$work/cache/lockstep" && : >"$built"
hooks ok built "$built" CXX=false
asked=false
hooks warning None 'false -m lockstep.torch.build'
asked=/nowhere/python
hooks warning None 'cannot be started: No such file or directory'

# ---- Jobs ----------------------------------------------------------------------------------------

doctor 1 --http 127.0.0.1:1
check finding "$work/json" coordinator missing 127.0.0.1:1

"$bin/lockstep-coordinator" --listen 127.0.0.1:0 --http 127.0.0.1:0 --port-file "$work/ports" \
    --parent-death=$$ 2>"$work/daemon" &
daemon=$!
until [ -s "$work/ports" ]; do
    kill -0 "$daemon" || exit 1
    sleep 0.02
done
read -r ports <"$work/ports"
grpc=${ports#grpc=} grpc=${grpc%% *} http=127.0.0.1:${ports##*http=}

# train JOB RANKS [VARIABLE=VALUE...]
train() {
    local job=$1 ranks=$2
    shift 2
    env "$@" "$bin/lockstep" run -n "$ranks" --coordinator "127.0.0.1:$grpc" --job "$job" -- \
        "$hello" >"$work/out" 2>"$work/err" || fail "job $job"
}

# job NAME STATUS: what the doctor says of it is what the API says, when nothing of it changes any more
# between the two questions.
job() {
    local i
    for i in 1 2 3 4 5 6 7 8 9 10; do
        doctor 0 --http "http://$http/" --job "$1"
        curl -sS -m 20 "http://$http/api/v1/jobs/$1" >"$work/api" || fail "no API"
        "$here/doctor_check.py" job "$work/json" "$work/api" "$1" "$2" 2>"$work/differs" && return
        sleep 0.2
    done
    check job "$work/json" "$work/api" "$1" "$2"
}

train memory 2
if grep -q '"name":"shared_memory","value":"yes"' "$work/json"; then
    job memory ok
else
    job memory warning
fi
train slow 4 LOCKSTEP_TRANSPORT=tcp LOCKSTEP_LINK=50000,1000000000
job slow warning
for word in doubling halving ring; do
    grep -q "\"reduction\":\"$word\"" "$work/json" || fail "no $word over slow links"
done
# Two ranks have no halving, so its bound is 0.
train pair 2 LOCKSTEP_TRANSPORT=tcp LOCKSTEP_LINK=50000,1000000000
job pair warning
grep -q '"halving_bytes":0,' "$work/json" || fail "two ranks halve"
train wished 2 LOCKSTEP_ALGORITHM=doubling
job wished warning
grep -q 'LOCKSTEP_ALGORITHM=doubling takes the place' "$work/json" || fail "the wish is not named"

# A job that waits for its second rank.
LOCKSTEP_COORDINATOR=127.0.0.1:$grpc LOCKSTEP_JOB=half LOCKSTEP_WORLD_SIZE=2 LOCKSTEP_OPEN_TIMEOUT_MS=600000 "$hello" \
    >"$work/out" 2>&1 &
half=$!
until grep -q '"joined":1' <(curl -sS -m 20 "http://$http/api/v1/jobs/half"); do
    kill -0 "$half" || exit 1
    sleep 0.02
done
job half warning
grep -q '1 of 2 ranks are there' "$work/json" || fail "a job that waits"

"$bin/lockstep" doctor --http "$http" >"$work/text" 2>"$work/err" || fail "text"
kill "$half"
[ "$(grep -cE '^(ok|warning) +job (memory|slow|pair|wished|half): ' "$work/text")" = 5 ] ||
    { fail "text has not all jobs"; cat "$work/text"; }
grep -qE '^ +[0-9]+ B  halving +ring$' "$work/text" || fail "text has no table"
! grep -E '^.{101}' "$work/text" || fail "text is wider than 100 columns"

doctor 1 --http "$http" --job nobody
check finding "$work/json" coordinator missing "$http"

# ---- Misuse --------------------------------------------------------------------------------------

for bad in "--http" "--http nowhere" "--http 127.0.0.1:0" "--python" "--job mnist" "--frobnicate" "surplus" \
    "--http $http --job a/b" "--http $http --job ''"; do
    # shellcheck disable=SC2086
    doctor 2 $bad
    grep -q "^Try 'lockstep doctor --help'.$" "$work/err" || fail "doctor $bad"
done
exit "$failures"
