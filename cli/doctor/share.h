// SPDX-License-Identifier: Apache-2.0
//
// A test whether processes of this machine can share memory as ranks do. Main thread.

#ifndef CLI_DOCTOR_SHARE_H
#define CLI_DOCTOR_SHARE_H

// Shares memory as two ranks of one host do. Returns NULL if that works. Otherwise returns what
// failed, and sets *number to the errno value or 0.
const char *doctor_share(int *number);

#endif
