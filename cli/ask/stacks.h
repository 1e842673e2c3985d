// SPDX-License-Identifier: Apache-2.0
//
// The functions of stacks.c that other files call.

#ifndef CLI_ASK_STACKS_H
#define CLI_ASK_STACKS_H

int cli_stacks(int argc, char **argv);

#endif
