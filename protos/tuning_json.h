// SPDX-License-Identifier: Apache-2.0
//
// The tuning of a job as JSON, for the daemon and the tools.

#ifndef PROTOS_TUNING_JSON_H
#define PROTOS_TUNING_JSON_H

#include "base/json.h"
#include "protos/tuning.h"

// Adds the fields of `tuning` to a JSON object. The caller begins and ends the object.
void tuning_json_members(struct json *json, const struct tuning *tuning);

#endif
