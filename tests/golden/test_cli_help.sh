#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tool's own words, compared with the files of cli/. UPDATE=1 rewrites them.
set -uo pipefail
lockstep=${LOCKSTEP_TEST_BIN:-build/bin}/lockstep
golden=$(dirname "$0")/cli
failures=0

# check NAME STATUS ARGUMENTS...
check() {
    local name=$1 wanted=$2 code=0 got
    shift 2
    got=$("$lockstep" "$@" 2>&1) || code=$?
    [ -z "${UPDATE:-}" ] || { mkdir -p "$golden"; printf '%s\n' "$got" >"$golden/$name.txt"; }
    [ "$code" = "$wanted" ] || { echo "$*: status $code, wanted $wanted"; failures=1; }
    diff -u "$golden/$name.txt" - <<<"$got" || failures=1
}

check help 0 --help
check version 0 --version
check nothing 2
check unknown_command 2 frobnicate
check unknown_option 2 --frobnicate
check run_help 0 run --help
check run_nothing 2 run
check run_zero 2 run -n 0 true
check bench_help 0 bench --help
check bench_sizes 2 bench --sizes 4,many
check status_help 0 status --help
check status_refused 1 status --http 127.0.0.1:1
check status_address 2 status --http nowhere
check health_help 0 health --help
check health_refused 1 health --http 127.0.0.1:1
check health_extra 2 health mnist
check stalls_help 0 stalls --help
check stacks_help 0 stacks --help
check trace_help 0 trace --help
check trace_nothing 2 trace
check trace_format 2 trace --json --perfetto file
check certs_help 0 certs --help
check certs_nothing 2 certs
check certs_role 2 certs issue --dir pki --role trainer
check certs_names 2 certs issue --dir pki --role coordinator --out here
check certs_nowhere 1 certs issue --dir /nonexistent --role worker --out here
check doctor_help 0 doctor --help
check doctor_job 2 doctor --job mnist
exit "$failures"
