# SPDX-License-Identifier: Apache-2.0
# Sourced first by the tests between hosts: runs the test again, in namespaces that end with it.
# NETWORK_PROBE is what the kernel has to allow there (sh), NETWORK_NEEDS its words for it.
if [ -z "${LOCKSTEP_TEST_INSIDE:-}" ]; then
    user=()
    [ "$(id -u)" = 0 ] || user=(--user --map-root-user)
    if ! unshare "${user[@]}" --net --uts --pid --fork --mount-proc sh -c \
        "${NETWORK_PROBE:-ip link add name one type veth peer name other}"; then
        echo "this kernel lets nobody here make networks (${NETWORK_NEEDS:-unshare, veth})"
        exit 77
    fi
    export LOCKSTEP_TEST_INSIDE=1
    exec unshare "${user[@]}" --net --pid --fork --kill-child --mount-proc bash "$0" "$@"
fi
