#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A cluster of Slurm on this machine (munge, slurmctld, three slurmd), as root: srun, and
# `lockstep run` on each node of an allocation as deploy/slurm/lockstep.sbatch does it.
. "$(dirname "$0")/lib.sh"
needs munged slurmctld slurmd srun sbatch
root=$(cd "$(dirname "$0")/../.." && pwd)
[ "$(id -u)" = 0 ] || { echo "skipped: slurmd has to be started by root"; exit 77; }
coordinate

mkdir -m 700 "$work/munge" "$work/state" "$work/spool"
chmod 755 "$work"
head -c 1024 /dev/urandom >"$work/munge/key"
chmod 600 "$work/munge/key"
munged --foreground --force --key-file "$work/munge/key" --socket "$work/munge.socket" \
    --pid-file "$work/munge/pid" --log-file "$work/munge/log" --seed-file "$work/munge/seed" 2>"$work/munged" &
daemons+=($!)
nodes=3
base=$((20000 + RANDOM % 10000))
cat >"$work/slurm.conf" <<END
ClusterName=lockstep
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$base
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CredType=cred/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool/%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
for ((node = 0; node < nodes; node++)); do
    echo "NodeName=n$node NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$((base + 1 + node)) CPUs=2 State=UNKNOWN" \
        >>"$work/slurm.conf"
done
export SLURM_CONF=$work/slurm.conf
slurmctld -D -f "$SLURM_CONF" >"$work/ctld" 2>&1 &
daemons+=($!)
for ((node = 0; node < nodes; node++)); do
    slurmd -D -N "n$node" -f "$SLURM_CONF" >"$work/d$node" 2>&1 &
    daemons+=($!)
done
for ((i = 0; i < 1500; i++)); do
    [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = $nodes ] && break
    sleep 0.02
done
[ "$(sinfo -h -t idle -o %D)" = $nodes ] || { sinfo; tail -n 5 "$work"/slurm*.log; fail "no cluster"; finish; }

world srun 6 srun -N3 -n6 -s --export=ALL "$hello"

# Without a coordinator: the script of deploy/ starts `lockstep run` on each node. All nodes are this
# host here, so the first node's name does not resolve.
unset LOCKSTEP_COORDINATOR
export COORDINATOR_HOST=127.0.0.1 WORKERS=2 PATH=$(realpath "$bin"):$PATH
batch() {
    local code=0
    sbatch --wait --nodes=3 --cpus-per-task=2 --output "$work/job.out" "$root/deploy/slurm/lockstep.sbatch" "$hello" || code=$?
    cat "$work/job.out"
    return $code
}
export -f batch
export work root hello
world sbatch 6 bash -c batch
finish
