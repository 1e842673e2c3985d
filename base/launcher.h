// SPDX-License-Identifier: Apache-2.0
//
// The place of this process in its job, as the launcher that started it says in its environment
// variables. One table, which the worker library and `lockstep doctor` read.
//
// Launchers nest: mpirun inside a Slurm allocation, torchrun inside srun. The variables of the
// outer one are still there, and count its own processes. So the table goes from the innermost
// launcher to the outermost, and the first row that is complete is taken. RANK and WORLD_SIZE
// without torchrun's run id were set by hand: then they have to agree with every other complete
// row.
//
// Pure but for the lookup. Any thread.

#ifndef LOCKSTEP_BASE_LAUNCHER_H
#define LOCKSTEP_BASE_LAUNCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LAUNCHER_JOB_BYTES 128
#define LAUNCHER_TEXT_BYTES 256 // Room for every description.

// As getenv: the value of a variable, borrowed, or NULL.
typedef char *launcher_lookup(const char *name);

struct launcher_place {
    const char *launcher; // "Slurm"; NULL: no launcher says anything.
    const char *rank_variable; // "SLURM_PROCID"; NULL: the launcher does not tell the rank.
    const char *size_variable; // "SLURM_NTASKS"; NULL: this launcher does not tell the size.
    uint32_t rank;
    uint32_t size; // Processes that the launcher started for this job; 0: it does not tell.
    char job[LAUNCHER_JOB_BYTES]; // The launcher's own name of the run; "": it has none.
};

// 0, or -1 with a sentence in error: two launchers disagree, or what one says cannot be.
int launcher_find(launcher_lookup *lookup, struct launcher_place *place, char *error,
                  size_t error_bytes);

// "Slurm says that this is rank 1 of 4 (SLURM_PROCID=1, SLURM_NTASKS=4)".
void launcher_describe(const struct launcher_place *place, char *text, size_t bytes);

#endif
