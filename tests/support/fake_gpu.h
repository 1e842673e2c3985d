// SPDX-License-Identifier: Apache-2.0
//
// How a test gets the fake GPUs (tests/fake_gpu/fake_gpu.h tells what they are) and changes their
// weather. It loads the libraries; what they do is theirs.
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

// Makes LOCKSTEP_CUDA_LIBRARY and LOCKSTEP_NCCL_LIBRARY name the fakes of this build, so before the
// code under test loads them, and loads them. Ends the program when they are not there. Again: the
// same.
const struct fake_controls *fake_gpu_install(void);

// Only the two variables, for processes that this one starts.
void fake_gpu_name_libraries(void);

// Sets variables, given as "NAME=value" up to a NULL, takes all other FAKE_ variables away, and has
// both libraries read them. While nobody else reads the environment.
void fake_gpu_weather(const char *variable, ...);

#endif
