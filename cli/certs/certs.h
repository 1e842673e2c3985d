// SPDX-License-Identifier: Apache-2.0
//
// The functions of certs.c that other files call.

#ifndef CLI_CERTS_CERTS_H
#define CLI_CERTS_CERTS_H

int cli_certs(int argc, char **argv);

#endif
