// SPDX-License-Identifier: Apache-2.0
//
// The result of a run, for people and for machines. Supervisor's thread.

#ifndef CLI_RUN_REPORT_H
#define CLI_RUN_REPORT_H

struct run_options;
struct run_result;

// 0, the program's status, or 128 and the signal.
int run_exit_code(int status);
// The last line on stderr, or nothing when all succeeded.
void run_report(const struct run_options *options, const struct run_result *result);
// One object and a newline on stdout. docs/cli.md names its members.
void run_report_json(const struct run_options *options, const struct run_result *result);

#endif
