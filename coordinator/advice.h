// SPDX-License-Identifier: Apache-2.0
//
// The words about a lost rank: that it was lost, why, and what to do. Runs inside coordinator_step.

#ifndef COORDINATOR_ADVICE_H
#define COORDINATOR_ADVICE_H

#include <stdbool.h>

struct coordinator;
struct text;
struct up_lost;
struct worker;

// How much is known about the process of a lost rank.
enum advice {
    ADVICE_SEEN, // A mate saw its end.
    ADVICE_ENDED, // Its streams have ended. They also do when it executes another program.
    ADVICE_PARTED, // Nobody has seen its end: a network can end links, and refuse connections.
    ADVICE_STOPPED, // The process is stopped, by a signal or a debugger.
    ADVICE_SILENT, // Nothing is heard of it.
    ADVICE_LIAR, // The rank sent something impossible. Its process may be alive.
};

// True if the process has ended, for all that is known.
bool advice_is_of_an_end(enum advice advice);
// Returns the last words of a verdict, which say to start the job again; "" if the other ranks go
// on without the lost one.
const char *advice_again(const struct worker *worker);
// Adds that a rank was lost, why, and what to do.
void advice_sentence(const struct worker *worker, const char *cause, enum advice advice,
                     struct text *sentence);
// The control stream of a rank has ended. Adds why.
enum advice advice_of_silence(const struct coordinator *core, const struct worker *worker,
                              struct text *sentence);
// The witness has lost the peer.
enum advice advice_of_loss(const struct worker *witness, const struct worker *peer,
                           const struct up_lost *lost);

#endif
