// SPDX-License-Identifier: Apache-2.0
//
// Loads the fake GPUs (tests/fake_gpu/fake_gpu.h) for a test and changes their settings.
#ifndef TESTS_SUPPORT_FAKE_GPU_H
#define TESTS_SUPPORT_FAKE_GPU_H

#include "tests/fake_gpu/fake_gpu.h"

struct fake_controls {
    fake_gpu_reload_function *reload;
    fake_gpu_calls_function *calls;
    fake_gpu_live_function *live;
    fake_gpu_complaint_function *complaint;
    fake_gpu_hold_function *hold;
    fake_gpu_lose_function *lose;
    fake_gpu_peek_function *peek;
    fake_nccl_reload_function *nccl_reload;
    fake_nccl_calls_function *nccl_calls;
    fake_nccl_live_function *nccl_live;
    fake_nccl_report_function *nccl_report;
};

// Sets LOCKSTEP_CUDA_LIBRARY and LOCKSTEP_NCCL_LIBRARY to the fakes of this build and loads both.
// A test calls it before the code under test loads the libraries. Ends the program if the fakes do
// not exist. Later calls return the same controls.
const struct fake_controls *fake_gpu_install(void);

// Only sets the two variables, for processes that this process starts. LOCKSTEP_TEST_DEVICES names
// another folder of libraries, for a real GPU.
void fake_gpu_name_libraries(void);

// For the process of a rank, before it opens a session: a real NCCL believes that each rank is on a
// host of its own. Otherwise it refuses two ranks on one GPU.
void fake_gpu_part_hosts(unsigned rank);

// Sets environment variables, given as "NAME=value" up to a NULL, removes all other FAKE_
// variables, and makes both libraries read them. No other thread may read the environment
// meanwhile.
void fake_gpu_weather(const char *variable, ...);

#endif
