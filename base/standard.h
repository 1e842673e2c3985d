// SPDX-License-Identifier: Apache-2.0
//
// The standard descriptors, 0 to 2. If one is closed, the next file or socket of the process gets
// its number, and whatever the process prints goes there.

#ifndef LOCKSTEP_BASE_STANDARD_H
#define LOCKSTEP_BASE_STANDARD_H

#include <stdbool.h>

// Opens /dev/null as each standard descriptor that is closed, for reading: writes fail as before.
// Returns false, with errno, if that is not possible. Any thread.
bool standard_occupy(void);

#endif
