#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `lockstep run --hosts` with a remote shell that runs commands on this machine: labels, ends and
# signals over the pipes to each host, and what comes from a host that is none. tests/launch/test_ssh.sh
# has a real ssh.
. "$(dirname "$0")/run_lib.sh"
hello=${BUILD:-build}/examples/hello
unset SSH_CONNECTION SSH_CLIENT SSH_TTY
cat >"$work/shell" <<'SHELL'
#!/bin/sh
shift
exec "$@"
SHELL
chmod +x "$work/shell"

# start ARGUMENTS...: in the background; $launcher is its process.
start() {
    : >"$work/out"; : >"$work/err"
    "${hearing[@]}" "$lockstep" run --rsh "$work/shell" --hosts localhost:2,localhost:1 "$@" \
        >"$work/out" 2>"$work/err" &
    launcher=$!
}

# ended WANTED WHAT
ended() {
    local code=0
    wait $launcher || code=$?
    [ "$code" = "$1" ] || { fail "$2: status $code, wanted $1"; sed 's/^/    /' "$work/out" "$work/err"; }
    nothing_left "$2"
}

start --json -- "$hello"
ended 0 "a job that ends well"
for rank in 0 1 2; do
    has "$work/out" "[$rank] rank $rank of 3: w = "
done
has "$work/err" "3 workers on 2 hosts, coordinator localhost:"
has "$work/out" '"rank":2,"pid":'

# A launcher that cannot write its output drops it, and the hosts do not hear of that.
if [ -c /dev/full ]; then
    "$lockstep" run --rsh "$work/shell" --hosts localhost:1,localhost:1 -- \
        sh -c 'echo early; sleep 0.3; echo late; echo done >&2' >/dev/full 2>"$work/err"
    equal "status with a full disk" $? 0
    has "$work/err" "lockstep run: cannot write to standard output: No space left on device; the job goes on"
    for rank in 0 1; do has "$work/err" "[$rank] done"; done
fi

start --no-prefix --grace 0 -x MARK=x -- sh -c \
    'echo "$MARK$LOCKSTEP_RANK_HINT"; [ $LOCKSTEP_RANK_HINT = 2 ] && exit 7; exec sleep 60'
ended 7 "a rank that fails"
has "$work/err" "lockstep run: rank 2 on localhost ended with status 7 after "
has "$work/err" "2 other ranks were stopped"
equal "lines of a rank that fails" "$(grep -c '^x2$' "$work/out")" 1

# A rank of the second host ends before all ranks have joined. The others are told at once.
began=$(now_ms)
start --survive --timeout 100 -- sh -c '[ $LOCKSTEP_RANK_HINT = 2 ] && exit 5; exec "$0"' "$hello"
ended 5 "a rank that ends before it joins"
within 15000 "$began" "a job without one rank"
grep -q 'rank 2 on localhost ended with status 5 after .* s: see what it printed' "$work/out" "$work/err" ||
    { fail "the others were not told of rank 2:"; sed 's/^/    /' "$work/out" "$work/err"; }

# A rank fails while its session lives on in a process that it has started. So the coordinator sees no
# failure before the workers are killed, and does not take one of those for the cause.
cat >"$work/trainer.c" <<'END'
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <unistd.h>

int main(void)
{
    lockstep_session *session;
    if (lockstep_open(NULL, &session) < 0)
        return 3;
    puts("member");
    fflush(stdout);
    for (;;)
        pause();
}
END
root=$(cd "$(dirname "$0")/../.." && pwd)
build_trainer gnu11
start --grace 0 -- sh -c "'$work/trainer' & [ \$LOCKSTEP_RANK_HINT = 2 ] || wait; until [ -e '$work/go' ]; do sleep 0.05; done; exit 7"
for ((i = 0; i < 500 * slow; i++)); do
    [ "$(grep -c '\] member' "$work/out")" = 3 ] && break
    sleep 0.02
done
: >"$work/go"
ended 7 "a rank whose session lives on"
has "$work/err" "lockstep run: rank 2 on localhost ended with status 7 after "
equal "other ranks that are lost" "$(grep 'was lost' "$work/err" | grep -v 'rank 2 on host')" ""

start -- bash -c "trap 'echo saved; exit 9' TERM; : >$work/ready.\$LOCKSTEP_RANK_HINT; while :; do sleep 0.05; done"
for rank in 0 1 2; do
    wait_for "$work/ready.$rank"
done
kill -TERM $launcher
ended 9 "SIGTERM"
equal "workers that got SIGTERM" "$(grep -c '\] saved' "$work/out")" 3

# Slurm signals all processes of a step, ssh among them: the launcher alone decides.
printf '#!/usr/bin/env bash\nshift\n"$@"\nexit $?\n' >"$work/waits"
chmod +x "$work/waits"
"$lockstep" run --rsh "$work/waits" --hosts localhost:1,localhost:1 -- \
    sh -c ": >$work/alive.\$LOCKSTEP_RANK_HINT; sleep 1" >"$work/out" 2>"$work/err" &
launcher=$!
for rank in 0 1; do
    wait_for "$work/alive.$rank"
done
pkill -TERM -P "$(ps -o pid= --ppid $launcher | tr -d ' ')"
ended 0 "SIGTERM to the remote shells"

# The launcher is killed while its output is full, and the second SIGINT ends such a run, too.
for signal in KILL INT; do
    mkfifo "$work/full.$signal"
    exec 7<>"$work/full.$signal"
    "${hearing[@]}" "$lockstep" run --rsh "$work/shell" --hosts localhost:1,localhost:1 -- \
        sh -c "trap '' INT; exec yes" >&7 2>"$work/err" 7>&- &
    launcher=$!
    for rank in 0 1; do # Both hosts are known to run.
        grep -qm 1 "^\[$rank\] y" <&7
    done
    sleep 0.3
    kill -$signal $launcher
    if [ $signal = INT ]; then
        sleep 1.1
        kill -INT $launcher
    fi
    began=$(now_ms)
    ended 137 "a full output and SIG$signal"
    within 3000 "$began" "the end with a full output and SIG$signal"
    exec 7>&-
done

# A remote shell ends within a frame, or within a line before the greeting: the host is lost, and the
# launcher ends.
cat >"$work/cut" <<'SHELL'
#!/bin/bash
host=$1
shift
[ "$host" = 127.0.0.1 ] || exec "$@"
exec 3<&0
exec dd bs=1k count=30000 iflag=count_bytes status=none < <(exec "$@" <&3)
SHELL
chmod +x "$work/cut"
timeout -k 3 $((20 * slow)) "$lockstep" run --rsh "$work/cut" --hosts localhost:1,127.0.0.1:1 -- \
    sh -c '[ "$LOCKSTEP_RANK_HINT" = 1 ] || exec sleep 60; exec tr "\0" x </dev/zero' \
    >"$work/out" 2>"$work/err"
equal "status of a remote shell that ends within a frame" $? 255
has "$work/err" "lockstep run: host 127.0.0.1 was lost: the remote shell ended with status 0"
nothing_left "a remote shell that ends within a frame"

# ---- Hosts that are none ---------------------------------------------------------------------------

# refuses STATUS TEXT SHELL-COMMAND: stderr is this one sentence.
refuses() {
    printf '#!/bin/sh\n%s\n' "$3" >"$work/none"
    chmod +x "$work/none"
    "$lockstep" run --rsh "$work/none" --hosts a:1 -- true >"$work/out" 2>"$work/err" </dev/null
    equal "status of: $3" $? "$1"
    has "$work/err" "lockstep run: host a: $2"
    equal "lines of: $3" "$(wc -l <"$work/err")" 1
    nothing_left "$3"
}
refuses 255 "no route; '$work/none a true' has to work without a password" 'echo no route >&2; exit 255'
refuses 127 "sh: lockstep: not found; install lockstep there" 'echo "sh: lockstep: not found" >&2; exit 127'
refuses 2 "unknown command 'run-host'; install lockstep there" \
    "printf \"lockstep: unknown command 'run-host'\nTry 'lockstep --help'.\n\" >&2; exit 2"
refuses 137 "its lockstep is of another version" 'echo lockstep-run-host 1 x; exec sleep 60'
refuses 137 "its lockstep is of another version" \
    'printf "lockstep-run-host 3 x\nthese are no frames at all"; exec sleep 60'
refuses 1 "the remote shell ended with status 0; install lockstep there" 'echo welcome'
refuses 4 "the remote shell ended with status 4; install lockstep there" \
    'printf "welcome to this host: "; exit 4'
refuses 9 "a word" 'printf "lockstep-run-host 3 x\n"; echo "lockstep run: a word" >&2; exit 9'

# The request is what lockstep run-host wants; a launcher that is gone gets no word.
equal "a request that is none" "$("$lockstep" run-host <<<"00000010zzzzzzzzzzzzzzzz" 2>&1 | tail -1)" \
    "lockstep run: the request is not one of this version of lockstep"
"$lockstep" run-host </dev/null >"$work/out"
equal "status without a launcher" $? 1
finish
