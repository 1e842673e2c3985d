// SPDX-License-Identifier: Apache-2.0
//
// The result of a run, for people and for machines. Supervisor's thread.

#ifndef CLI_RUN_REPORT_H
#define CLI_RUN_REPORT_H

#include <stdint.h>

struct run_options;
struct run_result;
struct text;
struct verdict;

// Returns the exit status for a wait status: the program's status, or 128 plus the signal.
int run_exit_code(int status);
// Appends "SIGINT".
void run_append_signal_name(struct text *text, int signal_number);
// Appends "rank 2 was killed by signal 9 (SIGKILL) after 3.2 s". index: in result->ranks.
void run_append_rank_end(struct text *text, const struct run_options *options,
                         const struct run_result *result, uint32_t index);
// Prints a line on stderr about a rank that has failed, if others go on without it (--survive).
// index: in the verdict's ranks; it has just ended.
void run_report_end(const struct run_options *options, const struct verdict *verdict,
                    uint32_t index);
// Prints the last line on stderr, or nothing if all workers opened a session and succeeded. With
// --json it also prints one object and a newline on stdout, unless the job is started again;
// docs/cli.md lists its members. Sets *options->unwritten, and prints a sentence on stderr, if that
// fails. Sets *options->again if the job is started again. code: the exit status of this attempt. A
// hosted run prints nothing, because the launcher's host reports.
void run_report(const struct run_options *options, const struct verdict *verdict, int code);
// The same for an attempt that ends before all workers have started.
void run_report_early(const struct run_options *options, struct verdict *verdict, int code);

#endif
