// SPDX-License-Identifier: Apache-2.0
//
// Conversion between types.h and the generated structs, field by field, of what a returning member
// says. check_up.c has the bounds of the fields. No state. Any thread.

#include "protos/codec/resume.h"

#include "protos/codec/codec.h"
#include "protos/codec/internal.h"

#include "protos/control.pb.h"

#include <string.h>

void codec_start_out(wire_UpStart *wire, const struct up_start *start)
{
    wire->manifest_hash = start->manifest_hash;
    wire->item_count = start->item_count;
    wire->root = start->root;
    wire->settled = start->settled;
    wire->zero_defer = start->zero_defer;
    wire->strict = start->strict;
    wire->grouped = start->grouped;
}

void codec_start_in(struct up_start *start, const wire_UpStart *wire)
{
    start->manifest_hash = wire->manifest_hash;
    start->item_count = wire->item_count;
    start->root = wire->root;
    start->settled = wire->settled;
    start->zero_defer = wire->zero_defer;
    start->strict = wire->strict;
    start->grouped = wire->grouped;
}

void codec_tuning_out(wire_DownTuning *wire, const struct tuning *tuning)
{
    wire->latency_ns = tuning->latency_ns;
    wire->bytes_per_s = tuning->bytes_per_s;
    wire->doubling_bytes = tuning->doubling_bytes;
    wire->halving_bytes = tuning->halving_bytes;
    wire->shares = tuning->shares;
    wire->wish = (wire_PlanAlgorithm)tuning->wish;
}

void codec_tuning_in(struct tuning *tuning, const wire_DownTuning *wire)
{
    tuning->latency_ns = wire->latency_ns;
    tuning->bytes_per_s = wire->bytes_per_s;
    tuning->doubling_bytes = wire->doubling_bytes;
    tuning->halving_bytes = wire->halving_bytes;
    tuning->shares = wire->shares;
    tuning->wish = (uint32_t)wire->wish;
}

bool codec_ended_out(wire_Ended *wire, const struct ended_generation *ended)
{
    if (ended->generation.number == 0)
        return false;
    wire->has_generation = codec_generation_out(&wire->generation, &ended->generation);
    wire->world_size = ended->world_size;
    wire->removed_count =
        (pb_size_t)codec_words_out(wire->removed, ended->removed, LOCKSTEP_RANK_WORDS);
    return true;
}

void codec_ended_in(struct ended_generation *ended, const wire_Ended *wire)
{
    codec_generation_in(&ended->generation, &wire->generation, wire->has_generation);
    if (ended->generation.number == 0) { // There is none.
        ended->generation.incarnation = 0;
        return;
    }
    ended->world_size = wire->world_size;
    memcpy(ended->removed, wire->removed, wire->removed_count * sizeof(wire->removed[0]));
}

void codec_resume_out(wire_Resume *wire, const struct up_resume *resume)
{
    wire->has_generation = codec_generation_out(&wire->generation, &resume->generation);
    wire->rank = resume->rank;
    wire->world_size = resume->world_size;
    wire->settled = resume->settled;
    wire->rounds = resume->rounds;
    wire->starting = resume->starting;
    wire->frozen = resume->frozen;
    wire->plan_number = resume->plan_number;
    wire->learning_step = resume->learning_step;
    wire->learned = resume->learned;
    wire->recalls = resume->recalls;
    wire->has_tuning = true;
    codec_tuning_out(&wire->tuning, &resume->tuning);
    wire->has_start = true;
    codec_start_out(&wire->start, &resume->start);
    wire->has_ended = codec_ended_out(&wire->ended, &resume->ended);
}

void codec_resume_in(struct up_resume *resume, const wire_Resume *wire)
{
    codec_generation_in(&resume->generation, &wire->generation, wire->has_generation);
    resume->rank = wire->rank;
    resume->world_size = wire->world_size;
    resume->settled = wire->settled;
    resume->rounds = wire->rounds;
    resume->starting = wire->starting;
    resume->frozen = wire->frozen;
    resume->plan_number = wire->plan_number;
    resume->learning_step = wire->learning_step;
    resume->learned = wire->learned;
    resume->recalls = wire->recalls;
    if (wire->has_tuning)
        codec_tuning_in(&resume->tuning, &wire->tuning);
    if (wire->has_start)
        codec_start_in(&resume->start, &wire->start);
    if (wire->has_ended)
        codec_ended_in(&resume->ended, &wire->ended);
}
