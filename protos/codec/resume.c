// SPDX-License-Identifier: Apache-2.0
//
// Conversion between types.h and the generated structs, field by field, of what a returning member
// says. check_up.c has the bounds of the fields. No state. Any thread.

#include "protos/codec/resume.h"

#include "protos/codec/codec.h"
#include "protos/codec/internal.h"
#include "protos/codec/recovery.h"

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
    wire->has_tuning = true;
    codec_tuning_out(&wire->tuning, &resume->tuning);
    wire->has_start = true;
    codec_start_out(&wire->start, &resume->start);
    wire->has_founder = codec_generation_out(&wire->founder, &resume->founder);
    wire->has_promised = codec_generation_out(&wire->promised, &resume->promised);
    wire->chain_count = (pb_size_t)codec_chain_out(wire->chain, resume->chain, resume->chain_count);
    wire->dead_count = (pb_size_t)codec_words_out(wire->dead, resume->dead, LOCKSTEP_RANK_WORDS);
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
    if (wire->has_tuning)
        codec_tuning_in(&resume->tuning, &wire->tuning);
    if (wire->has_start)
        codec_start_in(&resume->start, &wire->start);
    codec_generation_in(&resume->founder, &wire->founder, wire->has_founder);
    codec_generation_in(&resume->promised, &wire->promised, wire->has_promised);
    resume->chain_count = codec_chain_in(resume->chain, wire->chain, wire->chain_count);
    memcpy(resume->dead, wire->dead, wire->dead_count * sizeof(wire->dead[0]));
}
