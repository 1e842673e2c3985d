// SPDX-License-Identifier: Apache-2.0
//
// The functions of resume.c that other files call.

#ifndef COORDINATOR_RESUME_H
#define COORDINATOR_RESUME_H

#include "coordinator/coordinator.h"

struct job;
struct worker;

// The stream of a member has ended. Returns true if this is silence: the member is away now. False:
// it is the worker's end.
bool resume_away(struct coordinator *core, struct worker *worker);
// A member of a generation opens another stream. The hello is checked and clean.
void resume_hello(struct coordinator *core, coordinator_peer peer, const struct up_hello *hello);
// Asks the server to connect to the data port of a member.
void resume_ask_port(struct coordinator *core, const struct worker *worker);
// A data port was probed.
void resume_probed(struct coordinator *core, const struct coordinator_event *event);
// Asks the server to reach the data ports of all members, as long as it has not.
void resume_probe_all(struct coordinator *core, struct job *job);
// A member that is away has left, as another one has heard.
void resume_parted(struct coordinator *core, struct job *job, struct worker *worker);
void resume_tick(struct coordinator *core, struct job *job);
// True if no member of the job is connected, and none was for so long that its name is free.
bool resume_deserted(const struct coordinator *core, const struct job *job);

#endif
