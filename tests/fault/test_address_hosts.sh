#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The addresses that workers announce, between hosts that have two networks and both families: what
# is found out, an interface, a network, IPv6, and ranges of ports, also one that is used up. And
# encryption, which all have to want. Hosts are namespaces that end with this script.
NETWORK_BRIDGE=1
. "$(dirname "$0")/own_network.sh"
. "$(dirname "$0")/run_lib.sh"
. "$(dirname "$0")/hosts_lib.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)
hosts=2

cat >"$work/trainer.c" <<'END'
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void check(int status)
{
    if (status < 0) {
        fprintf(stderr, "%s\n", lockstep_error_text());
        exit(3);
    }
}

// argv: a file that is made when the world stands, and one that is waited for then.
int main(int argc, char **argv)
{
    lockstep_session *session;
    float sum = 1;
    check(lockstep_open(NULL, &session));
    check(lockstep_allreduce(session, "sum", &sum, 1, LOCKSTEP_FLOAT32, LOCKSTEP_SUM,
                             LOCKSTEP_WAIT_FOREVER));
    if (argc > 2) {
        fclose(fopen(argv[1], "w"));
        while (access(argv[2], F_OK) != 0)
            usleep(10000);
    }
    check(lockstep_close(session));
    return sum == 2 ? 0 : 4;
}
END
build_trainer gnu11
make_hosts $hosts
for ((host = 0; host < hosts; host++)); do
    if ! on $host ip address add "fd00:77::$((host + 1))/64" dev eth0 nodad; then
        echo "this kernel has no IPv6"
        exit 77
    fi
    on $host ip link add second type veth peer name third
    on $host ip address add "172.16.5.$((host + 1))/24" dev second
    on $host ip link set second up
done

# ---- jobs ----------------------------------------------------------------------------------------

# worker HOST COORDINATOR SETTING...
worker() {
    local host=$1 where=$2
    shift 2
    env LOCKSTEP_COORDINATOR="$where" LOCKSTEP_JOB=hosts LOCKSTEP_WORLD_SIZE=2 \
        LOCKSTEP_RANK_HINT="$host" "$@" \
        nsenter --target="${keepers[host]}" --net --uts -- \
        "$work/trainer" "$work/stands.$host" "$work/go" 2>"$work/err.$host" &
    ranks[host]=$!
}

# meets NAME LISTEN COORDINATOR ADDRESS SETTING...: two ranks form a world, and host 1 has a
# connection to ADDRESS (as the kernel's tables write it) that is not the coordinator's.
meets() {
    local name=$1 listen=$2 where=$3 address=$4 host
    shift 4
    rm -f "$work"/stands.* "$work/go"
    coordinate 0 "$listen" --http off
    for host in 0 1; do worker $host "$where:$port" "$@"; done
    wait_for "$work/stands.0"
    wait_for "$work/stands.1"
    on 1 cat /proc/net/tcp /proc/net/tcp6 >"$work/sockets"
    on 1 cat /proc/net/tcp /proc/net/tcp6 | awk -v coordinator="$(printf ':%04X' "$port")" \
        '$4 == "01" && substr($3, length($3) - 4) != coordinator { print $3 }' >"$work/links"
    grep -q "^$address" "$work/links" || { fail "$name: no link to $address"; cat "$work/sockets"; }
    touch "$work/go"
    for host in 0 1; do
        local code=0
        wait "${ranks[host]}" || code=$?
        equal "$name: status of rank $host" "$code" 0
        [ "$code" = 0 ] || cat "$work/err.$host"
    done
    kill -KILL "$coordinator"
    wait "$coordinator" 2>/dev/null
}

# refuses NAME TEXT SETTING...: the worker of host 0 says this, and ends.
refuses() {
    local name=$1 text=$2 code=0
    shift 2
    worker 0 "10.77.0.1:$port" "$@"
    wait "${ranks[0]}" || code=$?
    equal "$name: status" "$code" 3
    has "$work/err.0" "$text"
}

ranks=()
four=01004D0A                         # 10.77.0.1
six=770000FD000000000000000001000000  # fd00:77::1
meets "found out, IPv4" 10.77.0.1:0 10.77.0.1 $four
meets "found out, IPv6" '[fd00:77::1]:0' '[fd00:77::1]' $six
meets "a network, IPv6" 10.77.0.1:0 10.77.0.1 $six LOCKSTEP_ADVERTISE=fd00:77::/64
meets "a network, IPv4" '[fd00:77::1]:0' '[fd00:77::1]' $four LOCKSTEP_ADVERTISE=10.0.0.0/8
meets "an interface, and ports" 10.77.0.1:0 10.77.0.1 $four:4E2A LOCKSTEP_ADVERTISE=eth0 \
    LOCKSTEP_DATA_PORTS=20010-20019
meets "encrypted" 10.77.0.1:0 10.77.0.1 $six LOCKSTEP_ADVERTISE=fd00::/8 LOCKSTEP_DATA_ENCRYPTION=tls

coordinate 0 10.77.0.1:0 --http off
began=$(now_ms)
worker 0 "10.77.0.1:$port" LOCKSTEP_DATA_ENCRYPTION=tls
worker 1 "10.77.0.1:$port" LOCKSTEP_DATA_ENCRYPTION=off
for host in 0 1; do
    code=0
    wait "${ranks[host]}" || code=$?
    equal "encrypted by one: status of rank $host" "$code" 3
    has "$work/err.$host" "has LOCKSTEP_DATA_ENCRYPTION=tls"
    has "$work/err.$host" "has LOCKSTEP_DATA_ENCRYPTION=off: set it to the same on every rank"
done
within 5000 "$began" "finding out that one of two encrypts"
# An address that both hosts have: each rank reaches only its own host there, and both are alive.
# Neither trains alone when the other one gives up. Rank 0 waits for a connection, and its time ends
# first, but the reason is known on rank 1, which cannot connect.
rm -f "$work"/stands.*
for host in 0 1; do
    on $host ip address add 172.17.0.1/16 dev second
    worker $host "10.77.0.1:$port" LOCKSTEP_ADVERTISE=172.17.0.1 \
        LOCKSTEP_OPEN_TIMEOUT_MS=$((1800 + 200 * host)) LOCKSTEP_DATA_PORTS=2001$host \
        LOCKSTEP_ON_FAILURE=continue
done
for host in 0 1; do
    code=0
    wait "${ranks[host]}" || code=$?
    equal "unreachable address: status of rank $host" "$code" 3
    has "$work/err.$host" "rank 0 (host host0) has ended (cannot connect to tcp:172.17.0.1:20010: Connection refused; see LOCKSTEP_ADVERTISE there)"
    on $host ip address del 172.17.0.1/16 dev second
done
refuses "no such interface" "eth0 10.77.0.1, second 172.16.5.1, lo ::1, eth0 fd00:77::1" LOCKSTEP_ADVERTISE=eth9
refuses "no such network" "this host has no address in that network" LOCKSTEP_ADVERTISE=192.168.0.0/16
refuses "another host's" "listen on fd00:77::2 (LOCKSTEP_ADVERTISE): this host has no such address: it has lo 127.0.0.1, eth0 10.77.0.1" \
    'LOCKSTEP_ADVERTISE=[fd00:77::2]'
rm -f "$work/go"
worker 0 "10.77.0.1:$port" LOCKSTEP_DATA_PORTS=20000 LOCKSTEP_JOB=other
for ((i = 0; i < 1000 * slow; i++)); do # It waits for its world, and listens.
    on 0 grep -q ':4E20 00000000:0000 0A' /proc/net/tcp && break
    sleep 0.01
done
first=${ranks[0]}
refuses "no port" "every port from 20000 to 20000 (LOCKSTEP_DATA_PORTS) is in use: 20000 by process " \
    LOCKSTEP_DATA_PORTS=20000
has "$work/err.0" "(trainer)"
kill -KILL "$first" "$coordinator"
wait "$first" "$coordinator" 2>/dev/null
finish
