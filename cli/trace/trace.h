// SPDX-License-Identifier: Apache-2.0
//
// The functions of trace.c that other files call.

#ifndef CLI_TRACE_TRACE_H
#define CLI_TRACE_TRACE_H

int cli_trace(int argc, char **argv);

#endif
