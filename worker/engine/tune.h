// SPDX-License-Identifier: Apache-2.0
//
// The functions of tune.c that other files call.

#ifndef WORKER_ENGINE_TUNE_H
#define WORKER_ENGINE_TUNE_H

#include "protos/types.h"

#include <stdbool.h>
#include <stdint.h>

struct collective;
struct lockstep_session;

// Fills in what this rank tells the coordinator when its links stand.
void tune_links(const struct lockstep_session *session, struct up_links *links);
// True if this world can run what the coordinator says: the tuning, and an algorithm of a plan.
bool tune_possible(const struct lockstep_session *session, const struct tuning *tuning);
bool tune_runs(const struct lockstep_session *session, uint32_t algorithm);
// All ranks have; now lockstep_open returns.
void tune_agreed(struct lockstep_session *session, const struct tuning *tuning);
// The manifests are equal, and with them what was loaded.
void tune_started(struct lockstep_session *session);

#endif
