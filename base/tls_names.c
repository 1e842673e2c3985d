// SPDX-License-Identifier: Apache-2.0
// tls_names.h has the contract. Pure; any thread.

#include "base/tls_names.h"

#include <string.h>

bool tls_name_is_coordinator(const char *name)
{
    return strcmp(name, TLS_NAME_COORDINATOR) == 0;
}

bool tls_name_is_worker(const char *name, const char *job)
{
    const size_t begin = strlen(TLS_NAME_WORKER_BEGIN);
    if (strncmp(name, TLS_NAME_WORKER_BEGIN, begin) != 0)
        return false;
    const char *named = name + begin;
    const size_t size = strcspn(named, "/");
    if (size == 0 || strcmp(named + size, TLS_NAME_WORKER_END) != 0)
        return false;
    if (!job || (size == strlen(TLS_NAME_ANY_JOB) && named[0] == TLS_NAME_ANY_JOB[0]))
        return !job || job[0] != '\0';
    return size == strlen(job) && memcmp(named, job, size) == 0;
}
