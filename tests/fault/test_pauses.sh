#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Silence is not death. Two jobs train on hosts with networks of their own: "err", of two ranks, with
# the default that a lost rank ends the job, and "cont", of three, whose ranks go on after a loss. The
# coordinator is on a host of its own. Its network is cut for eight seconds: both jobs train on
# meanwhile, and nobody is lost.
#
# With LOCKSTEP_TEST_LONG_CUT=1 (make recovery) the coordinator is also stopped for 45 seconds, and a
# worker of each job for 30 seconds. Then rank 2 of "cont" is stopped and its host is cut off until
# the others have gone on without it. When it wakes, it harms nobody and is told so.
NETWORK_PROBE='ip link add br0 type bridge && ip link add name one type veth peer name other &&
               ip link set one master br0'
NETWORK_NEEDS="unshare, veth, bridge"
. "$(dirname "$0")/own_network.sh"
. "$(dirname "$0")/run_lib.sh"
. "$(dirname "$0")/hosts_lib.sh"
here=$(dirname "$0")
root=$(cd "$here/../.." && pwd)

# ---- a trainer that checks every element ---------------------------------------------------------

cat >"$work/trainer.c" <<'END'
#include <fcntl.h>
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ELEMENTS 100003

static float data[ELEMENTS], gradient[ELEMENTS];

static void check(int status)
{
    if (status < 0) {
        fprintf(stderr, "%s\n", lockstep_error_text());
        exit(3);
    }
}

// Arguments: the job, the file that ends it, the file with the last step.
int main(int argc, char **argv)
{
    const int64_t count = ELEMENTS;
    struct lockstep_config options = LOCKSTEP_CONFIG_INIT;
    struct lockstep_parameter parameter = LOCKSTEP_PARAMETER_INIT;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_session *session;
    lockstep_module *module;
    lockstep_call *call;
    uint32_t rank, size, before = 0;
    int64_t stop = 0;
    const int told = open(argv[3], O_CREAT | O_WRONLY, 0666);
    (void)argc;
    options.job = argv[1];
    if (strcmp(argv[1], "cont") == 0)
        options.on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
    parameter.name = "w";
    parameter.dims = 1;
    parameter.shape = &count;
    parameter.data = data;
    parameter.gradient = gradient;
    config.name = "model";
    config.parameters = &parameter;
    config.parameter_count = 1;
    check(lockstep_open(&options, &session));
    check(lockstep_module_register(session, &config, &module));
    check(lockstep_start(session));
    for (uint64_t step = 1; stop == 0; step++) {
        char text[32];
        check(lockstep_step_begin(session, NULL, NULL));
        check(lockstep_world(session, &rank, &size));
        check(lockstep_call_begin(module, &call));
        for (uint64_t i = 0; i < ELEMENTS; i++)
            gradient[i] = (float)(6 * ((rank + step + i) % 5));
        check(lockstep_grad_ready(module, call, 0, NULL, NULL));
        check(lockstep_call_end(call));
        if (rank == 0 && access(argv[2], F_OK) == 0)
            check(lockstep_counter_add(session, "stop", 1));
        check(lockstep_step_end(session, NULL));
        check(lockstep_world(session, &rank, &before));
        // A step in which a rank is lost may have its gradients or not.
        for (uint64_t i = 0; i < ELEMENTS && before == size; i++) {
            float sum = 0;
            for (uint32_t r = 0; r < size; r++)
                sum += (float)(6 * ((r + step + i) % 5));
            if (gradient[i] != sum / (float)size) {
                fprintf(stderr, "rank %u: element %lu of step %lu\n", rank, (unsigned long)i,
                        (unsigned long)step);
                exit(4);
            }
        }
        check(lockstep_counter_read(session, "stop", &stop));
        snprintf(text, sizeof(text), "%-20lu\n", (unsigned long)step);
        if (pwrite(told, text, strlen(text), 0) < 0)
            exit(5);
        usleep(20000);
    }
    check(lockstep_close(session));
    return 0;
}
END
build_trainer gnu11
make_hosts 4 # Host 3 has the coordinator.

# ---- the jobs ------------------------------------------------------------------------------------

on 3 "${lockstep%/*}/lockstep-coordinator" --listen 10.77.0.4:0 --log-level info \
    --insecure-plaintext --port-file "$work/ports" 2>"$work/log" &
wait_for "$work/ports"
read -r ports <"$work/ports"
grpc=${ports#grpc=} grpc=${grpc%% *}
coordinator=$(pgrep -f "port-file $work/ports" | tail -1)
names=() pids=()
# begin JOB SIZE RANK
begin() {
    LOCKSTEP_COORDINATOR=10.77.0.4:$grpc LOCKSTEP_WORLD_SIZE=$2 LOCKSTEP_RANK_HINT=$3 \
        nsenter --target="${keepers[$3]}" --net --uts -- \
        "$work/trainer" "$1" "$work/stop" "$work/step.$1.$3" 2>"$work/err.$1.$3" &
    names+=("$1.$3") pids+=($!)
}
for rank in 0 1; do begin err 2 $rank; done
for rank in 0 1 2; do begin cont 3 $rank; done

step_of() {
    local step
    read -r step 2>/dev/null <"$work/step.$1"
    echo "${step:-0}"
}

# moves WHAT NAME...: each of these ranks ends another ten steps.
moves() {
    local what=$1 name from now i
    shift
    for name in "$@"; do
        from=$(step_of "$name")
        for ((i = 0; i < 1000 * slow; i++)); do
            now=$(step_of "$name")
            [ "$now" -lt $((from + 10)) ] || break
            read -rt 0.02 <> <(:) || true
        done
        [ "$now" -ge $((from + 10)) ] || fail "$what: $name stands at step $now"
    done
}

# nobody WHAT: no rank was lost, and no rank has failed.
nobody() {
    local i
    ! grep -E "id=(generation_halted|recovery_began|recovered)|generation_halted|recovery_began" \
        "$work/log" || fail "$1: a rank was lost"
    for i in "${!pids[@]}"; do
        kill -0 "${pids[i]}" 2>/dev/null || { fail "$1: ${names[i]} has ended"; cat "$work/err.${names[i]}"; }
    done
}

pause() {
    read -rt "$1" <> <(:) || true
}

all=(err.0 err.1 cont.0 cont.1 cont.2)
moves start "${all[@]}"

ip link set port3 down
before=$(now_ms)
moves "without the control network" "${all[@]}"
while [ $(($(now_ms) - before)) -lt 8000 ]; do pause 0.1; done
moves "without the control network, at the end" "${all[@]}"
ip link set port3 up
moves "with the control network again" "${all[@]}"
nobody "8 s without the control network"

if [ -n "${LOCKSTEP_TEST_LONG_CUT:-}" ]; then
    kill -STOP "$coordinator"
    pause 45
    moves "with a stopped coordinator" "${all[@]}"
    kill -CONT "$coordinator"
    moves "with the coordinator again" "${all[@]}"
    pause 3
    nobody "45 s without the coordinator"
    echo "ok: a coordinator that was stopped for 45 s"

    kill -STOP "${pids[1]}" "${pids[3]}"
    pause 30
    kill -CONT "${pids[1]}" "${pids[3]}"
    moves "after a worker was stopped" "${all[@]}"
    pause 3
    nobody "30 s with stopped workers"
    grep -q "id=stall\|stall_began\|stall" "$work/log" || fail "no stall was diagnosed"
    echo "ok: a worker of each job that was stopped for 30 s"

    kill -STOP "${pids[4]}"
    ip link set port2 down
    comes "$work/log" "recovered"
    moves "without rank 2" cont.0 cont.1
    ip link set port2 up
    kill -CONT "${pids[4]}"
    wait "${pids[4]}"
    equal "the status of the excluded rank" $? 3
    has "$work/err.cont.2" "the other ranks went on without this one"
    sed 's/^/it says: /' "$work/err.cont.2"
    moves "after rank 2 has woken" err.0 err.1 cont.0 cont.1
    unset "pids[4]"
    echo "ok: a rank that was excluded and wakes"
fi

: >"$work/stop"
for i in "${!pids[@]}"; do
    wait "${pids[i]}"
    status=$?
    [ $status = 0 ] || { fail "${names[i]} ends with $status"; cat "$work/err.${names[i]}"; }
done
kill "$coordinator"
[ "$failures" = 0 ] || sed 's/^/log: /' "$work/log"
[ "$failures" = 0 ]
