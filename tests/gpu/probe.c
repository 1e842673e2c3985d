// SPDX-License-Identifier: Apache-2.0
//
// Says which GPU there is, in one line; or why there is none, with status 77.

#include "tests/gpu/gpu.h"

#include <stdio.h>

int main(void)
{
    struct gpu_rig gpu;
    gpu_open_or_skip(&gpu);
    printf("%s, sm_%d, %d multiprocessors, driver API %d.%d\n", gpu.name, gpu.capability,
           gpu.multiprocessors, gpu.driver / 1000, gpu.driver % 1000 / 10);
    gpu_close(&gpu);
    return 0;
}
