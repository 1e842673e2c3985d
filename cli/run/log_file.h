// SPDX-License-Identifier: Apache-2.0
//
// The files of `lockstep run --log-dir`: one for each rank and one for the coordinator. A file has
// the bytes as the process wrote them, its stdout and stderr together, without prefixes. The
// launcher's thread makes the directory, the supervisor's thread does everything else.

#ifndef LOCKSTEP_CLI_RUN_LOG_FILE_H
#define LOCKSTEP_CLI_RUN_LOG_FILE_H

#include <stdbool.h>
#include <stddef.h>

struct run_options;

struct log_file {
    int fd; // -1: no file.
    bool failed; // True once a write has failed.
    const char *command; // borrowed; the subcommand's name, for sentences
    char *path; // owned; for sentences
};

// Makes options->log_dir and the directories above it. Returns 0, also if --log-dir was not given,
// or an exit status after a sentence on stderr.
int log_file_make_directory(const struct run_options *options);

// Opens "DIR/NAME.log", or "DIR/NAME.restart-2.log" after the second restart. An older file of this
// name is emptied. Returns false after a sentence on stderr. log_file_close must be called in any
// case.
bool log_file_open(struct log_file *file, const struct run_options *options, const char *name);

// Writes all bytes. After an error it drops what is left of them. It reports the first error.
void log_file_write(struct log_file *file, const char *bytes, size_t size);

void log_file_close(struct log_file *file);

#endif
