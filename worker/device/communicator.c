// SPDX-License-Identifier: Apache-2.0
//
// The life of an NCCL communicator; see communicator.h. Runs on the driver thread, except
// ending_run.

#include "worker/device/communicator.h"

#include "base/clock.h"
#include "base/cond.h"
#include "base/mutex.h"
#include "base/text.h"
#include "base/thread.h"
#include "base/utf8.h"
#include "worker/device/nccl.h"

#include <assert.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COMMUNICATOR_REGISTRATIONS 64

struct communicator {
    // constant
    const struct nccl *nccl;
    struct device *device;
    struct communicator_end *ending; // Made at the begin, so that the end needs no memory.
    // driver only
    void *comm;
    enum communicator_state state;
    char text[COMMUNICATOR_TEXT_BYTES];
    uint32_t registered;
    uint64_t memories[COMMUNICATOR_REGISTRATIONS];
    void *registrations[COMMUNICATOR_REGISTRATIONS];
};

// State shared by the ending thread and the driver. The last one that uses it frees it.
struct communicator_end {
    // set before the thread starts, then used by the ending thread only
    struct communicator *communicator;
    bool in_order;
    uint64_t patience_ms; // Until this time (clock_now_ms) the thread tries to end in order.
    uint64_t deadline_ms; // Until this time (clock_now_ms) the driver waits.
    struct thread thread;
    struct mutex mutex;
    struct cond cond;
    // guarded by mutex
    // True once the thread has made the device's context current; from then on the thread does not
    // use `device`.
    bool begun;
    bool done;
    bool left; // True if the driver has stopped waiting; then the ending thread frees this struct.
};

static_assert(sizeof(struct nccl_unique_id) == COMMUNICATOR_ID_BYTES,
              "a communicator id has NCCL's size");

// ---- failure ------------------------------------------------------------------------------------

// Copies a text of NCCL as one line of whole, printable characters.
static void nccl_clean(const char *said, char *out, size_t bytes)
{
    struct text text;
    size_t end = 0;
    text_init(&text, out, bytes);
    while (*said != '\0' && !text.truncated) {
        const size_t length = utf8_length(said, strnlen(said, 4));
        const bool blank = length == 1 && (iscntrl((unsigned char)*said) || *said == ' ');
        if (length == 0 || blank || !utf8_harmless(said, length))
            text_append(&text, "%s", blank ? " " : "?");
        else
            text_append_bytes(&text, said, length);
        end = blank ? end : text.size;
        said += length == 0 ? 1 : length;
    }
    out[end] = '\0';
}

static void nccl_said(const struct nccl *nccl, void *comm, char *out, size_t bytes)
{
    const char *said = nccl->get_last_error(comm);
    nccl_clean(!said ? "" : said, out, bytes);
}

static void nccl_describe(const struct nccl *nccl, void *comm, int result, const char *call,
                          char *out, size_t bytes)
{
    char said[COMMUNICATOR_TEXT_BYTES];
    struct text text;
    text_init(&text, out, bytes);
    text_append(&text, "%s: %s", call, nccl->get_error_string(result));
    nccl_said(nccl, comm, said, sizeof(said));
    if (said[0] != '\0')
        text_append(&text, "; NCCL said last: '%s'", said);
}

static int communicator_break(struct communicator *communicator, int result, const char *call)
{
    if (communicator->state != COMMUNICATOR_BROKEN)
        nccl_describe(communicator->nccl, communicator->comm, result, call, communicator->text,
                      sizeof(communicator->text));
    communicator->state = COMMUNICATOR_BROKEN;
    return -1;
}

// Handles the result of an NCCL call. If the call is still in progress, the next poll finds its
// result.
static int communicator_check(struct communicator *communicator, int result, const char *call)
{
    if (result == NCCL_OK)
        return 0;
    if (result != NCCL_IN_PROGRESS)
        return communicator_break(communicator, result, call);
    communicator->state = COMMUNICATOR_BUSY;
    return 0;
}

const char *communicator_text(const struct communicator *communicator)
{
    return communicator->text;
}

void communicator_said(const struct communicator *communicator, char *text, size_t bytes)
{
    nccl_said(communicator->nccl, communicator->comm, text, bytes);
}

// ---- forming ------------------------------------------------------------------------------------

int communicator_id(uint8_t id[COMMUNICATOR_ID_BYTES], char *error, size_t error_bytes)
{
    struct nccl_unique_id unique;
    const struct nccl *nccl = nccl_load(error, error_bytes);
    if (!nccl)
        return -1;
    const int made = nccl->get_unique_id(&unique);
    if (made != NCCL_OK) {
        nccl_describe(nccl, NULL, made, "ncclGetUniqueId", error, error_bytes);
        return -1;
    }
    memcpy(id, unique.bytes, COMMUNICATOR_ID_BYTES);
    return 0;
}

// Frees one that NCCL does not know.
static void communicator_free(struct communicator *communicator)
{
    free(communicator->ending);
    free(communicator);
}

struct communicator *communicator_begin(struct device *device,
                                        const uint8_t id[COMMUNICATOR_ID_BYTES], uint32_t rank,
                                        uint32_t ranks, char *error, size_t error_bytes)
{
    struct nccl_config config = NCCL_CONFIG_INIT;
    struct nccl_unique_id unique;
    const struct nccl *nccl = nccl_load(error, error_bytes);
    if (!nccl)
        return NULL;
    struct communicator *communicator = calloc(1, sizeof(*communicator));
    if (communicator)
        communicator->ending = calloc(1, sizeof(*communicator->ending));
    if (!communicator || !communicator->ending) {
        free(communicator);
        text_copy(error, error_bytes, "out of memory");
        return NULL;
    }
    communicator->nccl = nccl;
    communicator->device = device;
    communicator->state = COMMUNICATOR_STANDS;
    memcpy(unique.bytes, id, COMMUNICATOR_ID_BYTES);
    config.blocking = 0;
    const int begun =
        nccl->comm_init_rank_config(&communicator->comm, (int)ranks, unique, (int)rank, &config);
    if (communicator_check(communicator, begun, "ncclCommInitRankConfig") < 0) {
        text_copy(error, error_bytes, communicator->text);
        if (communicator->comm)
            (void)communicator_end(communicator, false, 0);
        else
            communicator_free(communicator);
        return NULL;
    }
    return communicator;
}

enum communicator_state communicator_poll(struct communicator *communicator)
{
    int result = NCCL_OK;
    if (communicator->state == COMMUNICATOR_BROKEN)
        return COMMUNICATOR_BROKEN;
    const int asked = communicator->nccl->comm_get_async_error(communicator->comm, &result);
    if (asked != NCCL_OK)
        (void)communicator_break(communicator, asked, "ncclCommGetAsyncError");
    else if (result == NCCL_OK)
        communicator->state = COMMUNICATOR_STANDS;
    else
        (void)communicator_check(communicator, result, "NCCL");
    return communicator->state;
}

// ---- working ------------------------------------------------------------------------------------

static int communicator_type(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_FLOAT32:
        return NCCL_FLOAT32;
    case DTYPE_FLOAT64:
        return NCCL_FLOAT64;
    case DTYPE_FLOAT16:
        return NCCL_FLOAT16;
    case DTYPE_BFLOAT16:
        return NCCL_BFLOAT16;
    case DTYPE_NONE:
    case DTYPE_INT8: // The hosts reduce all integers (device_flow.c).
    case DTYPE_INT16:
    case DTYPE_INT32:
    case DTYPE_INT64:
    case DTYPE_UINT8:
    case DTYPE_UINT16:
    case DTYPE_UINT32:
    case DTYPE_UINT64:
    case DTYPE_BOOL:
        break;
    }
    assert(false && "a dtype that NCCL sums");
    return NCCL_FLOAT32;
}

static int communicator_sum(struct communicator *communicator, uint64_t in, uint64_t out,
                            uint64_t count, int type)
{
    if (count == 0)
        return 0;
    const int launched = communicator->nccl->all_reduce(
        (const void *)(uintptr_t)in, (void *)(uintptr_t)out, (size_t)count, type, NCCL_SUM,
        communicator->comm, device_stream(communicator->device, DEVICE_REDUCE));
    return communicator_check(communicator, launched, "ncclAllReduce");
}

static int communicator_scatter(struct communicator *communicator, uint64_t in, uint64_t out,
                                uint64_t each, int type)
{
    const int launched = communicator->nccl->reduce_scatter(
        (const void *)(uintptr_t)in, (void *)(uintptr_t)out, (size_t)each, type, NCCL_SUM,
        communicator->comm, device_stream(communicator->device, DEVICE_REDUCE));
    return communicator_check(communicator, launched, "ncclReduceScatter");
}

typedef int communicator_bulk(struct communicator *communicator, uint64_t in, uint64_t out,
                              uint64_t count, int type);

// Enqueues the elements (with `launch`) and the words in one NCCL group.
static int communicator_group(struct communicator *communicator, communicator_bulk *launch,
                              uint64_t in, uint64_t out, uint64_t count, enum dtype dtype,
                              uint64_t words, uint64_t word_count)
{
    const struct nccl *nccl = communicator->nccl;
    assert(communicator->state == COMMUNICATOR_STANDS);
    if (communicator_check(communicator, nccl->group_start(), "ncclGroupStart") < 0)
        return -1;
    const int bulk = launch(communicator, in, out, count, communicator_type(dtype));
    const int header = communicator_sum(communicator, words, words, word_count, NCCL_UINT64);
    // A group that was begun must be ended, even after an error inside it.
    const int ended = communicator_check(communicator, nccl->group_end(), "ncclGroupEnd");
    return bulk < 0 || header < 0 || ended < 0 ? -1 : 0;
}

int communicator_allreduce(struct communicator *communicator, uint64_t in, uint64_t out,
                           uint64_t elements, enum dtype dtype, uint64_t words, uint64_t word_count)
{
    return communicator_group(communicator, communicator_sum, in, out, elements, dtype, words,
                              word_count);
}

int communicator_reduce_scatter(struct communicator *communicator, uint64_t in, uint64_t out,
                                uint64_t each, enum dtype dtype, uint64_t words,
                                uint64_t word_count)
{
    return communicator_group(communicator, communicator_scatter, in, out, each, dtype, words,
                              word_count);
}

// A refused registration is no failure, because NCCL then copies.
void communicator_register(struct communicator *communicator, uint64_t memory, size_t bytes)
{
    void *handle = NULL;
    const struct nccl *nccl = communicator->nccl;
    if (!nccl->comm_register || !nccl->comm_deregister ||
        communicator->state != COMMUNICATOR_STANDS ||
        communicator->registered == COMMUNICATOR_REGISTRATIONS)
        return;
    for (uint32_t i = 0; i < communicator->registered; i++) {
        if (communicator->memories[i] == memory)
            return;
    }
    if (nccl->comm_register(communicator->comm, (void *)(uintptr_t)memory, bytes, &handle) ==
            NCCL_OK &&
        handle) {
        communicator->memories[communicator->registered] = memory;
        communicator->registrations[communicator->registered++] = handle;
    }
}

// ---- ending -------------------------------------------------------------------------------------

static void ending_pause(void)
{
    const struct timespec pause = {.tv_nsec = 500 * 1000};
    (void)nanosleep(&pause, NULL);
}

// Returns true if the communicator has ended in order. All ranks take part in that, so this call
// may wait for another rank.
static bool ending_finalize(const struct communicator_end *ending)
{
    const struct communicator *communicator = ending->communicator;
    int result = communicator->nccl->comm_finalize(communicator->comm);
    while (result == NCCL_IN_PROGRESS && clock_now_ms() < ending->patience_ms) {
        ending_pause();
        if (communicator->nccl->comm_get_async_error(communicator->comm, &result) != NCCL_OK)
            return false;
    }
    return result == NCCL_OK;
}

static void ending_free_communicator(const struct communicator_end *ending)
{
    struct communicator *communicator = ending->communicator;
    const struct nccl *nccl = communicator->nccl;
    for (uint32_t i = 0; ending->in_order && i < communicator->registered; i++)
        (void)nccl->comm_deregister(communicator->comm, communicator->registrations[i]);
    if (ending->in_order && ending_finalize(ending))
        (void)nccl->comm_destroy(communicator->comm);
    else
        (void)nccl->comm_abort(communicator->comm);
    free(communicator);
}

static void ending_free(struct communicator_end *ending)
{
    cond_fini(&ending->cond);
    mutex_fini(&ending->mutex);
    free(ending);
}

static void ending_run(void *argument)
{
    struct communicator_end *ending = argument;
    device_enter(ending->communicator->device);
    mutex_lock(&ending->mutex);
    ending->begun = true;
    cond_signal(&ending->cond);
    mutex_unlock(&ending->mutex);
    ending_free_communicator(ending);
    mutex_lock(&ending->mutex);
    ending->done = true;
    const bool left = ending->left;
    cond_signal(&ending->cond);
    mutex_unlock(&ending->mutex);
    if (left)
        ending_free(ending);
}

static bool ending_wait(struct communicator_end *ending)
{
    mutex_lock(&ending->mutex);
    while (!ending->begun)
        cond_wait(&ending->cond, &ending->mutex);
    while (!ending->done && cond_wait_until(&ending->cond, &ending->mutex, ending->deadline_ms))
        ;
    const bool done = ending->done;
    ending->left = !done;
    if (!done)
        (void)pthread_detach(ending->thread.id);
    mutex_unlock(&ending->mutex);
    return done;
}

bool communicator_end(struct communicator *communicator, bool in_order, uint64_t most_ms)
{
    struct communicator_end *ending = communicator->ending;
    ending->communicator = communicator;
    ending->in_order = in_order && communicator->state == COMMUNICATOR_STANDS;
    ending->patience_ms = clock_now_ms() + most_ms / 2;
    ending->deadline_ms = clock_now_ms() + most_ms;
    mutex_init(&ending->mutex);
    cond_init(&ending->cond);
    if (thread_start(&ending->thread, "lockstep-nccl", ending_run, ending) != 0) {
        ending_free_communicator(ending); // A communicator that is not ended may hang others.
        ending_free(ending);
        return true;
    }
    if (!ending_wait(ending))
        return false;
    thread_join(&ending->thread);
    ending_free(ending);
    return true;
}
