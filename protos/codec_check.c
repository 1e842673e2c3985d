// SPDX-License-Identifier: Apache-2.0
//
// Which control messages are allowed: every bound of limits.h and every enum of types.h, checked on
// plain structs. Encoders ask before they write and decoders after they read, so a message that one
// side may send is a message that the other side takes. Pure functions, any thread.
//
// Answers: what does not fit its array is CODEC_TOO_LONG, a number that cannot be meant is
// CODEC_INVALID. Two things are not judged here: whether the sender may say this now, which is the
// cores' business, and the numbers of a hello, because the coordinator refuses those with a
// sentence that tells people what to change.

#include "protos/codec_check.h"

#include "protos/codec.h"
#include "protos/codec_await.h"
#include "protos/codec_internal.h"
#include "protos/topology.h"

#include <string.h>

// The session, what it has loaded, its modules, their parameters and buffers.
#define CHECK_MANIFEST_ITEMS (2 + LOCKSTEP_MAX_MODULES + LOCKSTEP_MAX_PARAMETERS)

// The bytes of the character at text, which has `left` more bytes, or 0 when it is none. The range
// of the second byte depends on the first: this keeps out overlong forms, surrogates and what is
// above U+10FFFF (The Unicode Standard, table 3-7).
static size_t check_character(const uint8_t *text, size_t left)
{
    const uint8_t first = text[0];
    uint8_t low = 0x80;
    uint8_t high = 0xbf;

    if (first < 0x80)
        return 1;
    if (first < 0xc2 || first > 0xf4)
        return 0;
    if (first == 0xe0)
        low = 0xa0;
    else if (first == 0xed)
        high = 0x9f;
    else if (first == 0xf0)
        low = 0x90;
    else if (first == 0xf4)
        high = 0x8f;

    const size_t size = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (left < size || text[1] < low || text[1] > high)
        return 0;
    for (size_t i = 2; i < size; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    }
    return size;
}

void codec_check_text(const char *text, size_t bytes, struct codec_fault *fault)
{
    const char *end = memchr(text, '\0', bytes);
    if (!end) {
        codec_fault_set(fault, CODEC_TOO_LONG, "a string has no end within its bound");
        return;
    }
    const size_t length = (size_t)(end - text);
    for (size_t at = 0; at < length;) {
        const size_t size = check_character((const uint8_t *)text + at, length - at);
        if (size == 0) {
            codec_fault_set(fault, CODEC_INVALID, "a string is not UTF-8");
            return;
        }
        at += size;
    }
}

static void check_number(uint64_t value, uint64_t max, const char *detail,
                         struct codec_fault *fault)
{
    if (value > max)
        codec_fault_set(fault, CODEC_INVALID, detail);
}

static void check_count(uint32_t count, uint32_t max, const char *detail, struct codec_fault *fault)
{
    if (count > max)
        codec_fault_set(fault, CODEC_TOO_LONG, detail);
}

static void check_rank(uint32_t rank, struct codec_fault *fault)
{
    check_number(rank, LOCKSTEP_MAX_WORLD - 1, "a rank is above LOCKSTEP_MAX_WORLD", fault);
}

static void check_dtype(enum dtype dtype, struct codec_fault *fault)
{
    check_number((uint32_t)dtype, DTYPE_UINT8, "a dtype is unknown", fault);
}

static void check_halt_kind(enum halt_kind kind, struct codec_fault *fault)
{
    if (kind == HALT_NONE || (uint32_t)kind > HALT_TUNING)
        codec_fault_set(fault, CODEC_INVALID, "the kind of a halt is missing or unknown");
}

static void check_algorithm(uint32_t algorithm, struct codec_fault *fault)
{
    check_number(algorithm, ALGORITHM_BY_SIZE, "an algorithm is unknown", fault);
}

static void check_module(uint32_t module, struct codec_fault *fault)
{
    check_number(module, LOCKSTEP_MAX_MODULES - 1, "a module is above LOCKSTEP_MAX_MODULES", fault);
}

static void check_call(uint32_t call, struct codec_fault *fault)
{
    check_number(call, LOCKSTEP_MAX_CALLS - 1, "a call is above LOCKSTEP_MAX_CALLS", fault);
}

static void check_call_id(const struct call_id *id, struct codec_fault *fault)
{
    check_module(id->module, fault);
    check_call(id->call, fault);
}

static void check_slot(const struct slot_id *slot, struct codec_fault *fault)
{
    check_module(slot->module, fault);
    check_call(slot->call, fault);
    check_number(slot->bucket, LOCKSTEP_MAX_BUCKETS - 1, "a bucket is above LOCKSTEP_MAX_BUCKETS",
                 fault);
}

// Items [first, first + count) of total.
static void check_part(uint32_t first, uint32_t count, uint32_t total, const char *detail,
                       struct codec_fault *fault)
{
    check_number((uint64_t)first + count, total, detail, fault);
}

static void check_layout_part(const struct layout_part *part, struct codec_fault *fault)
{
    check_module(part->module, fault);
    check_count(part->count, LOCKSTEP_LAYOUT_PART, "too many layout words in a part", fault);
    check_number(part->total, LOCKSTEP_MAX_LAYOUT_WORDS,
                 "a layout is above LOCKSTEP_MAX_LAYOUT_WORDS", fault);
    check_part(part->first, part->count, part->total, "a part lies outside its layout", fault);
}

// ---- Worker to coordinator -------------------------------------------------------------------

static void check_hello(const struct up_hello *hello, struct codec_fault *fault)
{
    codec_check_text(hello->job, sizeof(hello->job), fault);
    codec_check_text(hello->host_id, sizeof(hello->host_id), fault);
    codec_check_text(hello->host, sizeof(hello->host), fault);
    codec_check_text(hello->address, sizeof(hello->address), fault);
    check_number((uint32_t)hello->on_failure, FAILURE_CONTINUE, "a failure policy is unknown",
                 fault);
    codec_check_text(hello->device, sizeof(hello->device), fault);
    codec_check_text(hello->gpu.nccl_missing, sizeof(hello->gpu.nccl_missing), fault);
    codec_check_text(hello->gpu_problem, sizeof(hello->gpu_problem), fault);
}

static void check_start(const struct up_start *start, struct codec_fault *fault)
{
    check_number(start->item_count, CHECK_MANIFEST_ITEMS, "a manifest has too many items", fault);
    check_rank(start->root, fault);
}

static void check_manifest_item(const struct manifest_item *item, struct codec_fault *fault)
{
    if ((uint32_t)item->kind < MANIFEST_SESSION || (uint32_t)item->kind > MANIFEST_BUFFER)
        codec_fault_set(fault, CODEC_INVALID, "the kind of a manifest item is missing or unknown");
    check_module(item->module, fault);
    check_dtype(item->dtype, fault);
    check_count(item->dims, LOCKSTEP_MAX_DIMS, "a tensor has too many dimensions", fault);
    codec_check_text(item->name, sizeof(item->name), fault);
    codec_check_text(item->value, sizeof(item->value), fault);
}

static void check_manifest_part(const struct up_manifest_part *part, struct codec_fault *fault)
{
    check_count(part->count, LOCKSTEP_MANIFEST_PART, "too many manifest items in a part", fault);
    check_part(part->first, part->count, CHECK_MANIFEST_ITEMS, "a manifest has too many items",
               fault);
    for (uint32_t i = 0; i < part->count && fault->status == CODEC_OK; i++)
        check_manifest_item(&part->items[i], fault);
}

static void check_wait(const struct up_wait *wait, struct codec_fault *fault)
{
    check_slot(&wait->slot, fault);
    check_count(wait->also_count, LOCKSTEP_MAX_WAITS - 1, "too many waits of a worker", fault);
    for (uint32_t i = 0; i < wait->also_count && fault->status == CODEC_OK; i++)
        check_slot(&wait->also[i], fault);
}

static void check_letter(char letter, struct codec_fault *fault)
{
    if (!(letter >= 'A' && letter <= 'Z') && !(letter >= 'a' && letter <= 'z'))
        codec_fault_set(fault, CODEC_INVALID, "the state of a process is no letter");
}

static void check_place(const struct place *place, struct codec_fault *fault)
{
    check_number(place->count, LOCKSTEP_MAX_SLOTS, "a step is above LOCKSTEP_MAX_SLOTS", fault);
    check_number(place->position, (uint64_t)place->count + 1, "a position lies outside its step",
                 fault);
    if (place->position < place->count)
        check_slot(&place->slot, fault);
    check_number((uint32_t)place->api, API_CLOSE, "a function of the library is unknown", fault);
    check_number(place->module, LOCKSTEP_MAX_MODULES, "a module is above LOCKSTEP_MAX_MODULES",
                 fault);
    check_call(place->call, fault);
}

static void check_heartbeat(const struct up_heartbeat *heartbeat, struct codec_fault *fault)
{
    check_number((uint32_t)heartbeat->activity, ACTIVITY_PAUSED, "an activity is unknown", fault);
    codec_check_text(heartbeat->mark, sizeof(heartbeat->mark), fault);
    codec_check_text(heartbeat->sleeps, sizeof(heartbeat->sleeps), fault);
    codec_check_text(heartbeat->failure, sizeof(heartbeat->failure), fault);
    check_place(&heartbeat->place, fault);
    check_number(heartbeat->flags, PLACE_FLAGS, "a flag of a place is unknown", fault);
    check_number((uint32_t)heartbeat->held, DEVICE_HOLD_NCCL,
                 "what a device is waited for is unknown", fault);
    check_count(heartbeat->link_count, LOCKSTEP_LINKS_NAMED, "too many links", fault);
    for (uint32_t i = 0; i < heartbeat->link_count && fault->status == CODEC_OK; i++)
        check_rank(heartbeat->links[i].rank, fault);
    check_count(heartbeat->mate_count, LOCKSTEP_MATES_NAMED, "too many mates", fault);
    for (uint32_t i = 0; i < heartbeat->mate_count && fault->status == CODEC_OK; i++) {
        check_rank(heartbeat->mates[i].rank, fault);
        check_letter(heartbeat->mates[i].state, fault);
    }
    codec_check_await(&heartbeat->await, fault);
    codec_check_text(heartbeat->collective, sizeof(heartbeat->collective), fault);
    check_count(heartbeat->overdue_count, LOCKSTEP_OVERDUE_NAMED, "too many overdue collectives",
                fault);
}

// Calls that are named are in the order of their positions, which are lacking.
static void check_lacking(const struct up_blocked *blocked, struct codec_fault *fault)
{
    uint64_t lowest = 0;
    for (uint32_t i = 0; i < blocked->lack_count && fault->status == CODEC_OK; i++) {
        const uint32_t position = blocked->lacking[i].position;
        if (position < lowest || position >= LOCKSTEP_MAX_SLOTS ||
            (blocked->lacks.words[position / 64] >> position % 64 & 1) == 0)
            codec_fault_set(fault, CODEC_INVALID, "the calls of a blocked worker are no lacks");
        lowest = (uint64_t)position + 1;
        check_call_id(&blocked->lacking[i].call, fault);
    }
}

static void check_blocked(const struct up_blocked *blocked, struct codec_fault *fault)
{
    check_count(blocked->wait_count, LOCKSTEP_MAX_WAITS, "too many waits of a worker", fault);
    for (uint32_t i = 0; i < blocked->wait_count && fault->status == CODEC_OK; i++)
        check_call_id(&blocked->waits[i].call, fault);
    check_count(blocked->lack_count, LOCKSTEP_LACKS_NAMED, "too many lacks of a worker", fault);
    check_lacking(blocked, fault);
}

static void check_replan(const struct up_replan *replan, struct codec_fault *fault)
{
    check_count(replan->call_count, LOCKSTEP_REPLAN_CALLS, "too many calls of a plan", fault);
    for (uint32_t i = 0; i < replan->call_count && fault->status == CODEC_OK; i++)
        check_call_id(&replan->calls[i], fault);
}

static void check_modules(const struct up_modules *modules, struct codec_fault *fault)
{
    check_number(modules->total, LOCKSTEP_MAX_MODULES, "modules are above LOCKSTEP_MAX_MODULES",
                 fault);
    check_count(modules->count, LOCKSTEP_NAMES_PART, "too many names of modules in a part", fault);
    check_part(modules->first, modules->count, modules->total, "a part lies outside the modules",
               fault);
    for (uint32_t i = 0; i < modules->count && fault->status == CODEC_OK; i++)
        codec_check_text(modules->names[i], sizeof(modules->names[i]), fault);
}

// ---- Answers ---------------------------------------------------------------------------------

static void check_answer_place(const struct answer_place *place, struct codec_fault *fault)
{
    codec_check_text(place->phase, sizeof(place->phase), fault);
    codec_check_text(place->doing, sizeof(place->doing), fault);
    check_count(place->missing_count, LOCKSTEP_MISSING_NAMED, "too many missing gradients", fault);
    if (place->missing_count > place->missing_total)
        codec_fault_set(fault, CODEC_INVALID, "more gradients are named than are missing");
    for (uint32_t i = 0; i < place->missing_count && fault->status == CODEC_OK; i++)
        codec_check_text(place->missing[i], sizeof(place->missing[i]), fault);
    codec_check_text(place->awaited, sizeof(place->awaited), fault);
}

static void check_answer_threads(const struct answer_threads *threads, struct codec_fault *fault)
{
    check_count(threads->count, LOCKSTEP_THREADS_PART, "too many threads in a part", fault);
    for (uint32_t i = 0; i < threads->count && fault->status == CODEC_OK; i++) {
        const struct stack_thread *thread = &threads->threads[i];
        codec_check_text(thread->name, sizeof(thread->name), fault);
        codec_check_text(thread->wchan, sizeof(thread->wchan), fault);
        if (thread->state != '\0')
            check_letter(thread->state, fault);
        check_number((uint32_t)thread->how, STACK_NOT_ASKED, "how a stack was taken is unknown",
                     fault);
        check_number((uint32_t)thread->awaits, AWAITS_END, "what a thread waits for is unknown",
                     fault);
        codec_check_text(thread->owner_name, sizeof(thread->owner_name), fault);
    }
}

static void check_answer_frames(const struct answer_frames *frames, struct codec_fault *fault)
{
    check_count(frames->count, LOCKSTEP_FRAMES_PART, "too many frames in a part", fault);
    for (uint32_t i = 0; i < frames->count && fault->status == CODEC_OK; i++) {
        const struct stack_frame *frame = &frames->frames[i];
        check_number(frame->thread, LOCKSTEP_STACK_THREADS - 1,
                     "a thread is above LOCKSTEP_STACK_THREADS", fault);
        codec_check_text(frame->object, sizeof(frame->object), fault);
        codec_check_text(frame->symbol, sizeof(frame->symbol), fault);
    }
}

static void check_answer(const struct up_answer *answer, struct codec_fault *fault)
{
    switch (answer->kind) {
    case ANSWER_PLACE:
        check_answer_place(&answer->u.place, fault);
        return;
    case ANSWER_THREADS:
        check_answer_threads(&answer->u.threads, fault);
        return;
    case ANSWER_FRAMES:
        check_answer_frames(&answer->u.frames, fault);
        return;
    case ANSWER_EVENTS:
        check_count(answer->u.events.count, LOCKSTEP_EVENTS_PART, "too many events in a part",
                    fault);
        return;
    }
    codec_fault_set(fault, CODEC_INVALID, "the kind of an answer is missing or unknown");
}

static void check_fail(const struct up_fail *fail, struct codec_fault *fault)
{
    check_halt_kind(fail->kind, fault);
    codec_check_text(fail->text, sizeof(fail->text), fault);
    codec_check_text(fail->name, sizeof(fail->name), fault);
    codec_check_text(fail->form, sizeof(fail->form), fault);
}

// ---- What a worker may say -------------------------------------------------------------------

void codec_check_up(const struct up_message *message, struct codec_fault *fault)
{
    switch (message->kind) {
    case UP_HELLO:
        check_hello(&message->u.hello, fault);
        return;
    case UP_START:
        check_start(&message->u.start, fault);
        return;
    case UP_MANIFEST_PART:
        check_manifest_part(&message->u.manifest_part, fault);
        return;
    case UP_READY:
        check_slot(&message->u.ready.slot, fault);
        check_dtype(message->u.ready.dtype, fault);
        return;
    case UP_WAIT:
        check_wait(&message->u.wait, fault);
        return;
    case UP_LAYOUT_PART:
        check_layout_part(&message->u.layout_part, fault);
        return;
    case UP_END:
        return;
    case UP_HEARTBEAT:
        check_heartbeat(&message->u.heartbeat, fault);
        return;
    case UP_FAIL:
        check_fail(&message->u.fail, fault);
        return;
    case UP_LOST:
        check_rank(message->u.lost.rank, fault);
        codec_check_text(message->u.lost.text, sizeof(message->u.lost.text), fault);
        return;
    case UP_LEAVE:
        codec_check_text(message->u.leave.reason, sizeof(message->u.leave.reason), fault);
        codec_check_text(message->u.leave.cause, sizeof(message->u.leave.cause), fault);
        return;
    case UP_LINKS:
        check_algorithm(message->u.links.wish, fault);
        return;
    case UP_BLOCKED:
        check_blocked(&message->u.blocked, fault);
        return;
    case UP_MODULES:
        check_modules(&message->u.modules, fault);
        return;
    case UP_ANSWER:
        check_answer(&message->u.answer, fault);
        return;
    case UP_REPLAN:
        check_replan(&message->u.replan, fault);
        return;
    case UP_NONE:
        break;
    }
    codec_fault_set(fault, CODEC_INVALID, "the kind of the message is missing or unknown");
}

// ---- Coordinator to worker -------------------------------------------------------------------

static void check_query(const struct down_query *query, struct codec_fault *fault)
{
    codec_check_await_keys(query->keys, query->key_count, fault);
    if (query->form && (query->key_count != 1 || query->keys[0].kind != AWAIT_COLLECTIVE))
        codec_fault_set(fault, CODEC_INVALID, "a query about a collective does not say which");
}

static void check_refused(const struct down_refused *refused, struct codec_fault *fault)
{
    if (refused->refusal == REFUSAL_NONE || (uint32_t)refused->refusal > REFUSAL_DRAINING)
        codec_fault_set(fault, CODEC_INVALID, "a refusal is missing or unknown");
    codec_check_text(refused->text, sizeof(refused->text), fault);
}

// Peers are sorted by rank, below the world size and without the receiver.
static void check_peers(const struct down_generation *generation, struct codec_fault *fault)
{
    uint64_t lowest = 0;
    for (uint32_t i = 0; i < generation->peer_count && fault->status == CODEC_OK; i++) {
        const struct peer *peer = &generation->peers[i];
        if (peer->rank < lowest || peer->rank >= generation->world_size ||
            peer->rank == generation->rank)
            codec_fault_set(fault, CODEC_INVALID,
                            "peers are not sorted, not in the world or the receiver itself");
        lowest = (uint64_t)peer->rank + 1;
        codec_check_text(peer->address, sizeof(peer->address), fault);
        codec_check_text(peer->host, sizeof(peer->host), fault);
    }
}

static bool check_is_peer(const struct down_generation *generation, uint32_t rank)
{
    for (uint32_t i = 0; i < generation->peer_count; i++)
        if (generation->peers[i].rank == rank)
            return true;
    return false;
}

// Waves, rings and pairs need a link to each of them.
static void check_neighbours(const struct down_generation *generation, struct codec_fault *fault)
{
    uint32_t ranks[LOCKSTEP_MAX_NEIGHBOURS];
    const uint32_t count = topology_neighbours(generation->rank, generation->world_size, ranks);
    for (uint32_t i = 0; i < count; i++)
        if (!check_is_peer(generation, ranks[i]))
            codec_fault_set(fault, CODEC_INVALID, "a neighbour of the receiver is no peer");
}

// Frames carry whole elements, of 8 bytes at most.
static void check_chunk_bytes(uint32_t chunk_bytes, struct codec_fault *fault)
{
    check_number(chunk_bytes, LOCKSTEP_FRAME_BYTES, "chunk_bytes is above LOCKSTEP_FRAME_BYTES",
                 fault);
    if (chunk_bytes < LOCKSTEP_CHUNK_LEAST_BYTES || chunk_bytes % LOCKSTEP_CHUNK_LEAST_BYTES != 0)
        codec_fault_set(fault, CODEC_INVALID, "chunk_bytes is no multiple of the largest element");
}

// Mates are ascending, the receiver is where `local` says, and all others are peers.
static bool check_mates(const struct down_generation *generation)
{
    const struct locality *locality = &generation->locality;
    for (uint32_t i = 0; i < locality->mate_count; i++) {
        const uint32_t mate = locality->mates[i];
        if (i > 0 && mate <= locality->mates[i - 1])
            return false;
        if (i == locality->local ? mate != generation->rank : !check_is_peer(generation, mate))
            return false;
    }
    return true;
}

// Every other host has a worker at least.
static bool check_host_sizes(const struct down_generation *generation)
{
    const struct locality *locality = &generation->locality;
    if (locality->rings == 0 || locality->rings > locality->mate_count)
        return false;
    if (locality->hosts == 1)
        return locality->mate_count == generation->world_size;
    return locality->mate_count + locality->hosts - 1 <= generation->world_size;
}

static bool check_hosts(const struct down_generation *generation)
{
    static const struct locality none;
    const struct locality *locality = &generation->locality;
    if (locality->hosts == 0)
        return memcmp(locality, &none, sizeof(none)) == 0;
    if (locality->hosts > generation->world_size || locality->host >= locality->hosts ||
        locality->local >= locality->mate_count || !check_host_sizes(generation) ||
        !check_mates(generation))
        return false;
    if (locality->hosts == 1 || locality->local >= locality->rings)
        return locality->successor == 0 && locality->predecessor == 0;
    return check_is_peer(generation, locality->successor) &&
           check_is_peer(generation, locality->predecessor);
}

static void check_locality(const struct down_generation *generation, struct codec_fault *fault)
{
    check_count(generation->locality.mate_count, LOCKSTEP_MAX_MATES, "too many mates", fault);
    if (fault->status == CODEC_OK && !check_hosts(generation))
        codec_fault_set(fault, CODEC_INVALID, "the hosts are not those of such a world");
}

// Only ranks of the world have a GPU.
static void check_gpus(const struct down_generation *generation, struct codec_fault *fault)
{
    for (uint32_t rank = generation->world_size; rank < LOCKSTEP_MAX_WORLD; rank++)
        if ((generation->gpus[rank / 64] >> rank % 64 & 1) != 0)
            codec_fault_set(fault, CODEC_INVALID, "a rank with a GPU is not in the world");
}

static void check_generation(const struct down_generation *generation, struct codec_fault *fault)
{
    check_number(generation->world_size, LOCKSTEP_MAX_WORLD, "a world is above LOCKSTEP_MAX_WORLD",
                 fault);
    if (generation->rank >= generation->world_size)
        codec_fault_set(fault, CODEC_INVALID, "the rank is not below the world size");
    if (generation->local_rank >= generation->local_size ||
        generation->local_size > generation->world_size)
        codec_fault_set(fault, CODEC_INVALID, "the local rank or size is not in the world");
    if (generation->core_ranks > generation->world_size)
        codec_fault_set(fault, CODEC_INVALID, "more ranks share cores than are in the world");
    check_chunk_bytes(generation->chunk_bytes, fault);
    check_count(generation->peer_count, LOCKSTEP_MAX_NEIGHBOURS, "too many peers", fault);
    if (fault->status == CODEC_OK)
        check_peers(generation, fault);
    if (fault->status == CODEC_OK)
        check_neighbours(generation, fault);
    if (fault->status == CODEC_OK)
        check_locality(generation, fault);
    if (fault->status == CODEC_OK)
        check_gpus(generation, fault);
}

static void check_manifest_request(const struct down_manifest_request *request,
                                   struct codec_fault *fault)
{
    check_number(request->count, LOCKSTEP_MANIFEST_PART, "a request for too many manifest items",
                 fault);
    check_part(request->first, request->count, CHECK_MANIFEST_ITEMS,
               "a request for manifest items that cannot be", fault);
}

static void check_plan_part(const struct down_plan_part *part, struct codec_fault *fault)
{
    check_count(part->slot_count, LOCKSTEP_PLAN_PART, "too many slots in a part of a plan", fault);
    check_number(part->slot_total, LOCKSTEP_MAX_SLOTS, "a plan is above LOCKSTEP_MAX_SLOTS", fault);
    check_part(part->slot_first, part->slot_count, part->slot_total, "a part lies outside its plan",
               fault);
    if (part->last != (part->slot_first + part->slot_count == part->slot_total))
        codec_fault_set(fault, CODEC_INVALID,
                        "a part that ends its plan is not the last, or another one is");
    for (uint32_t i = 0; i < part->slot_count && fault->status == CODEC_OK; i++) {
        check_slot(&part->slots[i].id, fault);
        check_algorithm(part->slots[i].algorithm, fault);
    }
}

static void check_halt(const struct down_halt *halt, struct codec_fault *fault)
{
    check_halt_kind(halt->kind, fault);
    if (halt->has_rank)
        check_rank(halt->rank, fault);
    codec_check_text(halt->text, sizeof(halt->text), fault);
    codec_check_text(halt->cause, sizeof(halt->cause), fault);
}

static void check_inspect(const struct down_inspect *inspect, struct codec_fault *fault)
{
    if (inspect->what == 0 || inspect->what > INSPECT_ALL)
        codec_fault_set(fault, CODEC_INVALID, "an inspection asks for nothing that is known");
}

void codec_check_down(const struct down_message *message, struct codec_fault *fault)
{
    switch (message->kind) {
    case DOWN_WELCOME:
    case DOWN_VERIFIED:
        return;
    case DOWN_REFUSED:
        check_refused(&message->u.refused, fault);
        return;
    case DOWN_GENERATION:
        check_generation(&message->u.generation_start, fault);
        return;
    case DOWN_MANIFEST_REQUEST:
        check_manifest_request(&message->u.manifest_request, fault);
        return;
    case DOWN_GRANT:
        check_slot(&message->u.grant.slot, fault);
        return;
    case DOWN_LAYOUT_PART:
        check_layout_part(&message->u.layout_part, fault);
        return;
    case DOWN_PLAN_PART:
        check_plan_part(&message->u.plan_part, fault);
        return;
    case DOWN_HALT:
        check_halt(&message->u.halt, fault);
        return;
    case DOWN_TUNING:
        check_algorithm(message->u.tuning.wish, fault);
        return;
    case DOWN_QUERY:
        check_query(&message->u.query, fault);
        return;
    case DOWN_INSPECT:
        check_inspect(&message->u.inspect, fault);
        return;
    case DOWN_NONE:
        break;
    }
    codec_fault_set(fault, CODEC_INVALID, "the kind of the message is missing or unknown");
}
