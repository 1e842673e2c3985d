// SPDX-License-Identifier: Apache-2.0
//
// The functions of status.c that other files call.

#ifndef CLI_ASK_STATUS_H
#define CLI_ASK_STATUS_H

int cli_status(int argc, char **argv);

#endif
