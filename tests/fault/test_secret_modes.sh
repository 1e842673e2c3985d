#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The coordinator warns at its start of keys and tokens that others of the machine can read or
# change, and not of those that only owner and group can read.
. "$(dirname "$0")/run_lib.sh"

bin=${LOCKSTEP_TEST_BIN:-build/bin}
"$lockstep" certs init --dir "$work/pki" --name 127.0.0.1 >/dev/null || fail "no certificates"
echo 0123456789abcdef >"$work/token"

# start KEY-MODE TOKEN-MODE: a coordinator whose log is $work/log; sets daemon and port.
start() {
    rm -f "$work/ports"
    chmod "$1" "$work/pki/coordinator/tls.key"
    chmod "$2" "$work/token"
    "$bin/lockstep-coordinator" --listen 127.0.0.1:0 --http 127.0.0.1:0 --tls-dir "$work/pki/coordinator" \
        --http-token-file "$work/token" --port-file "$work/ports" --parent-death=$$ 2>"$work/log" &
    daemon=$!
    wait_for "$work/ports"
    port=$(sed 's/grpc=\([0-9]*\).*/\1/' "$work/ports")
}

stop() {
    kill "$daemon"
    wait "$daemon"
}

start 440 400
comes "$work/log" "event=coordinator_ready"
stop
! grep secret_exposed "$work/log" || fail "a warning without a reason"

start 644 620
comes "$work/log" "event=secret_exposed file=$work/pki/coordinator/tls.key mode=0644"
comes "$work/log" "event=secret_exposed file=$work/token mode=0620"
stop
finish
