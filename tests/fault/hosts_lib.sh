# SPDX-License-Identifier: Apache-2.0
# Shared by the tests between hosts; sourced after run_lib.sh, inside of a network namespace of the
# test's own. Hosts are namespaces on a bridge, br0, that end with the script; host N is 10.77.0.N+1.

keepers=()
export LOCKSTEP_INSECURE_PLAINTEXT=1 # These hosts trust each other.

# on HOST COMMAND...: runs it there.
on() {
    local host=$1
    shift
    nsenter --target="${keepers[host]}" --net --uts -- "$@"
}

# make_hosts COUNT
make_hosts() {
    local host
    ip link set lo up
    ip link add br0 type bridge
    ip link set br0 up
    for ((host = 0; host < $1; host++)); do
        unshare --net --uts sleep infinity &
        keepers+=($!)
        while [ "$(readlink /proc/$!/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
        on $host hostname "host$host"
        on $host ip link set lo up
        ip link add "port$host" type veth peer name eth0 netns "${keepers[host]}"
        ip link set "port$host" master br0 up
        on $host ip address add "10.77.0.$((host + 1))/24" dev eth0
        on $host ip link set eth0 up
    done
}
