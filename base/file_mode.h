// SPDX-License-Identifier: Apache-2.0
// The permissions of files that hold secrets. Any thread; makes a system call.
#ifndef LOCKSTEP_BASE_FILE_MODE_H
#define LOCKSTEP_BASE_FILE_MODE_H

#include <stdbool.h>

// The hint of a warning about a file that others can read or change.
#define FILE_MODE_HINT \
    "others of this machine can read or change it: chmod 600, or defaultMode: 0440 with fsGroup " \
    "of a Kubernetes secret"

// Returns true if users other than the owner and the group can read the file, or users other than
// the owner can write to it; *mode is then its permissions. Returns false if the file does not
// exist. A link is followed, because Kubernetes mounts secrets as links. The group may read,
// because Kubernetes gives secrets to a group.
bool file_mode_exposed(const char *path, unsigned *mode);

#endif
