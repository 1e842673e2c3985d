#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `lockstep run --hosts` over a real sshd on each host: outputs, ends, signals, hosts that cannot be
# used, and no process left behind. Hosts are namespaces that end with this script; the launcher is
# on host 0 (a), or on host 2, which has no workers. Root only, because sshd is.
[ "$(id -u)" = 0 ] || { echo "skipped: sshd has to be started by root"; exit 77; }
for program in sshd ssh ssh-keygen; do
    PATH=$PATH:/usr/sbin command -v $program >/dev/null && continue
    echo "skipped: there is no $program (tools/install-deps tools/deps-launch.txt)"
    exit 77
done
faults=$(dirname "$0")/../fault
. "$faults/own_network.sh"
. "$faults/run_lib.sh"
. "$faults/hosts_lib.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)
hello=${BUILD:-$root/build}/examples/hello
lockstep=$(realpath "$lockstep")

# ---- An sshd on each host -------------------------------------------------------------------------

mount -t tmpfs none /run && mkdir /run/sshd
make_hosts 3
for name in host_key key stranger; do
    ssh-keygen -q -t ed25519 -N '' -f "$work/$name"
done
# Host b has a shell whose own files print something.
for host in 0 1; do
    noise=()
    [ $host = 0 ] || noise=(-o "ForceCommand=sh -c 'echo welcome; printf unfinished; eval \"\$SSH_ORIGINAL_COMMAND\"'")
    on $host "${hearing[@]}" /usr/sbin/sshd -D -e -f /dev/null -p 2222 -o HostKey="$work/host_key" -o PidFile=none \
        -o AuthorizedKeysFile="$work/key.pub" -o StrictModes=no -o PasswordAuthentication=no \
        -o KbdInteractiveAuthentication=no -o UsePAM=no "${noise[@]}" 2>"$work/sshd.$host" &
    comes "$work/sshd.$host" "Server listening"
done
cat >"$work/ssh_config" <<END2
Host a
    HostName 10.77.0.1
Host b
    HostName 10.77.0.2
Host refused
    HostName 10.77.0.2
    Port 1
Host stranger
    HostName 10.77.0.2
    IdentityFile $work/stranger
Host * !stranger
    IdentityFile $work/key
Host *
    Port 2222
    IdentitiesOnly yes
    UserKnownHostsFile $work/known
    StrictHostKeyChecking accept-new
END2

from=0
# start ARGUMENTS...: in the background; $launcher is its process, $work/out and $work/err its words.
start() {
    : >"$work/out"; : >"$work/err"
    nsenter --target="${keepers[from]}" --net --uts -- "${hearing[@]}" "$lockstep" run \
        --rsh "ssh -F $work/ssh_config" "$@" >"$work/out" 2>"$work/err" &
    launcher=$!
}

# ended WANTED WHAT
ended() {
    local code=0
    wait $launcher || code=$?
    [ "$code" = "$1" ] || { fail "$2: status $code, wanted $1"; sed 's/^/    /' "$work/out" "$work/err"; }
}

# run WANTED ARGUMENTS...
run() {
    local wanted=$1
    shift
    start "$@"
    ended "$wanted" "run $*"
}

# gone WHAT: within two seconds no process of a run is there: no worker, coordinator or ssh.
gone() {
    local i left
    for ((i = 0; i < 40 * slow; i++)); do
        left=$(ps -eo pid=,args= | grep -E 'lockstep run|lockstep-coordinator|sleep 5432|ssh -F|sshd: root' | grep -v grep)
        [ -n "$left" ] || return 0
        sleep 0.05
    done
    fail "$1 left behind: $left"
}

# sentence TEXT: stderr is this one line, and nothing is left.
sentence() {
    has "$work/err" "$1"
    equal "lines of: $1" "$(grep -c . "$work/err")" 1
    gone "$1"
}

rank='[ "$LOCKSTEP_RANK_HINT" = 3 ]'
sleeper="echo ready; sleep 54321"
# ready COUNT: so many workers have said so.
ready() {
    local i
    for ((i = 0; i < 1000 * slow; i++)); do
        [ "$(grep -c '] ready' "$work/out")" = "$1" ] && return 0
        sleep 0.02
    done
    fail "only $(grep -c '] ready' "$work/out") of $1 workers were ready"
}

# ---- A job that ends well -------------------------------------------------------------------------

for from in 0 2; do
    run 0 --hosts a:2,b:2 --json -- "$hello"
    for ((i = 0; i < 4; i++)); do
        has "$work/out" "[$i] rank $i of 4: w = "
    done
    has "$work/err" "4 workers on 2 hosts, coordinator 10.77.0.1:"
    has "$work/out" '"rank":3,"pid":'
    has "$work/out" '"host":"b","exit_code":0'
    gone "a job that ends well"
done
from=0
run 0 --hosts a:1,root@b:3 --no-prefix -- "$hello"
has "$work/out" "rank 3 of 4: w = "

# The same directory, variables, and both outputs apart, with the bytes of arguments as they are.
mkdir "$work/a b"
cd "$work/a b"
export PASSED="it's" LOCKSTEP_OPEN_TIMEOUT_MS=31000
run 0 --hosts a,b -n 2 -x MARK='two  words' -x PASSED -- sh -c \
    'echo "$PWD $MARK $PASSED $LOCKSTEP_OPEN_TIMEOUT_MS $(hostname) $1"; echo "to err" >&2' sh 'a "$HOME" \'
cd "$root"
unset LOCKSTEP_OPEN_TIMEOUT_MS
for ((i = 0; i < 4; i++)); do
    has "$work/out" "[$i] $work/a b two  words it's 31000 host$((i / 2)) a \"\$HOME\" \\"
    has "$work/err" "[$i] to err"
done
equal "what came from the shell of host b" "$(cat "$work/out" "$work/err" | grep -c 'welcome\|unfinished')" 0

# One host that is not this one, with a coordinator that only its workers reach.
run 0 --hosts b:2 -- sh -c 'echo $LOCKSTEP_COORDINATOR'
has "$work/out" "[1] unix:/"

# Much output, and a reader that goes away.
run 0 --hosts a:1,b:1 --log-dir "$work/logs" -- sh -c 'yes "a line of some length" | head -c 20000000'
equal "bytes of both" "$(tr -d '[]01 ' <"$work/out" | wc -c)" $((2 * $(yes "a line of some length" | head -c 20000000 | tr -d ' ' | wc -c) + 2))
equal "bytes of a file" "$(wc -c <"$work/logs/rank-1.log")" 20000000
has "$work/logs/coordinator.log" "insecure_plaintext"
on 0 timeout 20 "$lockstep" run --rsh "ssh -F $work/ssh_config" --hosts a:1,b:1 -- yes 2>"$work/err" | head -1 >"$work/out"
equal "status with a reader that is gone" "${PIPESTATUS[0]}" 141
gone "a reader that is gone"

# The coordinator stays until the last rank of another host has ended.
run 0 --hosts a:1,b:1 --log-dir "$work/logs" -- sh -c '[ $LOCKSTEP_RANK_HINT = 0 ] || sleep 1'
[ ! -s "$work/logs/rank-0.log" ] || fail "rank 0 said something"

# Certificates.
"$lockstep" certs init --dir "$work/pki" --name 10.77.0.1 >/dev/null
export LOCKSTEP_COORDINATOR_TLS_DIR=$work/pki/coordinator LOCKSTEP_TLS_DIR=$work/pki/worker
unset LOCKSTEP_INSECURE_PLAINTEXT
run 0 --hosts a:1,b:1 -- "$hello"
has "$work/out" "[1] rank 1 of 2: w = "
unset LOCKSTEP_COORDINATOR_TLS_DIR LOCKSTEP_TLS_DIR
run 2 --hosts a:1,b:1 -- "$hello"
sentence "lockstep run: host a: workers of other hosts reach the coordinator over the network: set LOCKSTEP_COORDINATOR_TLS_DIR"
export LOCKSTEP_INSECURE_PLAINTEXT=1

# ---- Failures -------------------------------------------------------------------------------------

run 7 --hosts a:2,b:2 -- sh -c "if $rank; then exit 7; fi; sleep 54321"
has "$work/err" "lockstep run: rank 3 on b ended with status 7 after "
has "$work/err" "3 other ranks were stopped"
gone "a rank that fails"

# The others fail, too, because a rank is gone; it is the cause wherever it was.
for who in 0 3; do
    start --hosts a:2,b:2 --json -- sh -c "if [ \$LOCKSTEP_RANK_HINT = $who ]; then echo \$\$ >$work/pid; echo ready; exec sleep 54321; fi
        while ! [ -e $work/killed ]; do sleep 0.01; done; exit 3"
    ready 1
    kill -9 "$(cat "$work/pid")"
    : >"$work/killed"
    ended 137 "a rank that is killed"
    has "$work/err" "lockstep run: rank $who on "
    has "$work/err" "was killed by signal 9 (SIGKILL)"
    has "$work/out" '"failed_signal":9'
    rm "$work/killed"
    gone "a rank that is killed"
done

cat >"$work/second" <<END2
#!/bin/sh
[ ! -e "$work/tried.\$LOCKSTEP_RANK_HINT" ] || exec "$hello"
: >"$work/tried.\$LOCKSTEP_RANK_HINT"
[ \$LOCKSTEP_RANK_HINT = 1 ] || exec sleep 54321
while ! [ -e "$work/tried.0" ]; do sleep 0.01; done
exit 5
END2
chmod +x "$work/second"
run 0 --hosts a:1,b:1 --max-restarts 2 --json -- "$work/second"
has "$work/err" "lockstep run: restart 1 of 2"
has "$work/out" '"restarts":1'

# ---- Signals --------------------------------------------------------------------------------------

for signal in INT TERM; do
    start --hosts a:2,b:2 -- bash -c "trap 'echo saved; exit 9' $signal; echo ready; while :; do sleep 0.1; done"
    ready 4
    kill -$signal $launcher
    ended 9 "SIG$signal"
    equal "workers that got SIG$signal" "$(grep -c '] saved' "$work/out")" 4
    gone "SIG$signal"
done

start --hosts a:2,b:2 -- bash -c "trap 'echo deaf' INT; echo ready; while :; do sleep 0.1; done"
ready 4
kill -INT $launcher
comes "$work/out" "[3] deaf"
began=$(now_ms)
kill -INT $launcher
ended 137 "the second SIGINT"
within 2000 "$began" "the end after the second SIGINT"
gone "the second SIGINT"

# Whatever is killed, nothing is left: the launcher, its supervisor, both, or the part on a host.
start --hosts a:2,b:2 -- sh -c "$sleeper"
ready 4
kill -9 $launcher
ended 137 "a launcher that is killed"
gone "a launcher that is killed"

start --hosts a:2,b:2 -- sh -c "$sleeper"
ready 4
kill -9 $(pgrep -P $launcher) $launcher
ended 137 "launcher and supervisor that are killed"
gone "launcher and supervisor that are killed"

start --hosts a:2,b:2 -- sh -c "$sleeper"
ready 4
kill -9 $(pgrep -f 'lockstep run-host' | sort -n | tail -1)
ended 255 "the part of a host that is killed"
has "$work/err" "lockstep run: host b was lost: the supervising process was killed by signal 9; so were all workers"
gone "the part of a host that is killed"

# ---- Connections that are lost --------------------------------------------------------------------

start --hosts a:2,b:2 --json -- sh -c "$sleeper"
ready 4
kill -9 $(pgrep -f 'ssh -F .* b ')
ended 255 "an ssh that is killed"
has "$work/err" "lockstep run: host b was lost: the remote shell was killed by signal 9"
has "$work/err" "rank 2 on b was lost with its host after "
has "$work/err" "2 other ranks were stopped, 1 was lost with its host"
has "$work/out" '"failed_rank":2'
gone "an ssh that is killed"

if [ "${LOCKSTEP_TEST_LONG_CUT:-}" = 1 ]; then
    start --hosts a:2,b:2 -- sh -c "$sleeper"
    ready 4
    ip link set port1 down
    ended 255 "a cut link"
    has "$work/err" "lockstep run: host b was lost: Timeout, server 10.77.0.2 not responding."
    for ((i = 0; i < 400; i++)); do
        pgrep -f 'lockstep run-host|sleep 54321' >/dev/null || break
        sleep 0.1
    done
    equal "processes beyond a cut link" "$(pgrep -af 'lockstep run-host|sleep 54321')" ""
    ip link set port1 up
fi

# ---- Hosts that cannot be used --------------------------------------------------------------------

run 255 --hosts a:1,refused:1 -- touch "$work/ran"
sentence "lockstep run: host refused: ssh: connect to host 10.77.0.2 port 1: Connection refused; 'ssh -F $work/ssh_config refused true' has to work without a password"
run 255 --hosts a:1,stranger:1 -- touch "$work/ran"
sentence "lockstep run: host stranger: root@10.77.0.2: Permission denied (publickey)."
run 127 --hosts a:1,b:1 --lockstep "$work/no such/lockstep" -- touch "$work/ran"
sentence "no such/lockstep: "
has "$work/err" "; install lockstep there in the same place as here, or name its path with --lockstep"
run 1 --hosts a:1,b:1 --lockstep /bin/true -- touch "$work/ran"
sentence "install lockstep there"
run 127 --hosts a:1,b:1 -- no-such-trainer
sentence ": the trainer 'no-such-trainer' was not found in PATH"
# A directory that host b does not have: its sshd is in a namespace of files of its own.
mkdir "$work/only"
cd "$work/only"
cat >"$work/elsewhere" <<END2
#!/bin/sh
exec unshare --mount sh -c 'mount -t tmpfs none "$work" && exec "\$@"' sh $lockstep "\$@"
END2
chmod +x "$work/elsewhere"
run 1 --hosts a:1,b:1 --lockstep "$work/elsewhere" -- touch "$work/ran"
sentence ": cannot enter the working directory $work/only: No such file or directory; make it there"
cd "$root"
run 127 --hosts a:1 --rsh no-such-shell -- touch "$work/ran"
sentence "lockstep run: host a: there is no program 'no-such-shell' here; install an SSH client"
[ ! -e "$work/ran" ] || fail "a worker was started although a host could not be used"

finish
