// SPDX-License-Identifier: Apache-2.0
//
// See nccl_setting.h.

#include "base/nccl_setting.h"

#include "base/setting.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Copies the value of the line "NAME=value" from a file of NCCL's. Returns false if there is no
// such line.
static bool nccl_setting_in(const char *path, const char *name, char *value, size_t bytes)
{
    char line[256];
    bool found = false;
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof(line), file)) {
        const size_t size = strlen(name);
        line[strcspn(line, "\r\n")] = '\0';
        found = strncmp(line, name, size) == 0 && line[size] == '=' && line[size + 1];
        if (found)
            (void)text_copy(value, bytes, line + size + 1);
    }
    if (file)
        fclose(file);
    return found;
}

bool nccl_setting(const char *name, char *value, size_t bytes)
{
    char path[1024];
    const char *set = setting_get(name);
    const char *named = setting_get("NCCL_CONF_FILE");
    const char *home = setting_get("HOME");
    if (set)
        return text_copy(value, bytes, set), true;
    snprintf(path, sizeof(path), "%s/.nccl.conf", home ? home : "");
    return nccl_setting_in(named ? named : path, name, value, bytes) ||
           nccl_setting_in("/etc/nccl.conf", name, value, bytes);
}

bool nccl_setting_blocks(void)
{
    char value[24] = "";
    return nccl_setting("NCCL_COMM_BLOCKING", value, sizeof(value)) && strtol(value, NULL, 0) > 0;
}
