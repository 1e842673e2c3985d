# SPDX-License-Identifier: Apache-2.0
# Sourced first by the tests between hosts: runs the test again, in namespaces that end with it.
# With NETWORK_BRIDGE=1 the kernel has to allow bridges there, too.
network_probe='ip link add name one type veth peer name other'
[ -z "${NETWORK_BRIDGE:-}" ] || network_probe="$network_probe && ip link add br0 type bridge &&
    ip link set one master br0 && ip link set one type bridge_slave isolated on"
if [ -z "${LOCKSTEP_TEST_INSIDE:-}" ]; then
    user=()
    [ "$(id -u)" = 0 ] || user=(--user --map-root-user)
    if ! unshare "${user[@]}" --net --uts --pid --fork --mount-proc sh -c "$network_probe"; then
        echo "this kernel lets nobody here make networks (unshare, veth${NETWORK_BRIDGE:+, bridge})"
        exit 77
    fi
    export LOCKSTEP_TEST_INSIDE=1
    exec unshare "${user[@]}" --net --pid --fork --kill-child --mount-proc bash "$0" "$@"
fi
