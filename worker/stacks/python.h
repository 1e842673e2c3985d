// SPDX-License-Identifier: Apache-2.0
//
// Reads the frames of Python threads without the interpreter's lock, because the thread that holds
// the lock and hangs is the one to show. CPython has a function that writes the frames
// (_Py_DumpTracebackThreads, which its faulthandler uses). That function reads data that running
// threads change, and can crash. So it runs in a helper process that shares this process's memory
// and descriptors but is a process of its own: a crash or a loop ends only the helper. Watch
// thread; only python_open allocates.

#ifndef WORKER_STACKS_PYTHON_H
#define WORKER_STACKS_PYTHON_H

#include "protos/types.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PYTHON_MS 200 // Most milliseconds that the helper may take.

struct python;

// The signature of CPython's _Py_DumpTracebackThreads. interpreter and current are NULL here.
// Returns NULL, or an error text. The fourth argument exists since version 3.15; earlier versions
// ignore it.
typedef const char *python_writer(int fd, void *interpreter, void *current, size_t threads);

// Returns NULL if no interpreter is loaded, or if there is no memory. Waits for the loader's lock,
// and so for any thread that is loading a library. Trainer.
struct python *python_open(void);
// As python_open, with the caller's function instead of CPython's; for tests.
struct python *python_open_with(python_writer *writer);
void python_close(struct python *python); // Does nothing if python is NULL.

// Lets the interpreter write the frames of all its threads. Blocks for at most PYTHON_MS. Returns
// false if there are no frames. All text that was written before the helper ended counts, however
// the helper ended.
bool python_dump(struct python *python);

// Reads the frames of one thread from the last dump, innermost first: file, function and line;
// `thread` is copied into each frame. Returns the number of frames, at most `most`. 0: the thread
// runs no Python, or is not among the first hundred threads.
uint32_t python_frames(const struct python *python, pthread_t id, uint32_t thread,
                       struct stack_frame *frames, uint32_t most);

// As python_frames, from the text of a descriptor; for tests.
uint32_t python_parse(int fd, pthread_t id, uint32_t thread, struct stack_frame *frames,
                      uint32_t most);

#endif
