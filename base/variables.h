// SPDX-License-Identifier: Apache-2.0
//
// The environment variables whose names begin with LOCKSTEP_. An unknown name is most likely a
// misspelling, and a worker that does not see LOCKSTEP_COORDINATOR trains alone. So an unknown name
// is an error, and the error names the most similar known name.
//
// Variables that are not checked:
//
//     LOCKSTEP_TEST_*          the test suite's own
//     LOCKSTEP_*SERVICE_HOST   and the other variables in which Kubernetes describes services: a
//                              service with the name lockstep-coordinator gives every pod of its
//                              namespace LOCKSTEP_COORDINATOR_PORT=tcp://10.0.0.7:50051
//
// Pure. Any thread.

#ifndef LOCKSTEP_BASE_VARIABLES_H
#define LOCKSTEP_BASE_VARIABLES_H

#include <stddef.h>

// environment: "NAME=value" strings, ended by NULL, as environ is. Returns 0, or -1 with a sentence
// in error that names the first unknown variable and the most similar known one.
int variables_check(char *const *environment, char *error, size_t error_bytes);

#endif
