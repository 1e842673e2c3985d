// SPDX-License-Identifier: Apache-2.0
//
// Memory that the library gives to its trainer: blocks for any tensor, and memory for gradients in
// the order in which they travel. Also the functions that move a parameter. Nothing here runs
// inside a step. Trainer.
//
// If ranks may share memory and the kernel supports it, the memory lies in regions
// (worker/memory/regions.h); arenas (worker/memory/arenas.h) put several small blocks into one
// region. Otherwise the memory is private pages. regions_find tells the two apart.

#include "worker/api/memory.h"

#include "worker/kernels/kernels.h"
#include "worker/session/module/calls.h"
#include "worker/session/module/owners.h"
#include "worker/session/module/places.h"
#include "worker/session/module/replicas.h"
#include "worker/session/module/residency.h"
#include "worker/session/module/sets.h"
#include "worker/session/session.h"
#include "worker/support/error.h"
#include "worker/transport/wait.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// Gradients of different buckets share no cache line.
#define MEMORY_BUCKET_ALIGN 64

// The size of a huge page: smaller blocks cannot have one.
#define MEMORY_HUGE_BYTES (2 * 1024 * 1024)

// Maps private pages: they are aligned and zero, and use no memory until they are accessed. With
// bytes 0 maps one page that must not be accessed.
static int memory_map(size_t bytes, void **memory)
{
    const int access = bytes == 0 ? PROT_NONE : PROT_READ | PROT_WRITE;
    void *pages = mmap(NULL, bytes == 0 ? 1 : bytes, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *memory = NULL;
    if (pages == MAP_FAILED)
        return error_set(LOCKSTEP_E_SYSTEM, "cannot allocate %zu bytes: %s", bytes,
                         strerror(errno));
    // With huge pages a pass over a large block takes a third less time.
    if (bytes >= MEMORY_HUGE_BYTES)
        (void)madvise(pages, bytes, MADV_HUGEPAGE);
    *memory = pages;
    return 0;
}

static void memory_unmap(void *memory, size_t bytes)
{
    munmap(memory, bytes == 0 ? 1 : bytes);
}

void memory_share(struct lockstep_session *session)
{
    if (session->config.transport == LOCKSTEP_TRANSPORT_AUTO)
        session->memory.regions = regions_open();
    session->memory.arenas.regions = session->memory.regions;
}

static bool memory_is_small(size_t bytes)
{
    return bytes > 0 && bytes <= ARENA_BLOCK_BYTES;
}

// Takes memory out of a region. False: shared memory is not available.
static bool memory_get_shared(struct lockstep_session *session, size_t bytes, void **memory)
{
    if (!session->memory.regions)
        return false;
    return memory_is_small(bytes) ? arenas_get(&session->memory.arenas, bytes, memory) == 0
                                  : regions_make(session->memory.regions, bytes, memory) == 0;
}

static int memory_get(struct lockstep_session *session, size_t bytes, void **memory)
{
    if (!memory_get_shared(session, bytes, memory))
        return memory_map(bytes, memory);
    transport_wake(session->transport); // The driver announces the region to ranks on this host.
    return 0;
}

static bool memory_put_shared(struct lockstep_session *session, void *memory, size_t bytes)
{
    if (!session->memory.regions)
        return false;
    return memory_is_small(bytes) ? arenas_put(&session->memory.arenas, memory, bytes)
                                  : regions_free(session->memory.regions, memory) == 0;
}

static void memory_put(struct lockstep_session *session, void *memory, size_t bytes)
{
    if (memory && !memory_put_shared(session, memory, bytes))
        memory_unmap(memory, bytes);
}

static bool memory_inside(const void *memory, const void *block, size_t bytes)
{
    return block && (const char *)memory >= (const char *)block &&
           (const char *)memory < (const char *)block + bytes;
}

// ---- Blocks ------------------------------------------------------------------------------------

int lockstep_alloc(lockstep_session *session, size_t bytes, void **memory)
{
    struct memory_block *block;
    int status = session_check(session);
    if (memory)
        *memory = NULL;
    if (status < 0)
        return status;
    if (!memory)
        return error_set(LOCKSTEP_E_INVALID, "nowhere to put the address");
    if (session->memory.count == LOCKSTEP_MAX_ALLOCATIONS)
        return error_set(LOCKSTEP_E_INVALID,
                         "a session has at most %d blocks from lockstep_alloc: free one first",
                         LOCKSTEP_MAX_ALLOCATIONS);
    block = calloc(1, sizeof(*block));
    if (!block)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    status = memory_get(session, bytes, &block->memory);
    if (status < 0) {
        free(block);
        return status;
    }
    block->bytes = bytes;
    block->next = session->memory.blocks;
    session->memory.blocks = block;
    session->memory.count++;
    *memory = block->memory;
    return 0;
}

// Removes the block *at from the list and frees it.
static void memory_remove(struct lockstep_session *session, struct memory_block **at)
{
    struct memory_block *block = *at;
    *at = block->next;
    session->memory.count--;
    memory_put(session, block->memory, block->bytes);
    free(block);
}

// True if the parameter has memory that no other parameter has. An empty parameter has none, and a
// shared one has that of its owner, which alone is told of a move.
static bool memory_is_own(const struct lockstep_module *module, uint32_t parameter)
{
    return module->parameters[parameter].elements > 0 && home_is_own(module, parameter);
}

// The first tensor of the module whose memory lies in the block; NULL: none.
static const struct tensor *memory_user(const struct lockstep_module *module,
                                        const struct memory_block *block)
{
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        const struct tensor *tensor = &module->parameters[p];
        const struct gradient *gradient = &module->contributions[0].gradients[p];
        if (memory_is_own(module, p) &&
            (memory_inside(tensor->data, block->memory, block->bytes) ||
             memory_inside(gradient->registered, block->memory, block->bytes)))
            return tensor;
    }
    for (uint32_t i = 0; i < (module->replicas - 1) * module->parameter_count; i++) {
        const struct replica_gradient *replica = &module->contributions[0].replicas[i];
        if (memory_is_own(module, i % module->parameter_count) &&
            (memory_inside(module->replica_data[i], block->memory, block->bytes) ||
             memory_inside(replica->registered, block->memory, block->bytes)))
            return &module->parameters[i % module->parameter_count];
    }
    for (uint32_t b = 0; b < module->buffer_count; b++) {
        if (module->buffers[b].elements > 0 &&
            memory_inside(module->buffers[b].data, block->memory, block->bytes))
            return &module->buffers[b];
    }
    return NULL;
}

// A failure if a collective or a gradient of the open step has borrowed a part of the block.
static int memory_check_lent(struct lockstep_session *session, const struct memory_block *block)
{
    const uintptr_t begin = (uintptr_t)block->memory;
    const uintptr_t end = begin + block->bytes;
    int status = 0;
    mutex_lock(&session->mutex);
    const struct lockstep_work *work = lent_find_locked(session, begin, end);
    if (work)
        status = error_set(LOCKSTEP_E_INVALID,
                           "collective '%s' (use %" PRIu32
                           "), which was not waited for, has borrowed this memory: wait for it "
                           "first",
                           work->name, work->collective.tag.slot + 1);
    mutex_unlock(&session->mutex);
    return status < 0 ? status : places_check_free(session, begin, end);
}

static int memory_check_unused(struct lockstep_session *session, const struct memory_block *block)
{
    for (uint32_t m = 0; m < session->module_count; m++) {
        const struct tensor *tensor = memory_user(session->modules[m], block);
        if (tensor)
            return error_set(
                LOCKSTEP_E_INVALID,
                "'%s' of module '%s' lies in this memory: move it, or close the module",
                tensor->name, session->modules[m]->name);
    }
    return memory_check_lent(session, block);
}

int lockstep_free(lockstep_session *session, void *memory)
{
    int status = session_check(session);
    if (status < 0)
        return status;
    for (struct memory_block **at = &session->memory.blocks; *at; at = &(*at)->next) {
        if ((*at)->memory != memory)
            continue;
        status = memory_check_unused(session, *at);
        if (status == 0)
            memory_remove(session, at);
        return status;
    }
    return error_set(LOCKSTEP_E_INVALID, !memory ? "the memory is NULL"
                                                 : "this memory is not from lockstep_alloc of this "
                                                   "session, or it was freed");
}

void memory_fini(struct lockstep_session *session)
{
    while (session->memory.blocks)
        memory_remove(session, &session->memory.blocks);
    arenas_fini(&session->memory.arenas);
    regions_close(session->memory.regions);
}

// ---- Gradients ---------------------------------------------------------------------------------

// A failure inside a step or a window: gradients that travel or accumulate cannot move.
static int memory_check_still(struct lockstep_module *module)
{
    const int status = module_check(module);
    if (status < 0)
        return status;
    if (module->session->step.is_open || module->session->step.window_open)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': memory is placed and moved outside a step and a window that "
                         "accumulates",
                         module->name);
    return 0;
}

static void memory_set_gradient(struct lockstep_module *module, uint32_t parameter, void *memory)
{
    module->contributions[0].gradients[parameter].registered = memory;
    module->contributions[0].gradients[parameter].memory = memory;
}

static size_t memory_align(size_t bytes)
{
    return (bytes + MEMORY_BUCKET_ALIGN - 1) / MEMORY_BUCKET_ALIGN * MEMORY_BUCKET_ALIGN;
}

// Registers the place of one gradient at block + used, unless block is NULL. An empty gradient is
// at the block's beginning, because behind the last gradient other memory may begin. Returns the
// bytes used then.
static size_t memory_place_one(struct lockstep_module *module, uint32_t parameter, char *block,
                               size_t used)
{
    const struct bucket_parameter *shape = &module->shapes[parameter];
    if (block)
        memory_set_gradient(module, parameter, shape->elements == 0 ? block : block + used);
    return used + shape->elements * dtype_size(shape->dtype);
}

// Computes where gradients lie in a block: those of a bucket side by side, in the order of the
// layout in force. Behind them are those that a later step may train and that are in no bucket yet.
// Registers these addresses, unless block is NULL. Returns the bytes needed; the value is above
// INT64_MAX if the gradients do not fit in memory.
static size_t memory_place(struct lockstep_module *module, char *block)
{
    const struct bucket_layout *layout = &module->layout;
    size_t used = 0;
    for (uint32_t b = 0; b < layout->bucket_count && used <= (size_t)INT64_MAX; b++) {
        const struct bucket *bucket = &layout->buckets[b];
        used = memory_align(used);
        for (uint32_t i = 0; i < bucket->count; i++)
            used = memory_place_one(module, layout->order[bucket->first + i], block, used);
    }
    for (uint32_t p = 0; p < module->parameter_count && used <= (size_t)INT64_MAX; p++) {
        if (!module->shapes[p].trainable && sets_may_train(module, p))
            used = memory_place_one(module, p, block, memory_align(used));
    }
    return used;
}

// True if memory_place has a place for the parameter's gradient.
static bool memory_is_placed(const struct lockstep_module *module, uint32_t parameter)
{
    return module->shapes[parameter].trainable || sets_may_train(module, parameter);
}

// Forgets the addresses of all gradients in the module's previous block. A frozen parameter may
// have a gradient there, and gets no address in the new block.
static void memory_forget_gradients(struct lockstep_module *module)
{
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        if (memory_inside(module->contributions[0].gradients[p].registered, module->gradient_memory,
                          module->gradient_memory_bytes))
            memory_set_gradient(module, p, NULL);
    }
}

void memory_free_gradients(struct lockstep_module *module)
{
    memory_put(module->session, module->gradient_memory, module->gradient_memory_bytes);
    module->gradient_memory = NULL;
}

// A failure if a gradient of the module has to be on a device: the block is host memory.
static int memory_check_place(const struct lockstep_module *module, const void *block)
{
    int status = 0;
    for (uint32_t p = 0; p < module->parameter_count && status == 0 && module->session->started;
         p++)
        if (memory_is_placed(module, p))
            status =
                residency_check_gradient(module, p, &(struct passed_gradient){.memory = block});
    return status;
}

int lockstep_module_gradients(lockstep_module *module, void **gradients, uint32_t count)
{
    void *block;
    size_t bytes;
    int status = memory_check_still(module);
    if (status < 0)
        return status;
    if (count != module->parameter_count)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s' has %" PRIu32 " parameters, and count is %" PRIu32,
                         module->name, module->parameter_count, count);
    if (!gradients && count > 0)
        return error_set(LOCKSTEP_E_INVALID, "module '%s': nowhere to put the addresses",
                         module->name);
    bytes = memory_place(module, NULL);
    status = memory_get(module->session, bytes, &block);
    if (status == 0)
        status = memory_check_place(module, block);
    if (status < 0) {
        memory_put(module->session, block, bytes);
        return status;
    }
    memory_forget_gradients(module);
    memory_free_gradients(module);
    module->gradient_memory = block;
    module->gradient_memory_bytes = bytes;
    memory_place(module, block);
    module->session->places.moved = true;
    for (uint32_t p = 0; p < count; p++)
        gradients[p] =
            memory_is_placed(module, p) ? module->contributions[0].gradients[p].registered : NULL;
    for (uint32_t p = 0; p < count; p++) {
        const struct home *home = &module->homes[p];
        if (home->module == module && home->parameter != p)
            gradients[p] = gradients[home->parameter];
    }
    return 0;
}

// ---- Moving ------------------------------------------------------------------------------------

int lockstep_parameter_move(lockstep_module *module, uint32_t parameter, void *data, void *gradient)
{
    int status = memory_check_still(module);
    if (status < 0)
        return status;
    if (parameter >= module->parameter_count)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s' has %" PRIu32 " parameters; there is no number %" PRIu32,
                         module->name, module->parameter_count, parameter);
    if (gradient && module->parameters[parameter].ignored)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' is ignored and has no gradient", module->name,
                         module->parameters[parameter].name);
    if (!home_is_own(module, parameter)) {
        const struct home *home = &module->homes[parameter];
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' is shared: move parameter '%s' of module "
                         "'%s', which owns it",
                         module->name, module->parameters[parameter].name,
                         home->module->parameters[home->parameter].name, home->module->name);
    }
    status = residency_move(module, parameter, data, gradient);
    if (status < 0)
        return status;
    if (data)
        module->parameters[parameter].data = data;
    owner_move(module, parameter);
    memory_set_gradient(module, parameter, gradient);
    module->session->places.moved = true;
    return 0;
}

int lockstep_buffer_move(lockstep_module *module, uint32_t buffer, void *data)
{
    struct tensor *tensor;
    int status = memory_check_still(module);
    if (status < 0)
        return status;
    if (buffer >= module->buffer_count)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s' has %" PRIu32 " buffers; there is no number %" PRIu32,
                         module->name, module->buffer_count, buffer);
    tensor = &module->buffers[buffer];
    if (!data && tensor->elements > 0)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': buffer '%s' has %" PRIu64 " elements and data NULL",
                         module->name, tensor->name, tensor->elements);
    status = residency_move_buffer(module, buffer, data);
    if (status < 0)
        return status;
    tensor->data = data;
    module->session->places.moved = true;
    return 0;
}
