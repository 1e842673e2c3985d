// SPDX-License-Identifier: Apache-2.0
//
// The names of jobs; job_name.h has the contract. Pure.

#include "protos/job_name.h"

#include <string.h>

bool job_name_valid(const char *name)
{
    for (const char *at = name; *at != '\0'; at++) {
        const bool letter = (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z');
        if (!letter && !(*at >= '0' && *at <= '9') && !strchr("-_.", *at))
            return false;
    }
    return name[0] != '\0' && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}
