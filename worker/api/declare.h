// SPDX-License-Identifier: Apache-2.0
//
// The functions of declare.c that other files call. Trainer. Those that return an int return 0, or
// a status with its text.

#ifndef WORKER_API_DECLARE_H
#define WORKER_API_DECLARE_H

#include <lockstep/lockstep.h>
#include <stdint.h>

struct tensor;

// Checks one name. what, index: the object that has the name, for the error text.
int declare_check_name(const char *name, const char *what, uint32_t index);
// Checks the declaration of one parameter or buffer, and copies it into the module.
int declare_parameter(struct lockstep_module *module, const struct lockstep_module_config *config,
                      uint32_t index, const struct lockstep_parameter *parameter);
int declare_buffer(struct lockstep_module *module, const struct lockstep_module_config *config,
                   uint32_t index, const struct lockstep_buffer *buffer);
// Checks that no two of these tensors have the same name.
int declare_check_unique(const struct tensor *tensors, uint32_t count, const char *what);
// Logs the ignore patterns that match nothing.
void declare_warn_of_patterns(struct lockstep_module *module,
                              const struct lockstep_module_config *config);

#endif
