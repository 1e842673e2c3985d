#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a worker says that cannot reach its coordinator: nobody listens, no host answers, no such
# name, TLS on one side only, certificates that are missing. And a machine without IPv4.
. "$(dirname "$0")/own_network.sh"
. "$(dirname "$0")/run_lib.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)
port=29555

cat >"$work/trainer.c" <<'END'
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>

static void log_line(void *context, lockstep_log_level level, const char *line)
{
    (void)context;
    (void)level;
    printf("log %s\n", line);
}

int main(int argc, char **argv)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    lockstep_session *session;
    (void)argv;
    if (argc > 1)
        config.log = log_line;
    setvbuf(stdout, NULL, _IOLBF, 0);
    const int status = lockstep_open(&config, &session);
    if (status < 0) {
        printf("%s: %s\n", lockstep_status_name(status), lockstep_error_text());
        return 1;
    }
    printf("opened\n");
    return lockstep_close(session) < 0;
}
END
build_trainer gnu11

ip link set lo up
ip link add v0 type veth peer name v1
ip addr add 10.9.0.1/24 dev v0
ip link set v0 up
ip link set v1 up
ip neigh add 10.9.0.78 lladdr 00:11:22:33:44:55 dev v0

# opens WANTED VARIABLES... [-- ARGUMENTS]: output goes to $work/out and $work/err; sets began.
opens() {
    local wanted=$1 code=0 variables=()
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do variables+=("$1"); shift; done
    [ $# = 0 ] || shift
    began=$(now_ms)
    env LOCKSTEP_WORLD_SIZE=1 "${variables[@]}" "$work/trainer" "$@" >"$work/out" 2>"$work/err" </dev/null || code=$?
    [ "$code" = "$wanted" ] || { fail "${variables[*]}: status $code, wanted $wanted"; cat "$work/out" "$work/err"; }
}

# told TEXT VARIABLES...: the line on stderr comes long before lockstep_open gives up.
told() {
    local text=$1 process
    shift
    : >"$work/err"
    env LOCKSTEP_WORLD_SIZE=1 LOCKSTEP_OPEN_TIMEOUT_MS=600000 "$@" "$work/trainer" >"$work/out" 2>"$work/err" </dev/null &
    process=$!
    began=$(now_ms)
    comes "$work/err" "$text"
    within 2000 "$began" "the line '$text'"
    kill "$process"
    wait "$process" 2>/dev/null
}

# ---- Nobody answers ------------------------------------------------------------------------------

told "lockstep: cannot reach coordinator 127.0.0.1:1 yet: connection refused (nothing listens there: is the coordinator started, and is LOCKSTEP_COORDINATOR right?); trying for 600.0 s (LOCKSTEP_OPEN_TIMEOUT_MS)" \
    LOCKSTEP_COORDINATOR=127.0.0.1:1
told "lockstep: cannot reach coordinator 10.9.0.78:99 yet: no answer (is LOCKSTEP_COORDINATOR right, and does a firewall let its port through?); trying for 600.0 s" \
    LOCKSTEP_COORDINATOR=10.9.0.78:99 LOCKSTEP_INSECURE_PLAINTEXT=1
told "lockstep: cannot reach coordinator unix:$work/none yet: no such file or directory" \
    LOCKSTEP_COORDINATOR=unix:"$work/none"
opens 1 LOCKSTEP_COORDINATOR=10.9.0.78:99 LOCKSTEP_INSECURE_PLAINTEXT=1 LOCKSTEP_OPEN_TIMEOUT_MS=1500
has "$work/out" "LOCKSTEP_E_UNREACHABLE: cannot reach coordinator 10.9.0.78:99: no answer within 1.5 s"
# With a sink, stderr is the trainer's alone. Without one, it has the log if LOCKSTEP_LOG is set, and
# the failure of the session is a line of level error.
opens 1 LOCKSTEP_COORDINATOR=127.0.0.1:1 LOCKSTEP_OPEN_TIMEOUT_MS=1500 -- sink
grep -q '^log .*level=warn event=coordinator_unreached text="cannot reach coordinator 127.0.0.1:1 yet' "$work/out" ||
    { fail "no line in the log:"; cat "$work/out"; }
equal "stderr with a sink" "$(cat "$work/err")" ""
opens 1 LOCKSTEP_COORDINATOR=127.0.0.1:1 LOCKSTEP_OPEN_TIMEOUT_MS=1500 LOCKSTEP_LOG=error
equal "events with LOCKSTEP_LOG=error" "$(grep -o 'event=[^ ]*\|^lockstep:' "$work/err")" event=session_failed
opens 1 LOCKSTEP_COORDINATOR=127.0.0.1:1 LOCKSTEP_OPEN_TIMEOUT_MS=1500 LOCKSTEP_LOG=warn
equal "lines on stderr with LOCKSTEP_LOG=warn" "$(wc -l <"$work/err")" 2
grep -q '^ts=[^ ]* level=warn event=coordinator_unreached text="cannot reach ' "$work/err" ||
    { fail "no line of the log:"; cat "$work/err"; }
opens 1 LOCKSTEP_COORDINATOR=127.0.0.1:1 LOCKSTEP_OPEN_TIMEOUT_MS=1500 LOCKSTEP_LOG=warn -- sink
equal "stderr with LOCKSTEP_LOG=warn and a sink" "$(cat "$work/err")" ""

# ---- No such host --------------------------------------------------------------------------------

opens 1 LOCKSTEP_COORDINATOR=nobody.invalid:99 LOCKSTEP_INSECURE_PLAINTEXT=1
within 2000 "$began" "an unknown name"
has "$work/out" "LOCKSTEP_E_UNREACHABLE: coordinator nobody.invalid:99: the host name 'nobody.invalid' cannot be resolved: "
code=0
"$lockstep" run -n 2 --coordinator nobody.invalid:99 -- "$work/trainer" >"$work/out" 2>&1 || code=$?
equal "status of run with an unknown name" "$code" 1
has "$work/out" "lockstep run: --coordinator nobody.invalid:99: the host name 'nobody.invalid' cannot be resolved: "
equal "lines of run with an unknown name" "$(wc -l <"$work/out")" 1

# ---- Certificates --------------------------------------------------------------------------------

"$lockstep" certs init --dir "$work/pki" --name 127.0.0.1 --job j >/dev/null || fail "no certificates"
here=(LOCKSTEP_COORDINATOR=127.0.0.1:$port LOCKSTEP_JOB=j LOCKSTEP_OPEN_TIMEOUT_MS=600000)
# coordinator ARGUMENTS...: until it listens.
coordinator() {
    rm -f "$work/port"
    "${lockstep%/*}/lockstep-coordinator" --listen 127.0.0.1:$port --http off --log-level error \
        --port-file "$work/port" "$@" 2>"$work/daemon" &
    daemon=$!
    wait_for "$work/port"
}
for file in tls.crt tls.key ca.crt; do
    cp -r "$work/pki/worker" "$work/lacks"
    rm "$work/lacks/$file"
    opens 1 "${here[@]}" LOCKSTEP_TLS_DIR="$work/lacks"
    within 2000 "$began" "a missing $file"
    has "$work/out" "LOCKSTEP_E_CONFIG: certificates of this worker (LOCKSTEP_TLS_DIR, config.tls_dir): $work/lacks/$file: cannot be read: No such file"
    rm -r "$work/lacks"
done
coordinator --tls-dir "$work/pki/coordinator"
opens 1 "${here[@]}"
within 4000 "$began" "a worker without certificates"
has "$work/out" "cannot reach coordinator 127.0.0.1:$port: it speaks TLS, and this worker does not: set LOCKSTEP_TLS_DIR"
opens 0 "${here[@]}" LOCKSTEP_TLS_DIR="$work/pki/worker"
kill $daemon
wait $daemon
coordinator
opens 1 "${here[@]}" LOCKSTEP_TLS_DIR="$work/pki/worker"
within 4000 "$began" "a coordinator without certificates"
has "$work/out" "it does not speak TLS: is it started with --tls-dir? This worker has LOCKSTEP_TLS_DIR=$work/pki/worker"
kill $daemon
wait $daemon

# ---- A machine without IPv4 ----------------------------------------------------------------------

ip addr del 127.0.0.1/8 dev lo
ip link del v0
for transport in auto tcp; do
    "$lockstep" run -n 2 --timeout 20 -x LOCKSTEP_TRANSPORT=$transport -- "$work/trainer" >"$work/out" 2>"$work/err" ||
        { fail "a job without IPv4 ($transport):"; cat "$work/out" "$work/err"; }
    has "$work/err" "dashboard http://[::1]:"
    has "$work/out" "[1] opened"
done
"$lockstep" run -n 1 -- sh -c "'$lockstep' status" >"$work/out" 2>&1
has "$work/out" "no jobs"
"${lockstep%/*}/lockstep-coordinator" --listen localhost:$port --http off --log-level error --port-file "$work/six" &
daemon=$!
wait_for "$work/six"
opens 0 LOCKSTEP_COORDINATOR=localhost:$port
kill $daemon
wait $daemon

nothing_left "unreachable coordinators"
finish
