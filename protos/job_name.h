// SPDX-License-Identifier: Apache-2.0
//
// The names of jobs. They appear in URLs and in Kubernetes label values. Pure.

#ifndef LOCKSTEP_PROTOS_JOB_NAME_H
#define LOCKSTEP_PROTOS_JOB_NAME_H

#include <stdbool.h>

// What a name may have, for sentences: "'a b' is no job name: use ...".
#define JOB_NAME_RULE "letters, digits, '-', '_' and '.', not '.' or '..' alone"

// True if the name is not empty, has only letters, digits, '-', '_' and '.', and is not "." or
// "..", which a client takes out of a URL. Its length is not checked.
bool job_name_valid(const char *name);

#endif
