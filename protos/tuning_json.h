// SPDX-License-Identifier: Apache-2.0
//
// The tuning of a job as JSON, which the daemon and the tools print alike.

#ifndef PROTOS_TUNING_JSON_H
#define PROTOS_TUNING_JSON_H

#include "base/json.h"
#include "protos/tuning.h"

// Into an object: the numbers and names, without what follows from them. An object that is begun
// and ended by the caller.
void tuning_json_members(struct json *json, const struct tuning *tuning);

#endif
