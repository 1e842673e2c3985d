// SPDX-License-Identifier: Apache-2.0
//
// OpenMPI and MPICH, whichever mpicc compiles it. Their settings are the launcher's (peers.py).

#include "bench/peers/driver.h"

#include <mpi.h>
#include <string.h>

void peer_open(int argc, char **argv, struct peer_world *world)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &world->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world->size);
}

void *peer_allocate(size_t bytes)
{
    return peer_map(bytes);
}

// Errors end the program: that is the default of MPI_COMM_WORLD.
void peer_allreduce(float *payload, size_t count)
{
    MPI_Allreduce(MPI_IN_PLACE, payload, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

void peer_move(enum peer_move move, const float *input, float *output, size_t count)
{
    const int elements = (int)count;
    if (move == MOVE_REDUCE_SCATTER)
        MPI_Reduce_scatter_block(input, output, elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (move == MOVE_ALL_GATHER)
        MPI_Allgather(input, elements, MPI_FLOAT, output, elements, MPI_FLOAT, MPI_COMM_WORLD);
    else
        MPI_Alltoall(input, elements, MPI_FLOAT, output, elements, MPI_FLOAT, MPI_COMM_WORLD);
}

void peer_close(void)
{
    MPI_Finalize();
}

// The first line of what the library says of itself, without tabs.
const char *peer_version(void)
{
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int bytes = 0;
    MPI_Get_library_version(text, &bytes);
    text[strcspn(text, ",\n\"\\")] = '\0';
    for (char *c = text; *c; c++)
        *c = *c == '\t' ? ' ' : *c;
    return text;
}
