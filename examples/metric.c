// SPDX-License-Identifier: Apache-2.0
// A metric without a collective: every rank adds its own loss to a step, and reads the mean over
// all ranks when the step is over. All ranks read the same bits, so all of them stop in the same
// step.
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void check(int status)
{
    if (status < 0) {
        fprintf(stderr, "%s\n", lockstep_error_text());
        exit(1);
    }
}

// The argument is how long the forward pass of a step takes, in ms.
int main(int argc, char **argv)
{
    const unsigned pause_us = argc > 1 ? 1000 * (unsigned)atoi(argv[1]) : 0;
    lockstep_session *session;
    uint32_t rank, world_size;
    double loss = 1, most = 0;
    int steps = 0;
    check(lockstep_open(NULL, &session));
    check(lockstep_world(session, &rank, &world_size));
    check(lockstep_start(session));
    while (loss > 0.01) {
        check(lockstep_step_begin(session, NULL, NULL));
        usleep(pause_us);
        const double own = (rank + 1) / (1.0 + steps); // The model of this example learns slowly.
        check(lockstep_metric_add(session, "loss", LOCKSTEP_METRIC_MEAN, own));
        check(lockstep_metric_add(session, "loss_most", LOCKSTEP_METRIC_MAX, own));
        check(lockstep_counter_add(session, "samples", 8));
        check(lockstep_step_end(session, NULL));
        check(lockstep_metric_read(session, "loss", &loss, NULL));
        check(lockstep_metric_read(session, "loss_most", &most, NULL));
        steps++;
    }
    check(lockstep_close(session));
    printf("rank %u of %u: %d steps, loss %a, most %a\n", (unsigned)rank, (unsigned)world_size,
           steps, loss, most);
    return 0;
}
