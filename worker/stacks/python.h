// SPDX-License-Identifier: Apache-2.0
//
// Frames of Python threads, without the interpreter's lock: a thread that holds it and hangs is the
// one to be shown. CPython has a function that writes them (_Py_DumpTracebackThreads, which its
// faulthandler uses); it reads what running threads change meanwhile and can crash on that, so it
// runs in a helper, a process of its own that has this one's memory and nothing else of it: a crash
// or a loop there ends the helper. The watch thread; allocates in python_open only.

#ifndef WORKER_STACKS_PYTHON_H
#define WORKER_STACKS_PYTHON_H

#include "protos/types.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PYTHON_MS 200 // What the helper may take.

struct python;

// As CPython declares _Py_DumpTracebackThreads, NULL for the interpreter and the current thread:
// returns NULL, or what went wrong. Version 3.15 has taken the fourth argument; for those before it
// is one that they do not look at.
typedef const char *python_writer(int fd, void *interpreter, void *current, size_t threads);

// NULL: no interpreter is loaded, or no memory. Waits for the loader's lock, so for a thread that
// is loading a library: call it early.
struct python *python_open(void);
// The same with a function of the caller's in the place of CPython's; for tests.
struct python *python_open_with(python_writer *writer);
void python_close(struct python *python); // NULL: nothing.

// Lets the interpreter write the frames of all its threads. Blocks PYTHON_MS at most.
// False: there are none. What was written before the helper ended, however it did, counts.
bool python_dump(struct python *python);

// Frames of one thread in the last dump, innermost first: file, function and line; `thread` is
// copied into them. Returns how many, `most` at most. 0: it runs no Python, or is not among the
// first hundred.
uint32_t python_frames(const struct python *python, pthread_t id, uint32_t thread,
                       struct stack_frame *frames, uint32_t most);

// The same from a descriptor whose text anyone has written; for tests.
uint32_t python_parse(int fd, pthread_t id, uint32_t thread, struct stack_frame *frames,
                      uint32_t most);

#endif
