// SPDX-License-Identifier: Apache-2.0
//
// The links of a generation and its tuning: what this rank reports to the coordinator when its
// links are connected, and the tuning that it adopts when all ranks have reported. Driver only.

#include "worker/engine/tune.h"

#include "worker/kernels/kernels.h"
#include "worker/session/session.h"
#include "worker/session/world.h"
#include "worker/support/error.h"
#include "worker/transport/measure.h"

#include "protos/tuning.h"

#include <inttypes.h>

void tune_links(const struct lockstep_session *session, struct up_links *links)
{
    struct transport_links measured;
    transport_links(session->transport, &measured);
    *links = (struct up_links){.shares = measured.shares,
                               .latency_ns = measured.latency_ns,
                               .bytes_per_s = measured.bytes_per_s,
                               .wish = session->config.algorithm,
                               .sums_ranks = session->config.sums_ranks};
}

bool tune_possible(const struct lockstep_session *session, const struct tuning *tuning)
{
    const struct tuning_world world = world_of_tuning(session);
    struct transport_links links;
    transport_links(session->transport, &links);
    return (!tuning->shares || links.shares) && !tuning_refusal(tuning, &world);
}

bool tune_runs(const struct lockstep_session *session, uint32_t algorithm)
{
    const struct tuning_world world = world_of_tuning(session);
    if (algorithm == ALGORITHM_SHARED)
        return world.world_size == 1 || tuning_one_host(&session->world.tuning, &world);
    if (algorithm == ALGORITHM_TWO_LEVEL)
        return world.world_size == 1 || tuning_two_levels(&session->world.tuning, &world);
    return true;
}

// Adopts the tuning that was loaded from a file. All ranks do so in one generation, or none: the
// coordinator has verified that they have loaded the same file, and they compare one size.
static void tune_load_locked(struct lockstep_session *session)
{
    const struct training *training = &session->training;
    mutex_assert_held(&session->mutex);
    if (!session->engine.verified || training->loaded_world != session->world.size)
        return;
    session->world.tuning.doubling_bytes = training->loaded_doubling_bytes;
    session->world.tuning.halving_bytes = training->loaded_halving_bytes;
}

void tune_agreed(struct lockstep_session *session, const struct tuning *tuning)
{
    transport_tuned(session->transport, tuning->bytes_per_s);
    mutex_lock(&session->mutex);
    session->world.tuning = *tuning;
    session->world.tuned_size = session->world.size;
    tune_load_locked(session);
    mutex_unlock(&session->mutex);
    progress_formed(&session->tracker, &session->world.generation, session->world.rank,
                    session->world.size);
    mutex_lock(&session->mutex);
    session->world.formed = true;
    drive_changed_locked(session);
    mutex_unlock(&session->mutex);
    log_event(&session->log, LOG_LEVEL_INFO, "world_formed",
              "generation=%" PRIu64 " rank=%" PRIu32 " world_size=%" PRIu32 " latency_ns=%" PRIu64
              " bytes_per_s=%" PRIu64 " shares=%d doubling_bytes=%" PRIu64 " halving_bytes=%" PRIu64
              " algorithm=%s placed_by=%s",
              session->world.generation.number, session->world.rank, session->world.size,
              tuning->latency_ns, tuning->bytes_per_s, tuning->shares, tuning->doubling_bytes,
              tuning->halving_bytes, tuning_name(tuning->wish), session->config.world.placed_by);
}

void tune_started(struct lockstep_session *session)
{
    session->engine.verified = true;
    mutex_lock(&session->mutex);
    tune_load_locked(session);
    const bool loaded = session->training.loaded_world == session->world.size;
    mutex_unlock(&session->mutex);
    if (loaded)
        work_forget_form(session);
}
