#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Workers started by mpirun of OpenMPI and of MPICH take their ranks from it.
. "$(dirname "$0")/lib.sh"
needs mpirun.openmpi mpirun.mpich
coordinate
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
world OpenMPI 4 mpirun.openmpi --oversubscribe -np 4 "$hello"
world MPICH 4 mpirun.mpich -np 4 "$hello"
finish
