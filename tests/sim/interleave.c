// SPDX-License-Identifier: Apache-2.0
//
// See interleave.h. A depth-first walk over schedules. Node d of the stack is what was chosen
// before point d of the present execution; what lies behind the stack is chosen as it comes.

#include "tests/sim/interleave.h"

#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_POINTS 4096
#define NOBODY UINT32_MAX

// The next operation of a thread.
struct operation {
    const volatile void *word; // The word that it accesses. NULL: the thread begins.
    bool writes;
    const char *what;
};

struct node {
    struct operation next[INTERLEAVE_THREADS];
    uint32_t enabled; // Set of threads, as bits.
    uint32_t asleep; // Set of threads: explored from here, or in an equivalent order.
    uint32_t chosen;
};

static struct {
    const struct interleave_program *program;
    struct node stack[MOST_POINTS];
    uint32_t depth; // Depth of the stack.
    uint32_t at; // Points of this execution.
    bool redundant;
    bool stuck;
    struct operation next[INTERLEAVE_THREADS];
    bool waits[INTERLEAVE_THREADS];
    bool ended[INTERLEAVE_THREADS];
    struct {
        uint32_t thread;
        const char *what;
    } trace[MOST_POINTS];
    sem_t turns[INTERLEAVE_THREADS];
    sem_t over;
    bool stop;
} walk;

static _Thread_local uint32_t self = NOBODY;

static bool commute(const struct operation *a, const struct operation *b)
{
    return !a->word || !b->word || a->word != b->word || (!a->writes && !b->writes);
}

static uint32_t enabled_threads(void)
{
    uint32_t enabled = 0;
    for (uint32_t i = 0; i < walk.program->threads; i++)
        enabled |= (uint32_t)(!walk.ended[i] && !walk.waits[i]) << i;
    return enabled;
}

static uint32_t lowest(uint32_t threads)
{
    return (uint32_t)__builtin_ctz(threads);
}

// Adds a node to the stack. False: all threads that can run are asleep.
static bool grow(uint32_t enabled)
{
    struct node *node = &walk.stack[walk.at];
    const struct node *before = walk.at > 0 ? &walk.stack[walk.at - 1] : NULL;
    node->enabled = enabled;
    node->asleep = 0;
    memcpy(node->next, walk.next, sizeof(node->next));
    for (uint32_t i = 0; before && i < walk.program->threads; i++) {
        if ((before->asleep >> i & 1) != 0 &&
            commute(&before->next[i], &before->next[before->chosen]))
            node->asleep |= 1u << i;
    }
    if ((enabled & ~node->asleep) == 0)
        return false;
    node->chosen = lowest(enabled & ~node->asleep);
    walk.depth = walk.at + 1;
    return true;
}

// Checks that this execution repeats the explored part. If it does not, the code depends on
// something other than the order of its operations.
static void check_replay(uint32_t enabled)
{
    const struct node *node = &walk.stack[walk.at];
    const struct operation *next = &node->next[node->chosen];
    if ((enabled >> node->chosen & 1) != 0 && walk.next[node->chosen].what == next->what)
        return;
    fprintf(stderr, "point %" PRIu32 " differs: thread %" PRIu32 " is at '%s', not '%s'\n", walk.at,
            node->chosen, walk.next[node->chosen].what, next->what);
    abort();
}

// Returns the thread that runs next; NOBODY: no thread can run.
static uint32_t choose(void)
{
    const uint32_t enabled = enabled_threads();
    uint32_t chosen;
    if (enabled == 0)
        return NOBODY;
    if (walk.at == MOST_POINTS) {
        fprintf(stderr, "an execution has more than %d points\n", MOST_POINTS);
        abort();
    }
    if (walk.at < walk.depth)
        check_replay(enabled);
    if (walk.at >= walk.depth && !walk.redundant && !grow(enabled))
        walk.redundant = true;
    chosen = walk.at < walk.depth ? walk.stack[walk.at].chosen : lowest(enabled);
    walk.trace[walk.at].thread = chosen;
    walk.trace[walk.at++].what = walk.next[chosen].what;
    for (uint32_t i = 0; i < walk.program->threads; i++) {
        if (walk.next[chosen].writes && walk.next[i].word == walk.next[chosen].word)
            walk.waits[i] = false;
    }
    return chosen;
}

static bool all_ended(void)
{
    bool ended = true;
    for (uint32_t i = 0; i < walk.program->threads; i++)
        ended = ended && walk.ended[i];
    return ended;
}

// The calling thread has come to its next point, or has ended.
static void pass(void)
{
    const uint32_t me = self;
    const bool ended = walk.ended[me]; // Another thread may begin the next execution at once.
    const uint32_t chosen = choose();
    if (chosen == me)
        return;
    if (chosen == NOBODY) {
        walk.stuck = !all_ended();
        sem_post(&walk.over);
    } else {
        sem_post(&walk.turns[chosen]);
    }
    if (!ended)
        sem_wait(&walk.turns[me]);
}

void interleave_point(const volatile void *word, bool writes, const char *what)
{
    const struct interleave_program *program = walk.program;
    if (self == NOBODY || (program->ignores && program->ignores(word, program->context)))
        return;
    walk.next[self] = (struct operation){word, writes, what};
    pass();
}

void interleave_wait(void)
{
    if (self != NOBODY)
        walk.waits[self] = true;
}

static void *thread_main(void *argument)
{
    self = (uint32_t)(uintptr_t)argument;
    for (;;) {
        sem_wait(&walk.turns[self]);
        if (walk.stop)
            return NULL;
        walk.program->run[self](walk.program->context);
        walk.ended[self] = true;
        walk.next[self] = (struct operation){0};
        pass();
    }
}

static void execute(void)
{
    walk.at = 0;
    walk.redundant = walk.stuck = false;
    memset(walk.waits, 0, sizeof(walk.waits));
    memset(walk.ended, 0, sizeof(walk.ended));
    for (uint32_t i = 0; i < walk.program->threads; i++)
        walk.next[i] = (struct operation){NULL, false, "begins"};
    sem_post(&walk.turns[choose()]);
    sem_wait(&walk.over);
}

static void print_trace(void)
{
    fprintf(stderr, "%s after these points:\n", walk.stuck ? "all threads wait" : "wrong");
    for (uint32_t i = 0; i < walk.at; i++)
        fprintf(stderr, "  thread %" PRIu32 ": %s\n", walk.trace[i].thread, walk.trace[i].what);
}

// Prepares the next execution. False: all were run.
static bool turn_back(void)
{
    while (walk.depth > 0) {
        struct node *node = &walk.stack[walk.depth - 1];
        node->asleep |= 1u << node->chosen;
        if ((node->enabled & ~node->asleep) != 0) {
            node->chosen = lowest(node->enabled & ~node->asleep);
            return true;
        }
        walk.depth--;
    }
    return false;
}

void interleave_explore(const struct interleave_program *program, struct interleave_result *result)
{
    pthread_t threads[INTERLEAVE_THREADS];
    memset(result, 0, sizeof(*result));
    memset(&walk, 0, sizeof(walk));
    walk.program = program;
    sem_init(&walk.over, 0, 0);
    for (uint32_t i = 0; i < program->threads; i++) {
        sem_init(&walk.turns[i], 0, 0);
        if (pthread_create(&threads[i], NULL, thread_main, (void *)(uintptr_t)i) != 0)
            abort();
    }
    do {
        program->begin(program->context);
        execute();
        if (walk.stuck)
            break;
        const bool right = program->check(program->context);
        result->failed = !walk.redundant && !right;
        result->executions += !walk.redundant;
        result->redundant += walk.redundant;
        result->longest = walk.at > result->longest ? walk.at : result->longest;
    } while (!result->failed && turn_back());
    result->failed = result->failed || walk.stuck;
    if (result->failed)
        print_trace();
    walk.stop = true;
    for (uint32_t i = 0; i < program->threads && !walk.stuck; i++) {
        sem_post(&walk.turns[i]);
        pthread_join(threads[i], NULL);
    }
}
