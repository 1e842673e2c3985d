#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What `lockstep run` says when a job starts wrong or is stopped by its user: ranks that end before
# they join, programs that are no trainers, signals, and workers that ignore them.
. "$(dirname "$0")/run_lib.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)

cat >"$work/trainer.c" <<'END'
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void check(int status)
{
    if (status < 0) {
        printf("%s\n", lockstep_error_text());
        exit(1);
    }
}

// argv: how many collectives, and a file to be made after the first one. Below zero: so many, and
// the session is not closed.
int main(int argc, char **argv)
{
    lockstep_session *session;
    float sum = 1;
    check(lockstep_open(NULL, &session));
    for (int i = 0; i < abs(atoi(argv[1])); i++) {
        check(lockstep_allreduce(session, "sum", &sum, 1, LOCKSTEP_FLOAT32, LOCKSTEP_MAX,
                                 LOCKSTEP_WAIT_FOREVER));
        if (i == 0 && argc > 2)
            fclose(fopen(argv[2], "w"));
        usleep(10000);
    }
    if (atoi(argv[1]) < 0)
        return 0;
    check(lockstep_close(session));
    return 0;
}
END
build_trainer gnu11

# run WANTED ARGUMENTS...: output goes to $work/out and $work/err.
run() {
    local wanted=$1 code=0
    shift
    "$lockstep" run "$@" >"$work/out" 2>"$work/err" </dev/null || code=$?
    [ "$code" = "$wanted" ] || { fail "run $*: status $code, wanted $wanted"; cat "$work/err"; }
}

# hasnt FILE TEXT
hasnt() {
    ! grep -qF -- "$2" "$1" || { fail "'$2' in:"; sed 's/^/    /' "$1"; }
}

# ---- Ranks that end before they join -------------------------------------------------------------

# The others would wait a minute for their world.
for end in 'exit 3:3:ended with status 3' 'exit 0:1:ended with status 0' \
    'ulimit -c 0; kill -SEGV $$:139:was killed by signal 11 (SIGSEGV)'; do
    IFS=: read -r how code says <<<"$end"
    start=$(now_ms)
    run "$code" -n 3 --grace $((60 * slow))s -- sh -c \
        "if [ \$LOCKSTEP_RANK_HINT = 2 ]; then $how; fi; exec $work/trainer 1"
    within 5000 "$start" "the end when rank 2 $says"
    grep -qE "^lockstep run: rank 2 ${says//[()]/.} after [0-9.]+ s, before it joined the job; 2 other ranks ended with status 1$" \
        "$work/err" || { fail "the cause is not named:"; cat "$work/err"; }
    has "$work/out" "[0] rank 2 $says"
    has "$work/out" "before it joined the job: see what it printed"
done

# A rank that has joined and dies while the world still waits for another one.
start=$(now_ms)
run 137 -n 3 --survive --timeout $((60 * slow))s -- sh -c "case \$LOCKSTEP_RANK_HINT in
    1) $work/trainer 1 & until case \$('$lockstep' status) in *2/3*) ;; *) false ;; esac; do sleep 0.1; done; kill -9 0 ;;
    2) until grep -q 'rank 1 was' $work/err; do sleep 0.02; done ;;
    esac; exec $work/trainer 1"
within 5000 "$start" "the end when rank 1 dies in lockstep_open"
has "$work/err" ", before all ranks had joined the job; a world of 3 cannot form without it, and 2 ranks still run"
has "$work/out" "before all ranks had joined the job: see what it printed"

# A rank that the coordinator refuses has not joined, and the others do not wait for it.
start=$(now_ms)
run 1 -n 2 --grace $((60 * slow))s -- sh -c \
    "[ \$LOCKSTEP_RANK_HINT = 0 ] || export LOCKSTEP_WORLD_SIZE=3; exec $work/trainer 1"
within 5000 "$start" "the end with a rank that is refused"
has "$work/err" "before it joined the job"

# A rank that has joined is not said to be missing, and neither is one whose child joins.
run 9 -n 2 -- sh -c "$work/trainer 3; exit 9"
hasnt "$work/err" "before it joined"
run 0 -n 2 -- sh -c "sh -c 'sleep 0.2; exec $work/trainer 1' & exit 0"
hasnt "$work/err" "session"

# ---- Ranks that end well too early ---------------------------------------------------------------

# The rank is the cause, closes its session or not, and also with --survive. One that still runs
# when the others were failed is the cause, too.
early=', and the job ended because of it; 2 other ranks ended with status 1'
for how in "--survive=2:exec $work/trainer 2:ended with status 0" \
    "--no-prefix:exec $work/trainer -2:ended with status 0" \
    "--no-prefix:$work/trainer 2; exec sleep 300:was stopped"; do
    IFS=: read -r option how says <<<"$how"
    run 1 -n 3 --grace 5s --json "$option" -- sh -c \
        "if [ \$LOCKSTEP_RANK_HINT = 1 ]; then $how; fi; exec $work/trainer 300"
    grep -qE "^lockstep run: rank 1 $says after [0-9.]+ s$early" "$work/err" ||
        { fail "the cause is not named after '$how' $option:"; cat "$work/err"; }
    hasnt "$work/err" "goes on"
    has "$work/out" '"cause_rank":1'
    hasnt "$work/out" '"failed_rank":1'
done

# ---- Programs that are no trainers ---------------------------------------------------------------

run 0 -n 4 -- true
has "$work/err" "lockstep run: ranks 0 to 3 ended without a session (lockstep_open was never called): is 'true' a Lockstep trainer?"
run 0 -n 2 -- "$work/trainer" 1
hasnt "$work/err" "session"
# A launcher that joins another coordinator does not know.
run 0 -n 2 --coordinator 127.0.0.1:9 -- true
hasnt "$work/err" "session"

printf '#!/no/such/interpreter\n' >"$work/bad"
chmod +x "$work/bad"
run 127 -n 2 --max-restarts 1 -- sh -c 'exit 127' # The trainer's own status.
has "$work/err" "lockstep run: restart 1 of 1"
run 127 -n 2 --json --max-restarts 3 -- "$work/bad"
hasnt "$work/err" "lockstep run: restart"
has "$work/err" " could not be started: No such file or directory: the interpreter that '$work/bad' names"
has "$work/out" '"exit_code":127'

# A file that is no program is never given to a shell, also if a shell could read it.
for bytes in '\x7fELF\x02\x01\x01\n' ''; do
    printf "$bytes"'touch %s\nexit 0\n' "$work/shell-ran" >"$work/bad"
    chmod +x "$work/bad"
    run 126 -n 2 --json --max-restarts 3 -- "$work/bad"
    has "$work/err" " could not be started: Exec format error: '$work/bad' is not a program of this machine, or it is a script without a first line such as #!/bin/sh"
    has "$work/out" '"exit_code":126'
    [ ! -e "$work/shell-ran" ] || fail "a shell has run $work/bad"
done

run 0 -n 1 -x LOCKSTEP_TRACE_DIR="$work/none" -- "$work/trainer" 1
has "$work/err" "lockstep run: LOCKSTEP_TRACE_DIR=$work/none: No such file or directory; workers of this host keep no traces there"

# ---- A single host with --nnodes -----------------------------------------------------------------

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
run 0 -n 2 --nnodes 1 --node-rank 0 --job one --timeout 5 --coordinator "127.0.0.1:$(free_port)" -- "$work/trainer" 1
has "$work/err" "job one, 2 workers, coordinator 127.0.0.1:"
run 0 -n 2 --nnodes 1 --timeout 5 -- "$work/trainer" 1

# The recipe for Slurm, with a scontrol and an srun of one node.
mkdir "$work/slurm"
printf '#!/bin/sh\necho localhost\n' >"$work/slurm/scontrol"
printf '#!/bin/sh\n[ "$2" = --cpus-per-task=2 ] || exit 9\nshift 2\nexec env SLURM_NODEID=0 "$@"\n' >"$work/slurm/srun"
chmod +x "$work"/slurm/*
PATH=$work/slurm:$(realpath "${lockstep%/*}"):$PATH WORKERS=2 LOCKSTEP_OPEN_TIMEOUT_MS=5000 \
    SLURM_JOB_NODELIST=localhost SLURM_JOB_ID=$(($(free_port) % 10000)) SLURM_NNODES=1 SLURM_CPUS_PER_TASK=2 \
    bash "$root/deploy/slurm/lockstep.sbatch" "$work/trainer" 1 >"$work/out" 2>"$work/err"
equal "status of the recipe for Slurm with one node" $? 0
SLURM_JOB_ID=1 taskset -c "$(taskset -cp $$ | sed 's/.*: \([0-9]*\).*/\1/')" "$lockstep" run -n 2 -- true 2>"$work/err"
has "$work/err" "lockstep run: Slurm lets the 2 workers of this host use only 1 CPU: give sbatch and srun --cpus-per-task=2"

# ---- Signals of the user -------------------------------------------------------------------------

# begin ARGUMENTS...: in the background, until rank 0 has reduced once; sets launcher.
begin() {
    rm -f "$work/ready"
    "${hearing[@]}" "$lockstep" run "$@" >"$work/out" 2>"$work/err" </dev/null &
    launcher=$!
    wait_for "$work/ready"
}
# ends WANTED WHAT
ends() {
    local code=0
    wait "$launcher" || code=$?
    equal "status after $2" "$code" "$1"
    nothing_left "$2"
}
train="exec $work/trainer 100000 $work/ready"

for signal in INT:130 TERM:143 HUP:129; do
    begin -n 3 --max-restarts 2 --json -- sh -c "$train"
    kill -"${signal%:*}" "$launcher"
    ends "${signal#*:}" "SIG${signal%:*}"
    equal "lines that name the signal" "$(grep -c "SIG${signal%:*}" "$work/err")" 1
    has "$work/err" "lockstep run: the job was stopped by SIG${signal%:*} after "
    has "$work/out" '"restarts":0'
    hasnt "$work/err" "start the job again"
    hasnt "$work/err" "level="
done
begin -n 2 --max-restarts 2 --json -- sh -c "ulimit -c 0; $train"
kill -QUIT "$launcher"
ends 131 "SIGQUIT"
has "$work/out" '"exit_code":131'

# Also a signal that comes before the workers run is reported, with an object: while ssh connects, and
# between attempts.
printf '#!/bin/sh\ntouch %s\nexec sleep 60\n' "$work/ready" >"$work/slowssh"
chmod +x "$work/slowssh"
begin --hosts a:1,b:1 --rsh "$work/slowssh" --json -- true
kill -TERM "$launcher"
ends 143 "SIGTERM while ssh connects"
has "$work/err" "lockstep run: the job was stopped by SIGTERM after "
has "$work/out" '"exit_code":143'
for delay in 0.02 0.05 0.08 0.11 0.14 0.17 0.2 0.23; do
    rm -f "$work/ready"
    "${hearing[@]}" "$lockstep" run -n 2 --json --max-restarts 900 --http off -- \
        sh -c "touch $work/ready; exit 3" >"$work/out" 2>"$work/err" </dev/null &
    launcher=$!
    wait_for "$work/ready"
    sleep "$delay"
    kill -TERM "$launcher"
    wait "$launcher"
    equal "objects of a job that is stopped between attempts" "$(grep -c '"exit_code"' "$work/out")" 1
    grep -q 'the job was stopped by SIGTERM' <(tail -n 1 "$work/err") ||
        fail "the last line is: $(tail -n 1 "$work/err")"
done
# And so is a job whose coordinator does not start, or whose rank cannot be started.
run 1 -n 2 --json --http 192.0.2.1:1 -x LOCKSTEP_INSECURE_PLAINTEXT=1 -- true
has "$work/out" '"exit_code":1'
start=$(now_ms)
(ulimit -n 60 && exec "$lockstep" run -n 40 --json -- true) >"$work/out" 2>"$work/err"
equal "status of a rank that cannot be started" $? 1
within 3000 "$start" "the end without a descriptor"
has "$work/err" "lockstep run: cannot start rank "
has "$work/out" '"exit_code":1'

# A stopped worker, and a stopped child of one, take the signal, too.
for signal in INT:130 TERM:143; do
    begin -n 2 -- sh -c "[ \$LOCKSTEP_RANK_HINT = 0 ] || exec sh -c 'kill -STOP \$\$; :'
        sh -c 'kill -STOP \$\$; exit 0' & sleep 0.2; touch $work/ready; wait"
    start=$(now_ms)
    kill -"${signal%:*}" "$launcher"
    ends "${signal#*:}" "SIG${signal%:*} to stopped workers"
    within 1500 "$start" "the end of stopped workers"
    hasnt "$work/err" "handle"
    has "$work/err" "2 ranks were killed by signal"
done

# One that goes on learns from the coordinator that the user has stopped the job.
begin -n 2 -- sh -c "[ \$LOCKSTEP_RANK_HINT = 0 ] || trap '' INT; $train"
kill -INT "$launcher"
ends 130 "SIGINT that one rank ignores"
has "$work/out" "[1] rank 0 on host $(hostname) has ended: the job was stopped by SIGINT"

# Workers that ignore SIGINT get SIGTERM, and those that ignore that, too, SIGKILL.
begin -n 2 -- sh -c "trap '' INT; [ \$LOCKSTEP_RANK_HINT = 0 ] || trap '' TERM
    touch $work/deaf.\$LOCKSTEP_RANK_HINT; until [ -e $work/deaf.0 ] && [ -e $work/deaf.1 ]; do sleep 0.05; done
    exec sh -c 'touch $work/ready; sleep 300; :'"
start=$(now_ms)
kill -INT "$launcher"
ends 143 "signals that are ignored"
within 12000 "$start" "the end of workers that ignore signals"
has "$work/err" "ranks 0 and 1 ignore SIGINT: SIGTERM is sent now; if that is ignored as well, SIGKILL follows in 5 s"
has "$work/err" "rank 1 ignores SIGTERM: killed by SIGKILL"
begin -n 2 -- sh -c "trap 'sleep $((3 * slow)); exit 5' INT; touch $work/ready.\$LOCKSTEP_RANK_HINT
    until [ -e $work/ready.0 ] && [ -e $work/ready.1 ]; do sleep 0.05; done
    touch $work/ready; while :; do sleep 0.05; done"
kill -INT "$launcher"
comes "$work/err" "handle it: waiting for the end, with no limit; another SIGINT kills at once"
start=$(now_ms)
kill -INT "$launcher"
ends 137 "the second SIGINT"
within 2000 "$start" "the end after the second SIGINT"

# A worker that blocks the signal has all its time, and so has one that handles it. A worker that a
# debugger holds gets SIGKILL.
cat >"$work/stuck.c" <<'END'
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void go_on(int signal_number)
{
    (void)signal_number;
}

static const char *file_of(const char *path, int rank)
{
    static char name[4096];
    snprintf(name, sizeof(name), "%s.set.%d", path, rank);
    return name;
}

int main(int argc, char **argv)
{
    sigset_t set;
    const int rank = atoi(getenv("LOCKSTEP_RANK_HINT"));
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    if (rank == 0)
        sigprocmask(SIG_BLOCK, &set, NULL);
    if (rank == 1) {
        signal(SIGINT, go_on);
        signal(SIGTERM, SIG_IGN);
    }
    if (rank != 2)
        fclose(fopen(file_of(argv[argc - 1], rank), "w"));
    if (rank == 2) {
        const pid_t worker = getpid();
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
        if (fork() == 0) {
            signal(SIGINT, SIG_IGN);
            ptrace(PTRACE_ATTACH, worker, NULL, NULL);
            for (int other = 0; other < 2; other++)
                while (access(file_of(argv[argc - 1], other), F_OK) < 0)
                    usleep(1000);
            if (waitpid(worker, NULL, __WALL) == worker)
                fclose(fopen(argv[argc - 1], "w"));
        }
    }
    for (;;)
        pause();
}
END
"${CC:-cc}" -w -O1 "$work/stuck.c" -o "$work/stuck" || fail "no stuck worker"
begin -n 3 --json -- "$work/stuck" "$work/ready"
kill -INT "$launcher"
comes "$work/err" "rank 2 still runs after SIGINT and does not handle it: SIGKILL follows in 5 s"
comes "$work/err" "rank 0 still runs after SIGINT and blocks it: waiting for the end, with no limit; another SIGINT kills at once"
comes "$work/err" "rank 1 still runs after SIGINT and handles it: waiting for the end"
comes "$work/err" "rank 2 still runs: killed by SIGKILL"
hasnt "$work/err" "rank 1 ignores"
sleep 0.3
kill -INT "$launcher"
ends 137 "the second SIGINT, to workers that are stuck"

# A background job of a script ignores SIGINT, and after nohup SIGHUP is ignored: neither counts.
rm "$work/ready"
env --ignore-signal=INT,HUP "$lockstep" run -n 2 -- sh -c "$train" >"$work/out" 2>"$work/err" &
launcher=$!
wait_for "$work/ready"
kill -INT "$launcher"
kill -HUP "$launcher"
kill -TERM "$launcher"
ends 143 "SIGTERM after signals that are ignored"
has "$work/err" "stopped by SIGTERM"
has "$work/err" "2 ranks were killed by signal 15 (SIGTERM)"

nothing_left "starts"
finish
