// SPDX-License-Identifier: Apache-2.0
//
// The threads of one rank as JSON. Any thread.

#ifndef SERVER_RENDER_STACK_H
#define SERVER_RENDER_STACK_H

#include <stdbool.h>
#include <stdint.h>

struct archived;
struct json;

// Writes the answer to /api/v1/jobs/{job}/ranks/{rank}/stack.
void render_stack(struct json *json, const struct archived *archived, uint64_t now_ms, bool fresh);

#endif
