// SPDX-License-Identifier: Apache-2.0
// The permissions of files that hold secrets. Any thread; asks the system.
#ifndef LOCKSTEP_BASE_FILE_MODE_H
#define LOCKSTEP_BASE_FILE_MODE_H

#include <stdbool.h>

// The hint of a warning about a file that others can read or change.
#define FILE_MODE_HINT \
    "others of this machine can read or change it: chmod 600, or defaultMode: 0440 with fsGroup " \
    "of a Kubernetes secret"

// True: others than its owner and group can read the file, or others than its owner can write to
// it. A link is followed, as where a secret of Kubernetes is mounted, whose group may read. *mode:
// its permissions. False: or it is not there.
bool file_mode_exposed(const char *path, unsigned *mode);

#endif
