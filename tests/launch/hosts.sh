# SPDX-License-Identifier: Apache-2.0
# Shared by the tests of launchers between hosts; sourced after the packages are there. Two hosts,
# host0 and host1, are namespaces that end with the script. A coordinator runs on host0, with
# certificates of the job `digits` as docs/two-hosts.md makes them. $work/trainer is a C trainer.
. "$(dirname "$0")/../fault/own_network.sh"
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/../fault/hosts_lib.sh"
unset LOCKSTEP_INSECURE_PLAINTEXT
root=$(cd "$(dirname "$0")/../.." && pwd)
export OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore

# The trainer has two arguments, a mode and a file. Each rank prints the rank that the launcher gave it,
# the rank that it has, and the bits of its last sum.
#   well -      100 sums
#   fail -      rank 3 ends with status 7 after the first sum
#   first FILE  the same while FILE does not exist; rank 3 makes it
cat >"$work/trainer.c" <<'END'
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>

static void check(int status)
{
    if (status < 0) {
        fprintf(stderr, "%s\n", lockstep_error_text());
        exit(3);
    }
}

int main(int argc, char **argv)
{
    lockstep_session *session;
    uint32_t rank, world_size;
    float sum;
    const char *mode = argc == 3 ? argv[1] : "";
    const char *given = getenv(getenv("RANK") ? "RANK" : "LOCKSTEP_RANK_HINT");
    check(lockstep_open(NULL, &session));
    check(lockstep_world(session, &rank, &world_size));
    sum = 1.0f / (float)(rank + 3);
    for (int i = 0; i < 100; i++) {
        check(lockstep_allreduce(session, "sum", &sum, 1, LOCKSTEP_FLOAT32, LOCKSTEP_SUM,
                                 LOCKSTEP_WAIT_FOREVER));
        sum *= 0.3f;
        if (rank == 3 && strcmp(mode, "fail") == 0)
            exit(7);
        if (rank == 3 && strcmp(mode, "first") == 0 && open(argv[2], O_CREAT | O_EXCL, 0600) >= 0)
            exit(7);
    }
    check(lockstep_close(session));
    printf("given %s: rank %u of %u, sum %a\n", given, (unsigned)rank, (unsigned)world_size, (double)sum);
    return 0;
}
END
${CC:-cc} -std=gnu11 -O1 -I"$root/include" "$work/trainer.c" -o "$work/trainer" -L"$LOCKSTEP_TEST_LIB" \
    -llockstep -Wl,-rpath,"$LOCKSTEP_TEST_LIB" || { fail "no trainer"; finish; }
make_hosts 2
daemons+=("${keepers[@]}")
# torchrun and Ray look up the names of hosts.
printf '%s\n' '127.0.0.1 localhost' '10.77.0.1 host0' '10.77.0.2 host1' >"$work/hosts"
mount --bind "$work/hosts" /etc/hosts

"$bin/lockstep" certs init --dir "$work/pki" --name 10.77.0.1 --job digits >"$work/certs" || cat "$work/certs"
at 0 "$bin/lockstep-coordinator" --listen 10.77.0.1:50051 --tls-dir "$work/pki/coordinator" --http off \
    --log-level info --port-file "$work/port" 2>"$work/coordinator" &
daemons+=($!)
wait_for "$work/port"
export LOCKSTEP_COORDINATOR=10.77.0.1:50051 LOCKSTEP_TLS_DIR=$work/pki/worker LOCKSTEP_OPEN_TIMEOUT_MS=30000

# all_ranks NAME: $work/NAME has each of four ranks once, as the launcher gave it, with equal bits.
all_ranks() {
    local rank
    for rank in 0 1 2 3; do
        [ "$(grep -c "given $rank: rank $rank of 4, sum " "$work/$1")" = 1 ] ||
            fail "$1: rank $rank of 4 is not there once"
    done
    [ "$(sed -n 's/.*rank . of 4, sum //p' "$work/$1" | uniq | wc -l)" = 1 ] || fail "$1: the sums differ"
}

# generations EVENT: the generations of the job that have this event in the coordinator's log, as "1 4".
generations() {
    sed -n "s/.*event=$1 job=digits generation=\([0-9]*\).*/\1/p" "$work/coordinator" | xargs
}

# new_generation NAME: after a job that ended well (1) and one that did not (2), the job NAME was halted at
# least once, and ended well in a generation of its own.
new_generation() {
    local first last halted
    read -r first last <<<"$(generations job_finished)"
    halted=$(generations generation_halted)
    [[ $first = 1 && $halted = "2 3"* && $last -gt ${halted##* } ]] ||
        fail "$1: generations $first $last ended well, $halted were halted"
}

# done_with NAME: the output is shown only if a check has failed since the last time.
done_with() {
    echo "$1: status ${status[*]}"
    [ "$failures" = "$before" ] || sed 's/^/    /' "$work/$1"
    before=$failures
}
before=0
