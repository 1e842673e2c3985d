// SPDX-License-Identifier: Apache-2.0
//
// The world that a process asks for, and its place in that world. The worker library opens sessions
// with it, and `lockstep doctor` says what a trainer would get.
//
// LOCKSTEP_WORLD_SIZE (or _MIN and _MAX) and LOCKSTEP_RANK_HINT have priority, then the same fields
// of struct lockstep_config. If these give both the size and the rank, nothing else is read.
// Otherwise the launcher's variables (base/launcher.h) complete them:
//
// - If the user gives no size, the launcher's size is the world's size.
// - If the user's size equals the launcher's size, the launcher's rank is the rank hint, and the
//   launcher's run id names the job.
// - If the user's size is larger, the launcher has started only a part of the world, so its ranks
//   are ignored.
// - If the user's size is smaller, one of the two sizes is wrong. That is an error, with one
//   exception: a size of 1 without a coordinator says that this process trains alone.
//
// A missing setting never makes a process train alone: a launcher that started several processes
// needs a coordinator, a coordinator needs a size, a largest world above 1 needs both a smallest
// one and a coordinator, and a launcher's rank above 0 needs the launcher's size.
//
// The functions read the environment, and have no other effect. Any thread.

#ifndef LOCKSTEP_PROTOS_WORLD_PLACE_H
#define LOCKSTEP_PROTOS_WORLD_PLACE_H

#include "base/launcher.h"
#include "protos/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What the trainer's code gives, as in struct lockstep_config.
struct world_wish {
    const char *coordinator; // NULL: none.
    const char *job; // NULL: none.
    uint32_t size; // 0: none; so are the next three.
    uint32_t min;
    uint32_t max;
    uint32_t window_ms;
    int64_t rank_hint; // Below 0: none.
};
#define WORLD_WISH_NONE \
    { \
        .rank_hint = -1 \
    }

// Where the job is, and its name.
struct world_job {
    bool solo; // True if no coordinator is named.
    char coordinator[LOCKSTEP_COORDINATOR_BYTES]; // Addresses, separated by commas.
    bool by_launcher; // True if the name is the launcher's name of the run.
    char name[LOCKSTEP_JOB_NAME_BYTES];
};

struct world_place {
    uint32_t min; // The smallest world that may form, in ranks.
    uint32_t max; // The largest world that may form, in ranks.
    // Milliseconds that a world of at least `min` and fewer than `max` ranks waits for more ranks.
    uint32_t window_ms;
    const char *placed_by; // A launcher's name (base/launcher.h), or WORLD_PLACED_BY_US.
    bool has_rank_hint;
    uint32_t rank_hint; // The wanted rank, below max.
};
// The value of placed_by if LOCKSTEP_* variables or the trainer's own code give the place.
#define WORLD_PLACED_BY_US "lockstep"

#define WORLD_DEFAULT_JOB "default"

// Results below 0. A sentence in error then says what is wrong.
enum world_fault {
    WORLD_WRONG = -1, // A setting is wrong.
    WORLD_LACKS = -2, // A setting is missing. The trainer's code can give it.
};

// Reads the coordinator's addresses and the job's name. Returns 0, or WORLD_WRONG.
int world_place_job(const struct world_wish *wish, struct world_job *job, char *error,
                    size_t error_bytes);

// Determines the world's size and the wanted rank. The launcher's run id may replace the job's
// name. launcher: what the launcher's variables say; no launcher if they do not count. Returns 0,
// or an enum world_fault.
int world_place_find(const struct world_wish *wish, struct world_job *job,
                     struct world_place *place, struct launcher_place *launcher, char *error,
                     size_t error_bytes);

#endif
