// SPDX-License-Identifier: Apache-2.0
//
// Conversion of what a returning member says, and of its pieces, to and from the generated structs.
// Any thread.

#ifndef LOCKSTEP_PROTOS_CODEC_RESUME_H
#define LOCKSTEP_PROTOS_CODEC_RESUME_H

struct _wire_DownTuning;
struct _wire_Resume;
struct _wire_UpStart;
struct tuning;
struct up_resume;
struct up_start;

void codec_start_out(struct _wire_UpStart *wire, const struct up_start *start);
void codec_start_in(struct up_start *start, const struct _wire_UpStart *wire);
void codec_tuning_out(struct _wire_DownTuning *wire, const struct tuning *tuning);
void codec_tuning_in(struct tuning *tuning, const struct _wire_DownTuning *wire);
void codec_resume_out(struct _wire_Resume *wire, const struct up_resume *resume);
void codec_resume_in(struct up_resume *resume, const struct _wire_Resume *wire);

#endif
