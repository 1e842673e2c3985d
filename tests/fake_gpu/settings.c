// SPDX-License-Identifier: Apache-2.0
//
// See settings.h.
#include "tests/fake_gpu/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t setting_number(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);
    char *end;
    if (!text || !*text)
        return otherwise;
    const uint64_t value = strtoull(text, &end, 10);
    return *end == '\0' ? value : otherwise;
}

void setting_range(const char *variable, uint64_t *low, uint64_t *high)
{
    const char *text = getenv(variable);
    const char *dash = text ? strchr(text, '-') : NULL;
    *low = dash ? strtoull(text, NULL, 10) : 0;
    *high = text ? strtoull(dash ? dash + 1 : text, NULL, 10) : 0;
    if (*high < *low)
        *high = *low;
}

static bool fault_read(struct fault *fault, char *entry)
{
    char *at = strchr(entry, '@');
    fault->only = -1;
    if (at) {
        *at = '\0';
        fault->only = atoi(at + 1);
    }
    char *nth = strchr(entry, ':');
    char *code = nth ? strchr(nth + 1, ':') : NULL;
    if (!code || (size_t)(nth - entry) >= sizeof(fault->what))
        return false;
    memcpy(fault->what, entry, (size_t)(nth - entry));
    // A fault names a function without the suffix "_v2" of its symbol.
    char *version = strstr(fault->what, "_v2");
    if (version)
        *version = '\0';
    char *end;
    fault->nth = strtoull(nth + 1, &end, 10);
    fault->ever_after = *end == '+';
    fault->code = strcmp(code + 1, "hang") == 0 ? FAULT_HANG : atoi(code + 1);
    return fault->nth > 0 && fault->code != 0;
}

void faults_read(struct faults *faults, const char *variable)
{
    const char *text = getenv(variable);
    char copy[1024];
    char *rest = NULL;
    memset(faults, 0, sizeof(*faults));
    snprintf(copy, sizeof(copy), "%s", text ? text : "");
    for (char *entry = strtok_r(copy, ",", &rest); entry; entry = strtok_r(NULL, ",", &rest)) {
        if (faults->count == FAULTS_MAX || !fault_read(&faults->list[faults->count], entry)) {
            fprintf(stderr, "%s: cannot read \"%s\"\n", variable, text);
            abort();
        }
        faults->count++;
    }
}

int faults_strike(struct faults *faults, const char *what, int only)
{
    int code = 0;
    for (uint32_t i = 0; i < faults->count; i++) {
        struct fault *fault = &faults->list[i];
        if (strcmp(fault->what, what) != 0 || (fault->only >= 0 && fault->only != only))
            continue;
        fault->seen++;
        if (fault->seen == fault->nth || (fault->ever_after && fault->seen > fault->nth))
            code = fault->code;
    }
    return code;
}
