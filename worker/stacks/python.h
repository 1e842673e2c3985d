// SPDX-License-Identifier: Apache-2.0
//
// Frames of Python threads, read without the interpreter's lock, because a thread that holds the
// lock and hangs is the one to show. CPython has a function that writes the frames
// (_Py_DumpTracebackThreads, which its faulthandler uses). That function reads data that running
// threads change, and can crash. So it runs in a helper process, which has a copy of this process's
// memory and nothing else of it: a crash or a loop ends the helper only. The watch thread;
// allocates in python_open only.

#ifndef WORKER_STACKS_PYTHON_H
#define WORKER_STACKS_PYTHON_H

#include "protos/types.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PYTHON_MS 200 // The time that the helper may take.

struct python;

// As CPython declares _Py_DumpTracebackThreads, NULL for the interpreter and the current thread:
// returns NULL, or what went wrong. The fourth argument exists since version 3.15; earlier versions
// ignore it.
typedef const char *python_writer(int fd, void *interpreter, void *current, size_t threads);

// NULL: no interpreter is loaded, or there is no memory. Waits for the loader's lock, and so for a
// thread that is loading a library; call it early.
struct python *python_open(void);
// The same with the caller's function instead of CPython's; for tests.
struct python *python_open_with(python_writer *writer);
void python_close(struct python *python); // NULL is allowed.

// Lets the interpreter write the frames of all its threads. Blocks PYTHON_MS at most.
// False: there are no frames. Everything that was written before the helper ended counts, however
// the helper ended.
bool python_dump(struct python *python);

// The frames of one thread in the last dump, innermost first: file, function and line; `thread` is
// copied into them. Returns how many, at most `most`. 0: the thread runs no Python, or is not among
// the first hundred threads.
uint32_t python_frames(const struct python *python, pthread_t id, uint32_t thread,
                       struct stack_frame *frames, uint32_t most);

// The same from the text of a descriptor; for tests.
uint32_t python_parse(int fd, pthread_t id, uint32_t thread, struct stack_frame *frames,
                      uint32_t most);

#endif
