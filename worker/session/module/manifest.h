// SPDX-License-Identifier: Apache-2.0
//
// The functions of manifest.c that other files call.

#ifndef WORKER_SESSION_MODULE_MANIFEST_H
#define WORKER_SESSION_MODULE_MANIFEST_H

#include <stdbool.h>
#include <stdint.h>

struct lockstep_module;
struct lockstep_session;
struct manifest_item;

// The items of one module: the module, its parameters, its buffers.
uint32_t manifest_module_count(const struct lockstep_module *module);
void manifest_module_item(const struct lockstep_module *module, uint32_t index,
                          struct manifest_item *item);

// Fills in item `index` of the manifest, which has the modules of all ranks only. False: the
// manifest has no such item.
bool module_manifest_item(const struct lockstep_session *session, uint32_t index,
                          struct manifest_item *item);
uint32_t module_manifest_count(const struct lockstep_session *session);
uint64_t module_manifest_hash(const struct lockstep_session *session);

#endif
