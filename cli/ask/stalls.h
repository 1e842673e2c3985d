// SPDX-License-Identifier: Apache-2.0
//
// The functions of stalls.c that other files call.

#ifndef CLI_ASK_STALLS_H
#define CLI_ASK_STALLS_H

int cli_stalls(int argc, char **argv);

#endif
