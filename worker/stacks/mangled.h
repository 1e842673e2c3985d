// SPDX-License-Identifier: Apache-2.0
//
// Makes names of C++ functions readable: "_ZN2at6native3addERKNS_6TensorE" becomes
// "at::native::add". Arguments are left out, and template arguments are "<>". What is not
// understood becomes "...". __cxa_demangle is not used: it allocates, and a thread that hangs
// inside malloc is one to show. Keeps no state. Any thread.

#ifndef WORKER_STACKS_MANGLED_H
#define WORKER_STACKS_MANGLED_H

#include <stddef.h>

// Writes the readable form of a name into out, and cuts it there if it is too long. A name that is
// not of C++ is copied.
void mangled_read(const char *name, char *out, size_t bytes);

#endif
