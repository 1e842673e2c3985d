// SPDX-License-Identifier: Apache-2.0
//
// The assembler includes two files that mk/build.mk makes from worker/device/kernels.cu.
// mk/build.mk also lists them as dependencies of this object, and passes their directory.

#include "worker/device/image.h"

// The driver reads the image in words, so it is aligned. The zero bytes after the file are the
// whole image if the file is empty.
// clang-format off
#define TAKE_IN(name, file)                                                                       \
    __asm__(".pushsection .rodata\n.balign 64\n"                                                  \
            ".hidden " #name ", " #name "_end\n"                                                  \
            ".globl " #name ", " #name "_end\n"                                                   \
            #name ":\n.incbin \"" file "\"\n" #name "_end:\n.skip 64\n"                           \
            ".popsection\n");                                                                     \
    extern const char name[];                                                                     \
    extern const char name##_end[]
// clang-format on

TAKE_IN(device_image_code, "device_kernels.fatbin");
TAKE_IN(device_image_made_for, "device_kernels.targets"); // Empty if the image is empty.

const char device_image_missing[] =
    "this liblockstep was built without nvcc, so it has no kernels for GPUs: build it where the "
    "CUDA toolkit is";

const void *device_image(void)
{
    return device_image_code;
}

bool device_image_present(void)
{
    return device_image_made_for[0] != '\0';
}

const char *device_image_targets(void)
{
    return device_image_made_for;
}
