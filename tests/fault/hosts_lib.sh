# SPDX-License-Identifier: Apache-2.0
# Shared by the tests between hosts; sourced after run_lib.sh, inside of a network namespace of the
# test's own. Hosts are namespaces on a bridge, br0, that end with the script; host N is 10.77.0.N+1.

keepers=()
export LOCKSTEP_INSECURE_PLAINTEXT=1 # These hosts trust each other.

# on HOST COMMAND...: runs it there.
on() {
    local host=$1
    shift
    nsenter --target="${keepers[host]}" --net --uts -- "$@"
}

# at HOST COMMAND... &: the same in the background, where $! is the process of the command. "": here.
at() {
    local host=$1
    shift
    [ -n "$host" ] || exec "$@"
    exec nsenter --target="${keepers[host]}" --net --uts -- "$@"
}

# coordinate HOST ADDRESS OPTION...: $coordinator is its process, $port and $http are its ports.
coordinate() {
    local ports
    rm -f "$work/ports"
    at "$1" "${lockstep%/*}/lockstep-coordinator" --listen "$2" --insecure-plaintext \
        --port-file "$work/ports" "${@:3}" 2>"$work/log" &
    coordinator=$!
    wait_for "$work/ports"
    read -r ports <"$work/ports"
    port=${ports#grpc=} port=${port%% *} http=${ports##*http=}
}

# build_steps: $work/trainer trains one parameter and checks every element. Its arguments: how many
# elements, the file that ends the job, the file for its last step, and "continue" if survivors of a
# death go on. If there is the file TURN of the environment, the next steps have another phase.
build_steps() {
    cat >"$work/trainer.c" <<'END'
#include <fcntl.h>
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(int status)
{
    if (status < 0) {
        fprintf(stderr, "%s\n", lockstep_error_text());
        exit(3);
    }
}

int main(int argc, char **argv)
{
    const int64_t count = atol(argv[1]);
    float *gradient = calloc(count, sizeof(float));
    struct lockstep_config options = LOCKSTEP_CONFIG_INIT;
    struct lockstep_parameter parameter = LOCKSTEP_PARAMETER_INIT;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_session *session;
    lockstep_module *module;
    lockstep_call *call;
    uint32_t rank, size, size_after;
    int64_t stop = 0, turn = 0;
    struct lockstep_step_options begin = LOCKSTEP_STEP_INIT;
    const int told = open(argv[3], O_CREAT | O_WRONLY, 0666);
    if (argc > 4)
        options.on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
    parameter.name = "w";
    parameter.dims = 1;
    parameter.shape = &count;
    parameter.data = calloc(count, sizeof(float));
    parameter.gradient = gradient;
    config.name = "model";
    config.parameters = &parameter;
    config.parameter_count = 1;
    check(lockstep_open(&options, &session));
    check(lockstep_module_register(session, &config, &module));
    check(lockstep_start(session));
    for (uint64_t step = 1; stop == 0; step++) {
        char text[32];
        begin.phase = turn > 0 ? "turned" : "";
        check(lockstep_step_begin(session, &begin, NULL));
        check(lockstep_world(session, &rank, &size));
        check(lockstep_call_begin(module, &call));
        for (int64_t i = 0; i < count; i++)
            gradient[i] = (float)(12 * ((rank + step + i) % 5));
        check(lockstep_grad_ready(module, call, 0, NULL, NULL));
        check(lockstep_call_end(call));
        if (rank == 0 && access(argv[2], F_OK) == 0)
            check(lockstep_counter_add(session, "stop", 1));
        if (rank == 0 && getenv("TURN") && access(getenv("TURN"), F_OK) == 0)
            check(lockstep_counter_add(session, "turn", 1));
        check(lockstep_step_end(session, NULL));
        check(lockstep_world(session, &rank, &size_after));
        // A step in which a rank is lost may have its gradients or not.
        for (int64_t i = 0; i < count && size_after == size; i++) {
            uint32_t sum = 0;
            for (uint32_t r = 0; r < size; r++)
                sum += 12 * ((r + step + i) % 5);
            if (gradient[i] != (float)sum / (float)size) {
                fprintf(stderr, "rank %u: element %ld of step %lu\n", rank, (long)i,
                        (unsigned long)step);
                exit(4);
            }
        }
        check(lockstep_counter_read(session, "stop", &stop));
        check(lockstep_counter_read(session, "turn", &turn));
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
}

# make_hosts COUNT
make_hosts() {
    local host
    ip link set lo up
    ip link add br0 type bridge
    ip link set br0 up
    for ((host = 0; host < $1; host++)); do
        unshare --net --uts sleep infinity &
        keepers+=($!)
        while [ "$(readlink /proc/$!/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
        on $host hostname "host$host"
        on $host ip link set lo up
        ip link add "port$host" type veth peer name eth0 netns "${keepers[host]}"
        ip link set "port$host" master br0 up
        on $host ip address add "10.77.0.$((host + 1))/24" dev eth0
        on $host ip link set eth0 up
    done
}

# step_of NAME: the step in $work/step.NAME.
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
            sleep 0.02
        done
        [ "$now" -ge $((from + 10)) ] || fail "$what: $name stands at step $now"
    done
}
