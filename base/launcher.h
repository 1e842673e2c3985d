// SPDX-License-Identifier: Apache-2.0
//
// The place of this process in its job, as its launcher describes it in environment variables. The
// worker library and `lockstep doctor` both use this file.
//
// Launchers nest: mpirun inside a Slurm allocation, torchrun inside srun. The variables of the
// outer launcher are still set, and they count the outer launcher's processes. So the table lists
// the innermost launcher first and the outermost last, and the first complete row is used. RANK and
// WORLD_SIZE without torchrun's run id were set by hand: then they must agree with every other
// complete row. Without a complete row, the first one that has a rank above 0 and lacks the size is
// used, so that its process does not train alone.
//
// Pure except for the lookup. Any thread.

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
    const char *launcher; // For instance "Slurm". NULL: no launcher was found.
    // For instance "SLURM_PROCID". NULL: the launcher does not say the rank.
    const char *rank_variable;
    // For instance "SLURM_NTASKS". NULL: the launcher does not say the size.
    const char *size_variable;
    bool lacks_size; // True if this launcher sets a size, and its variable is missing.
    uint32_t rank;
    uint32_t size; // Processes that the launcher started for this job; 0: unknown.
    char job[LAUNCHER_JOB_BYTES]; // The launcher's name for the run; "": no name.
};

// Returns 0, or -1 with a sentence in error: two launchers disagree, a value is no number, or the
// rank and the size are not possible.
int launcher_find(launcher_lookup *lookup, struct launcher_place *place, char *error,
                  size_t error_bytes);

// Writes a text such as "Slurm says that this is rank 1 of 4 (SLURM_PROCID=1, SLURM_NTASKS=4)".
void launcher_describe(const struct launcher_place *place, char *text, size_t bytes);

#endif
