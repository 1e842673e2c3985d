#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# make builds kernels for those GPUs that nvcc knows: nvcc before CUDA 12.8 knows no sm_100.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/nvcc" <<'EOF'
#!/bin/sh
[ "$1" != --list-gpu-arch ] || { printf 'compute_%s\n' 50 80 90; exit; }
for argument; do
    case $argument in *_100*) echo "nvcc fatal: Unsupported gpu architecture '$argument'"; exit 1 ;; esac
done
: >"$argument"
EOF
chmod +x "$work/nvcc"

# targets EXPECTED [VARIABLE=VALUE]
targets() {
    expected=$1
    shift
    rm -rf "$work/kernels"
    env -u MAKEFLAGS -u MAKELEVEL make -C "$root" PACKAGES_CHECKED=1 NVCC="$work/nvcc" \
        KERNELS="$work/kernels" "$@" "$work/kernels/device_kernels.fatbin" >"$work/log" 2>&1 || {
        cat "$work/log"
        exit 1
    }
    found=$(cat "$work/kernels/device_kernels.targets")
    [ "$found" = "$expected" ] || { echo "'$found' instead of '$expected'"; exit 1; }
}

targets 'sm_80 sm_90 compute_80'
targets 'sm_90 compute_90' NVCC_TARGETS=90
