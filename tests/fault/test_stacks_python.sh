#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Stacks of Python trainers: one that holds the interpreter's lock in a C function, one that waits
# without it, one whose Python runs all the time, one that hangs in a library that it loads. The
# library's objects are linked with a probe, because liblockstep exports nothing of this.
. "$(dirname "$0")/run_lib.sh"

skip() {
    echo "skipped: $1"
    exit 77
}

root=$(cd "$(dirname "$0")/../.." && pwd)
obj=$BUILD/obj/worker
case $LOCKSTEP_TEST_SANITIZER in
'') ;;
*) skip "Python would need the sanitizer's library to be loaded first" ;;
esac
python=$(command -v python3) || skip "there is no python3"
"$python" -c 'import ctypes; ctypes.pythonapi._Py_DumpTracebackThreads' 2>/dev/null ||
    skip "this python3 does not export _Py_DumpTracebackThreads"

cat >"$work/probe.c" <<'END'
// Takes stacks of the process on a thread of its own, as the library does, and prints them.
#include "base/thread.h"
#include "worker/stacks/stacks.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct callers callers;
static struct thread thread;

// The library notes an error in its session, and there is none here.
int error_set(int status, const char *format, ...)
{
    (void)format;
    return status;
}

static atomic_bool there; // The trainer is where it is to be found.
static atomic_bool done;
static unsigned captures;

static void probe_pause(unsigned ms)
{
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    while (nanosleep(&left, &left) != 0)
        ;
}

static void probe_print(const char *what, const struct stack_frame *frame)
{
    printf("%s: thread=%u python=%d object=%s symbol=%s offset=%llu library=%d\n", what,
           frame->thread, frame->python, frame->object, frame->symbol,
           (unsigned long long)frame->offset, frame->library);
}

// The trainer has, and its interpreter to the end.
static int probe_answered(const struct stacks *stacks)
{
    int native = 0, python = 0;
    for (unsigned i = 0; i < stacks->thread_count; i++)
        native |= stacks->threads[i].trainer && (stacks->threads[i].how == STACK_SIGNAL ||
                                                 stacks->threads[i].how == STACK_ASLEEP);
    for (unsigned i = 0; i < stacks->frame_count; i++)
        python |= strcmp(stacks->frames[i].symbol, "<module>") == 0;
    return native && python;
}

static void probe_watch(void *argument)
{
    struct stacks *stacks = argument;
    while (!atomic_load(&there))
        probe_pause(10);
    probe_pause(100);
    // Whoever computes beside it may keep the trainer from answering in its time.
    for (unsigned i = 0; i < captures || (!probe_answered(stacks) && i < captures + 300); i++)
        stacks_capture(stacks, &callers);
    for (unsigned i = 0; i < stacks->thread_count; i++)
        printf("thread: name=%s trainer=%d how=%d\n", stacks->threads[i].name,
               stacks->threads[i].trainer, (int)stacks->threads[i].how);
    for (unsigned i = 0; i < stacks->frame_count; i++)
        probe_print("frame", &stacks->frames[i]);
    if (stacks->frame_count > 0)
        probe_print("first", &stacks->frames[0]);
    fflush(stdout);
    stacks_close(stacks);
    atomic_store(&done, true);
}

__attribute__((visibility("default"))) void probe_start(unsigned count)
{
    struct stacks *stacks;
    captures = count;
    callers_note(&callers);
    if (stacks_open(&stacks) == 0)
        thread_start(&thread, "lockstep-watch", probe_watch, stacks);
}

__attribute__((visibility("default"))) int probe_done(void)
{
    callers_note(&callers);
    atomic_store(&there, true);
    return atomic_load(&done);
}

__attribute__((noinline)) static void holds_the_lock(void)
{
    atomic_store(&there, true);
    while (!atomic_load(&done))
        probe_pause(50);
}

__attribute__((visibility("default"))) int probe_hold(void)
{
    callers_note(&callers);
    holds_the_lock();
    return 1;
}
END
$CC -std=c11 -D_GNU_SOURCE -O1 -g -fPIC -fvisibility=hidden -pthread -shared -I"$root" \
    "$work/probe.c" "$obj"/stacks/*.o "$obj"/support/{proc_text,spare,callers}.o \
    "$BUILD/lib/base.a" -o "$work/libprobe.so" || { fail "the probe does not build"; finish; }

cat >"$work/hangs.c" <<'END'
int probe_hold(void);

__attribute__((constructor)) static void hangs_while_it_is_loaded(void)
{
    probe_hold();
    __asm__ volatile("" ::: "memory"); // Not a jump.
}
END
$CC -O1 -fPIC -shared "$work/hangs.c" "$work/libprobe.so" -o "$work/libhangs.so" ||
    { fail "the library that hangs does not build"; finish; }

# train HOW CAPTURES: a trainer that is stuck in this way; its output is in $work/out.
cat >"$work/train.py" <<'END'
import ctypes, sys, threading, time
how, captures, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
probe = (ctypes.PyDLL if how == "hold" else ctypes.CDLL)(path)

def stall_hold():
    probe.probe_hold()

def stall_sleep():
    while not probe.probe_done():
        time.sleep(0.05)

def stall_wait():
    while not probe.probe_done():
        threading.Event().wait(0.5)

def stall_import():
    ctypes.CDLL(path.replace("libprobe", "libhangs"))

def deeper(n):
    return deeper(n - 1) + 1 if n else len([i for i in range(20)])

def churn():  # Interpreter threads that come and go while their list is read.
    while not probe.probe_done():
        thread = threading.Thread(target=deeper, args=(5,))
        thread.start()
        thread.join()

def stall_run():
    thread = threading.Thread(target=churn)
    thread.start()
    while not probe.probe_done():
        deeper(50)
    thread.join()

probe.probe_start(captures)
globals()["stall_" + how]()
print("went on", flush=True)
END
train() {
    timeout $((60 * slow)) "$python" "$work/train.py" "$1" "$2" "$work/libprobe.so" \
        >"$work/out" 2>"$work/err"
    equal "$1: status" $? 0
    has "$work/out" "went on"
    [ ! -s "$work/err" ] || { fail "$1 wrote:"; cat "$work/err"; }
}

line_of() {
    grep -n "$1" "$work/train.py" | cut -d: -f1
}

train hold 1
grep -qE "trainer=1 how=[05]$" "$work/out" || fail "the trainer has no stack of its own"
has "$work/out" "first: thread=0 python=1 object=train.py symbol=stall_hold offset=$(line_of '^    probe.probe_hold')"
has "$work/out" "python=0 object=libprobe.so symbol=holds_the_lock"
has "$work/out" "python=0 object=libprobe.so symbol=probe_hold"
has "$work/out" "python=1 object=train.py symbol=<module>"

train sleep 1
has "$work/out" "first: thread=0 python=1 object=train.py symbol=stall_sleep"

# Python's own library, and its caller.
train wait 1
has "$work/out" "first: thread=0 python=1 object=threading.py symbol=wait"
grep -qE "first: .* library=1$" "$work/out" || fail "threading.py is not of Python's library"
has "$work/out" "object=train.py symbol=stall_wait offset=$(line_of 'threading.Event') library=0"

# The loader's lock is held all the time: a thread that needs it would wait for the trainer.
train import 1
has "$work/out" "first: thread=0 python=1 object=__init__.py symbol=__init__"
has "$work/out" "python=1 object=train.py symbol=stall_import"
has "$work/out" "python=0 object=libhangs.so symbol=hangs_while_it_is_loaded"

# The interpreter changes frames while they are read. Nothing is sure of a frame, but the trainer
# must live on.
train run "${LOCKSTEP_TEST_CAPTURES:-200}"
has "$work/out" "thread: name="

finish
