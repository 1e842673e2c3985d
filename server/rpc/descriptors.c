// SPDX-License-Identifier: Apache-2.0
//
// The limit of open files; descriptors.h has the contract. Main thread and stream thread.

#include "server/rpc/descriptors.h"

#include <sys/resource.h>

uint64_t descriptors_limit(uint64_t most)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 0;
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max < most ? limit.rlim_max : (rlim_t)most;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        limit.rlim_cur = before;
    return limit.rlim_cur;
}
