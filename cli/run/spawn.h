// SPDX-License-Identifier: Apache-2.0
//
// The functions of spawn.c that other files call.

#ifndef CLI_RUN_SPAWN_H
#define CLI_RUN_SPAWN_H

#include <stddef.h>
#include <sys/types.h>

struct spawn;

// Lets this process have as many descriptors as it may; its children get the limit of before.
void raise_file_limit(void);
// Starts a process in a group of its own that dies with this one. Returns its pid, or -1.
pid_t spawn(const struct spawn *request);
// Where a program is: as execvp would look. 0, or an errno value: ENOENT, EACCES, EISDIR.
int find_program(const char *name, char *path, size_t capacity);
// The daemon beside this executable, or in PATH.
int find_coordinator(char *path, size_t capacity);

#endif
