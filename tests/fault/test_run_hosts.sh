#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `lockstep run` on several hosts: one launcher on each, ranks in the order of the hosts, a coordinator
# that host 0 starts and that outlives host 0's workers; failures and kills; --join; certificates.
# Hosts are namespaces that end with this script.
. "$(dirname "$0")/own_network.sh"
. "$(dirname "$0")/run_lib.sh"
. "$(dirname "$0")/hosts_lib.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)
address=10.77.0.1:29400

cat >"$work/trainer.c" <<'END'
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(int status)
{
    if (status < 0) {
        printf("%s\n", lockstep_error_text());
        exit(3);
    }
}

// argv: the rank that leaves, and how: "exit", "kill", "late" (the others end first), "slow" (it closes its
// session, and ends when the process is gone whose number is in the file argv[3]).
int main(int argc, char **argv)
{
    lockstep_session *session;
    float sum = 1;
    check(lockstep_open(NULL, &session));
    check(lockstep_allreduce(session, "sum", &sum, 1, LOCKSTEP_FLOAT32, LOCKSTEP_SUM,
                             LOCKSTEP_WAIT_FOREVER));
    uint32_t rank;
    uint32_t world_size;
    check(lockstep_world(session, &rank, &world_size));
    if (argc > 2 && (uint32_t)atoi(argv[1]) == rank) {
        if (strcmp(argv[2], "exit") == 0)
            exit(7);
        if (strcmp(argv[2], "kill") == 0)
            kill(getpid(), 9);
        if (strcmp(argv[2], "slow") == 0) {
            int other = 0;
            check(lockstep_close(session));
            if (fscanf(fopen(argv[3], "r"), "%d", &other) != 1)
                exit(8);
            while (kill(other, 0) == 0)
                usleep(10000);
            exit(7);
        }
        usleep(1000000);
    } else if (argc > 2 && strcmp(argv[2], "late") != 0) {
        check(lockstep_barrier(session, "end", LOCKSTEP_WAIT_FOREVER));
    }
    printf("rank %u of %u, sum %g, job %s, mark %s\n", rank, world_size, sum,
           getenv("LOCKSTEP_JOB"), getenv("MARK"));
    check(lockstep_close(session));
    return 0;
}
END
sed -i 's/#include <stdio.h>/#include <signal.h>\n&/' "$work/trainer.c"
build_trainer gnu11
make_hosts 2

# hosts NAME OPTIONS... -- TRAINER...: the same on both; $work/NAME.0 and .1 are what they print.
hosts() {
    local name=$1 host pids=()
    shift
    for host in 1 0; do # Host 1 waits for the coordinator that host 0 starts.
        on $host "$lockstep" run -n 2 --nnodes 2 --node-rank $host --coordinator $address --timeout 20 \
            "$@" >"$work/$name.$host" 2>&1 &
        pids[host]=$!
        [ $host = 0 ] || sleep 0.3
    done
    status=()
    for host in 0 1; do
        wait "${pids[host]}"
        status[host]=$?
    done
}

# ---- A job that ends well ------------------------------------------------------------------------

hosts well --env MARK=set --json -- "$work/trainer"
equal "status of host 0" "${status[0]}" 0
equal "status of host 1" "${status[1]}" 0
for rank in 0 1 2 3; do
    has "$work/well.$((rank / 2))" "[$rank] rank $rank of 4, sum 4, job run, mark set"
done
has "$work/well.0" "lockstep run: job run, host 1 of 2, ranks 0 to 1 of 4, coordinator $address, dashboard http://"
has "$work/well.1" "lockstep run: job run, host 2 of 2, ranks 2 to 3 of 4, coordinator $address"
has "$work/well.1" '"world_size":4'
has "$work/well.1" '"rank":3'

# ---- A coordinator outlives its own host's workers ------------------------------------------------

hosts late -- "$work/trainer" 3 late
equal "status of host 0 before the last rank" "${status[0]}" 0
equal "status of host 1 with the last rank" "${status[1]}" 0
has "$work/late.1" "[3] rank 3 of 4"

# ---- Failures: the host of the rank names it, the others read why --------------------------------

hosts gone -- "$work/trainer" 3 kill
equal "status of the host of the killed rank" "${status[1]}" 137
equal "status of the other host" "${status[0]}" 3
has "$work/gone.1" "lockstep run: rank 3 was killed by signal 9 (SIGKILL)"
has "$work/gone.0" "rank 3 on host host1 was lost"
hosts first -- "$work/trainer" 0 exit
equal "status of host 0 whose rank ends" "${status[0]}" 7
equal "status of host 1 after that" "${status[1]}" 3
has "$work/first.1" "rank 0 on host host0 was lost"

# The rank that the coordinator names is the cause, although its process is the last to end.
printf '#!/bin/sh\nshift\nexec "$@"\n' >"$work/shell"
chmod +x "$work/shell"
for hosts in "-n 2" "--rsh $work/shell --hosts localhost:1,localhost:1"; do
    # shellcheck disable=SC2086
    "$lockstep" run $hosts --grace $((5 * slow))s -- sh -c \
        "echo \$\$ >$work/pid.\$LOCKSTEP_RANK_HINT; exec $work/trainer 1 slow $work/pid.0" >"$work/slow" 2>&1
    equal "status of a job whose cause ends last ($hosts)" $? 7
    grep -q "^lockstep run: rank 1.* ended with status 7 after .*; 1 other rank ended with status 3$" "$work/slow" ||
        { fail "the cause is another one ($hosts):"; cat "$work/slow"; }
done

# ---- A name and an address; a coordinator that runs already ----------------------------------------

on 0 "$lockstep" run -n 1 --nnodes 2 --node-rank 0 --coordinator localhost:29400 --bind $address -- \
    "$work/trainer" >"$work/name.0" 2>&1 &
on 1 "$lockstep" run -n 1 --nnodes 2 --node-rank 1 --coordinator $address -- "$work/trainer" \
    >"$work/name.1" 2>&1
equal "status of a host that takes another name" $? 0
wait $!
equal "status of the host that binds" $? 0
has "$work/name.0" "[0] rank 0 of 2"

on 0 "${lockstep%/*}/lockstep-coordinator" --listen $address --http off --log-level error &
coordinator=$!
hosts join --join --job shared -- "$work/trainer"
equal "status of host 0 that joins" "${status[0]}" 0
has "$work/join.1" "[2] rank 2 of 4, sum 4, job shared"
hosts taken -- true
equal "status of host 0 when the port is taken" "${status[0]}" 1
has "$work/taken.0" "$address"
kill $coordinator
wait $coordinator

# ---- Restarts ------------------------------------------------------------------------------------

cat >"$work/second" <<END
#!/bin/sh
[ ! -e "$work/tried.\$LOCKSTEP_RANK_HINT" ] || exec "$work/trainer"
: >"$work/tried.\$LOCKSTEP_RANK_HINT"
exec "$work/trainer" 1 exit
END
chmod +x "$work/second"
"$lockstep" run -np 2 --max-restarts 2 --json -- "$work/second" >"$work/again" 2>&1
equal "status of a job whose second try ends well" $? 0
has "$work/again" "lockstep run: restart 1 of 2"
has "$work/again" '"restarts":1'
equal "objects of a job that was restarted" "$(grep -c '"restarts"' "$work/again")" 1
"$lockstep" run -n 2 --max-restarts 1 -- "$work/trainer" 1 exit >"$work/never" 2>&1
equal "status of a job that fails each time" $? 7
equal "restarts of a job that fails each time" "$(grep -c 'lockstep run: restart' "$work/never")" 1

# ---- Plaintext is not spoken between hosts unless that is asked for --------------------------------

on 0 env -u LOCKSTEP_INSECURE_PLAINTEXT "$lockstep" run -n 1 --nnodes 2 --node-rank 0 \
    --coordinator $address -- true >"$work/plain" 2>&1
equal "status without certificates" $? 2
has "$work/plain" "LOCKSTEP_COORDINATOR_TLS_DIR"

# ---- Misuse --------------------------------------------------------------------------------------

# misuse TEXT ARGUMENTS...
misuse() {
    local text=$1
    shift
    "$lockstep" run "$@" >"$work/misuse" 2>&1
    equal "status of: run $*" $? 2
    has "$work/misuse" "$text"
}
misuse "--node-rank K is missing" -n 1 --nnodes 2 --coordinator $address -- true
misuse "--node-rank 2: the hosts are 0 to 1" -n 1 --nnodes 2 --node-rank 2 --coordinator $address -- true
misuse "--coordinator HOST:PORT, an address of host 0" -n 1 --nnodes 2 --node-rank 0 -- true
misuse "--nnodes M is missing" -n 1 --join -- true
misuse "same --job NAME" -n 1 --nnodes 2 --node-rank 0 --coordinator $address --join -- true
misuse "--http belongs" -n 1 --nnodes 2 --node-rank 1 --coordinator $address --join --job a --http off -- true
misuse "not one address of this host" -n 1 --nnodes 2 --node-rank 0 --coordinator a:1 --bind 0.0.0.0:1 -- true
misuse "a job has at most" -n 1024 --nnodes 2 --node-rank 0 --coordinator $address -- true
misuse "not NAME=VALUE" -n 1 -x =3 -- true
for list in "" a, :4 a:0 a:x a:2000 -oProxyCommand=x:1 'a b:1' 'a;b' ::1:4 '[::1:4' a@:1 @a:1 a@-b; do
    misuse "is not HOST or HOST:WORKERS" --hosts "$list" -- true
done
misuse "at most 1024 workers" --hosts a:1024,b:1 -- true
misuse "do not belong to it" --hosts a:1 --nnodes 2 -- true
misuse "--rsh and --lockstep belong to --hosts" -n 1 --rsh ssh -- true
misuse "--join: which coordinator" --hosts a:1 --join -- true
misuse "--bind belongs to --coordinator" --hosts a:1,b:1 --bind 10.0.0.1:29400 -- true

nothing_left "several hosts"
finish
