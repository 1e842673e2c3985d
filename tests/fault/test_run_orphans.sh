#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# However `lockstep run` ends, no process of it remains: signals to it, SIGKILL to the launcher or
# to its supervisor, workers with children, children that left their group, zombies.
. "$(dirname "$0")/run_lib.sh"

# A worker with a child, a child of that one, and one in a session of its own whose parent is gone.
cat >"$work/trainer" <<END
#!/bin/sh
sh -c 'sleep 300 & wait' &
(setsid sleep 300 &)
touch $work/ready.\$LOCKSTEP_RANK_HINT
wait
END
chmod +x "$work/trainer"

# start ARGUMENTS...: in the background, until all three workers run; sets launcher.
start() {
    rm -f "$work"/ready.*
    "${hearing[@]}" "$lockstep" run -n 3 "$@" >"$work/out" 2>"$work/err" </dev/null &
    launcher=$!
    for rank in 0 1 2; do wait_for "$work/ready.$rank"; done
}

# ends WANTED WHAT
ends() {
    local code=0
    wait "$launcher" 2>/dev/null || code=$?
    equal "status after $2" "$code" "$1"
    nothing_left "$2"
}

for signal in INT TERM HUP; do
    start "$work/trainer"
    began=$(now_ms)
    kill -"$signal" "$launcher"
    case $signal in INT) code=130 ;; TERM) code=143 ;; HUP) code=129 ;; esac
    ends "$code" "SIG$signal"
    within 2000 "$began" "SIG$signal"
done

start "$work/trainer"
kill -KILL "$launcher"
ends 137 "SIGKILL of the launcher"

start "$work/trainer"
supervisor=$(ps -o pid= --ppid "$launcher" | tr -d ' ')
kill -KILL "$supervisor"
ends 137 "SIGKILL of the supervisor"
has "$work/err" "the supervising process was killed by signal 9"

# A worker that does not end by the first SIGINT is killed by the second.
cat >"$work/deaf" <<END
#!/bin/sh
trap 'touch $work/heard.\$LOCKSTEP_RANK_HINT' INT
trap '' TERM
touch $work/ready.\$LOCKSTEP_RANK_HINT
while :; do sleep 0.1; done
END
chmod +x "$work/deaf"
start "$work/deaf"
kill -INT "$launcher"
sleep 0.1
kill -INT "$launcher" # A copy, as Slurm and timeout(1) send them.
for rank in 0 1 2; do wait_for "$work/heard.$rank"; done
sleep 1.1
kill -0 "$launcher" || fail "one SIGINT, twice, ended workers that do not end by it"
kill -INT "$launcher"
ends 137 "the second SIGINT"

# After a forwarded SIGTERM a worker may take longer than the grace.
cat >"$work/saver" <<END
#!/bin/sh
if [ \$LOCKSTEP_RANK_HINT = 1 ]; then trap 'exit 5' TERM; else trap 'sleep 1; touch $work/saved; exit 0' TERM; fi
touch $work/ready.\$LOCKSTEP_RANK_HINT
while :; do sleep 0.05; done
END
chmod +x "$work/saver"
start --grace 100ms "$work/saver"
kill -TERM "$launcher"
ends 5 "SIGTERM with a checkpoint"
[ -e "$work/saved" ] || fail "the checkpoint was cut off"

# SIGUSR1 arrives and ends nothing.
cat >"$work/usr" <<END
#!/bin/sh
trap 'touch $work/usr1.\$LOCKSTEP_RANK_HINT; exit 0' USR1
touch $work/ready.\$LOCKSTEP_RANK_HINT
while :; do sleep 0.05; done
END
chmod +x "$work/usr"
start "$work/usr"
kill -USR1 "$launcher"
ends 0 "SIGUSR1"
for rank in 0 1 2; do [ -e "$work/usr1.$rank" ] || fail "rank $rank got no SIGUSR1"; done

# No zombie while it runs: reparented children that end are reaped.
cat >"$work/forker" <<END
#!/bin/sh
i=0
while [ \$i -lt 20 ]; do (true &) ; i=\$((i + 1)); done
sleep 0.2
touch $work/ready.\$LOCKSTEP_RANK_HINT
sleep 300
END
chmod +x "$work/forker"
start "$work/forker"
supervisor=$(ps -o pid= --ppid "$launcher" | tr -d ' ')
for ((i = 0; i < 100 * slow; i++)); do
    zombies=$(ps -o stat= --ppid "$supervisor" | grep -c Z)
    [ "$zombies" != 0 ] || break
    sleep 0.05
done
equal "zombies" "$zombies" 0
kill -TERM "$launcher"
ends 143 "forking workers"

# A process of another user cannot be killed, and does not hold up the end. A copy of sleep that runs
# as root stands for sudo.
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
    cat >"$work/raise.c" <<'END'
#include <unistd.h>
int main(void)
{
    return setuid(0) < 0 || (sleep(30), 0);
}
END
    pub=$(mktemp -d /tmp/lockstep-XXXXXX) # $work may be closed to others.
    trap 'rm -rf "$work" "$pub"' EXIT
    mkdir -m 1777 "$pub/tmp"
    "${CC:-cc}" -O1 "$work/raise.c" -o "$pub/raise" && chmod 4755 "$pub/raise"
    cp -r "$(realpath "${lockstep%/*}")" "$pub/bin"
    cp -r "$(realpath "${lockstep%/*}/../lib")" "$pub/lib"
    chmod -R a+rX "$pub"
    began=$(now_ms)
    (cd / && TMPDIR=$pub/tmp exec setpriv --reuid=65534 --regid=65534 --clear-groups \
        "$pub/bin/lockstep" run -n 2 --http off -- sh -c "$pub/raise & sleep 0.3; echo done" \
        >"$work/out" 2>"$work/err") || fail "status $? of a run with a process of another user"
    within 9000 "$began" "the end with a process of another user"
    for rank in 0 1; do has "$work/out" "[$rank] done"; done
    grep -qE "process [0-9]+, which a worker has left, could not be killed: Operation not permitted" "$work/err" ||
        { fail "no reason:"; cat "$work/err"; }
    for pid in $(marked | awk '{print $1}'); do kill -KILL "$pid" 2>/dev/null; done
    nothing_left "a process of another user"
fi

# The coordinator does not outlive a launcher killed while it starts.
for delay in 0.001 0.004 0.008 0.015 0.03; do
    "$lockstep" run -n 2 -- sleep 300 >/dev/null 2>&1 </dev/null &
    launcher=$!
    sleep "$delay"
    kill -KILL "$launcher"
    wait "$launcher" 2>/dev/null
    nothing_left "SIGKILL after $delay s"
done
finish
