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

// Fills in what this rank tells the coordinator when its links are connected.
void tune_links(const struct lockstep_session *session, struct up_links *links);
// True if this world can run the tuning that the coordinator sent.
bool tune_possible(const struct lockstep_session *session, const struct tuning *tuning);
// True if this world can run this algorithm, which a plan names.
bool tune_runs(const struct lockstep_session *session, uint32_t algorithm);
// Adopts the tuning. The links of all ranks are connected, so lockstep_open can return.
void tune_agreed(struct lockstep_session *session, const struct tuning *tuning);
// The manifests of all ranks are equal. Adopts the loaded tuning, if any, which the manifest
// covers.
void tune_started(struct lockstep_session *session);

#endif
