// SPDX-License-Identifier: Apache-2.0
//
// Conformance: if unplanned calls repeat in every step, the ranks get a new plan that has them.

#include "tests/support/trainer.h"

#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const uint64_t sizes[3] = {40, 300, 77};

static struct lockstep_report step_of_two(struct rank *rank, struct trained_module *modules)
{
    trainer_step_known(rank, modules, 2);
    return trainer_report(rank);
}

// The order is learned with the first module only. All ranks switch to the new plan at the same
// step, whenever they received it. From then on the plan has both modules.
static void planned_later_body(struct rank *rank)
{
    const struct module_shape a = {.name = "a", .count = 3, .elements = sizes};
    const struct module_shape b = {.name = "b", .count = 2, .elements = sizes};
    struct trained_module modules[2];
    struct lockstep_report report;
    uint64_t steps = 0;
    trainer_make(rank, &a, 0, &modules[0]);
    trainer_make(rank, &b, 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, modules, 1);
    do {
        report = step_of_two(rank, modules);
        RANK_EQUAL(rank, report.learning, 0);
        RANK_TRUE(rank, report.extended <= 1);
        steps++;
        usleep(1000);
    } while (report.extended == 1);
    RANK_TRUE(rank, steps > 3); // The call has to repeat several times.
    rank_digest(rank, &steps, sizeof(steps));
    for (int i = 0; i < 4; i++) {
        report = step_of_two(rank, modules);
        RANK_EQUAL(rank, report.extended, 0);
        RANK_EQUAL(rank, report.learning, 0);
        RANK_EQUAL(rank, report.control_messages, 0);
    }
    trainer_step_known(rank, modules, 1); // A step without the second module is still valid.
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

static void case_40_planned_when_it_comes_back(const struct setting *setting)
{
    ranks_run(setting, planned_later_body, NULL);
}

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_40_planned_when_it_comes_back", case_40_planned_when_it_comes_back, NULL},
    };
    return stamp_run("reducer: replan", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
