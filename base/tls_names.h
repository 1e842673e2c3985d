// SPDX-License-Identifier: Apache-2.0
//
// Rights on the control plane, as certificates name them: URIs among their subject alternative
// names. base/tls_files.h parses the certificates. Pure; any thread.
//
//     lockstep://coordinator       may be a coordinator that workers trust
//     lockstep://job/NAME/worker   may be a worker of that job, and of no other
//     lockstep://job/*/worker      may be a worker of any job
//     lockstep://observer          may only ask for the coordinator's health
#ifndef LOCKSTEP_BASE_TLS_NAMES_H
#define LOCKSTEP_BASE_TLS_NAMES_H

#include <stdbool.h>

#define TLS_NAME_SCHEME "lockstep://"
#define TLS_NAME_COORDINATOR TLS_NAME_SCHEME "coordinator"
#define TLS_NAME_OBSERVER TLS_NAME_SCHEME "observer"
#define TLS_NAME_WORKER_BEGIN TLS_NAME_SCHEME "job/"
#define TLS_NAME_WORKER_END "/worker"
#define TLS_NAME_ANY_JOB "*"

bool tls_name_is_coordinator(const char *name);

// Returns true if the name may be a worker of this job, or of any job if job is NULL. Returns false
// for a job with an empty name.
bool tls_name_is_worker(const char *name, const char *job);

#endif
