// SPDX-License-Identifier: Apache-2.0
//
// The functions of main.c that other files call.

#ifndef CLI_MAIN_H
#define CLI_MAIN_H

// "lockstep NAME: <sentence>" on stderr; NAME may be NULL.
void cli_say(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
// The same, followed by where the help is. Returns CLI_MISUSE.
int cli_misuse(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
