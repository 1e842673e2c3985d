// SPDX-License-Identifier: Apache-2.0
//
// A trial: whether processes of this machine can share memory as ranks do. Main thread.

#ifndef CLI_DOCTOR_SHARE_H
#define CLI_DOCTOR_SHARE_H

// Does what two ranks of one host do. NULL when it works, or else what did not, with the reason in
// *number, an errno value or 0.
const char *doctor_share(int *number);

#endif
