// SPDX-License-Identifier: Apache-2.0

#include "protos/tuning_json.h"

void tuning_json_members(struct json *json, const struct tuning *tuning)
{
    json_u64(json, "latency_ns", tuning->latency_ns);
    json_u64(json, "bytes_per_s", tuning->bytes_per_s);
    json_bool(json, "shares", tuning->shares);
    json_string(json, "wish", tuning_name(tuning->wish));
    json_u64(json, "doubling_bytes", tuning->doubling_bytes);
    json_u64(json, "halving_bytes", tuning->halving_bytes);
}
