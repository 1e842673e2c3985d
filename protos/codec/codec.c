// SPDX-License-Identifier: Apache-2.0
//
// The part of the codec that both directions share: the calls of nanopb and the meaning of its
// errors, strings, the common messages, and health checks. No state. Any thread.
//
// nanopb is Debian's package: its sizes have 16 bits and it does not check UTF-8. All fields have a
// fixed size, so nanopb allocates nothing.

#include "protos/codec/codec.h"

#include "protos/codec/check.h"
#include "protos/codec/internal.h"

#include "protos/control.pb.h"
#include "protos/health.pb.h"

#include <pb_decode.h>
#include <pb_encode.h>
#include <string.h>

// Checks at compile time that a field has the same size in both structs. The check fails if an
// .options file is wrong, or if the generator did not find it.
#define SAME_SIZE(wire_type, wire_field, plain_type, plain_field) \
    static_assert(sizeof(((wire_type *)NULL)->wire_field) == \
                      sizeof(((plain_type *)NULL)->plain_field), \
                  #wire_type "." #wire_field " has another size than " #plain_type)

SAME_SIZE(wire_UpHello, job, struct up_hello, job);
SAME_SIZE(wire_UpHello, uuid.bytes, struct up_hello, uuid.bytes);
SAME_SIZE(wire_UpHello, host_id, struct up_hello, host_id);
SAME_SIZE(wire_UpHello, host, struct up_hello, host);
SAME_SIZE(wire_UpHello, address, struct up_hello, address);
SAME_SIZE(wire_UpHello, device, struct up_hello, device);
SAME_SIZE(wire_UpHello, gpu_problem, struct up_hello, gpu_problem);
SAME_SIZE(wire_Gpu, uuid.bytes, struct gpu, uuid.bytes);
SAME_SIZE(wire_Gpu, nccl_missing, struct gpu, nccl_missing);
SAME_SIZE(wire_ManifestItem, name, struct manifest_item, name);
SAME_SIZE(wire_ManifestItem, value, struct manifest_item, value);
SAME_SIZE(wire_ManifestItem, shape, struct manifest_item, shape);
SAME_SIZE(wire_ManifestItem, strides, struct manifest_item, strides);
SAME_SIZE(wire_LayoutPart, words, struct layout_part, words);
SAME_SIZE(wire_UpHeartbeat, mark, struct up_heartbeat, mark);
SAME_SIZE(wire_UpHeartbeat, sleeps, struct up_heartbeat, sleeps);
SAME_SIZE(wire_UpHeartbeat, failure, struct up_heartbeat, failure);
SAME_SIZE(wire_UpHeartbeat, metrics, struct up_heartbeat, metrics);
SAME_SIZE(wire_UpHeartbeat, counters, struct up_heartbeat, counters);
SAME_SIZE(wire_MetricState, name, struct metric_state, name);
SAME_SIZE(wire_CounterState, name, struct counter_state, name);
SAME_SIZE(wire_UpFail, text, struct up_fail, text);
SAME_SIZE(wire_UpFail, name, struct up_fail, name);
SAME_SIZE(wire_UpFail, form, struct up_fail, form);
SAME_SIZE(wire_UpLost, text, struct up_lost, text);
SAME_SIZE(wire_UpLeave, reason, struct up_leave, reason);
SAME_SIZE(wire_BlockedWait, needs, struct blocked_wait, needs);
SAME_SIZE(wire_UpBlocked, lacks, struct up_blocked, lacks);
SAME_SIZE(wire_UpModules, names, struct up_modules, names);
SAME_SIZE(wire_StackThread, name, struct stack_thread, name);
SAME_SIZE(wire_StackThread, state, struct stack_thread, state);
SAME_SIZE(wire_StackThread, wchan, struct stack_thread, wchan);
SAME_SIZE(wire_StackFrame, object, struct stack_frame, object);
SAME_SIZE(wire_StackFrame, symbol, struct stack_frame, symbol);
SAME_SIZE(wire_MateState, state, struct mate_state, state);
SAME_SIZE(wire_TraceEvent, kind, struct trace_event, kind);
SAME_SIZE(wire_TraceEvent, thread, struct trace_event, thread);
SAME_SIZE(wire_TraceEvent, module, struct trace_event, module);
SAME_SIZE(wire_TraceEvent, call, struct trace_event, call);
SAME_SIZE(wire_AnswerPlace, phase, struct answer_place, phase);
SAME_SIZE(wire_AnswerPlace, doing, struct answer_place, doing);
SAME_SIZE(wire_AnswerPlace, missing, struct answer_place, missing);
SAME_SIZE(wire_AnswerPlace, awaited, struct answer_place, awaited);
SAME_SIZE(wire_Locality, mate_pids, struct locality, mate_pids);
SAME_SIZE(wire_Locality, mate_started, struct locality, mate_started);
SAME_SIZE(wire_DownRefused, text, struct down_refused, text);
SAME_SIZE(wire_Peer, address, struct peer, address);
SAME_SIZE(wire_Peer, host, struct peer, host);
SAME_SIZE(wire_DataPort, address, struct data_port, address);
SAME_SIZE(wire_DownGeneration, secret.bytes, struct down_generation, secret);
SAME_SIZE(wire_DownGeneration, gpus, struct down_generation, gpus);
SAME_SIZE(wire_RecordPart, words, struct record_part, words);
SAME_SIZE(wire_DownPrepare, suspects, struct down_prepare, suspects);
SAME_SIZE(wire_DownPrepare, text, struct down_prepare, text);
SAME_SIZE(wire_DownDecision, removed, struct down_decision, removed);
SAME_SIZE(wire_Lineage, members, struct lineage, members);
SAME_SIZE(wire_Resume, dead, struct up_resume, dead);
SAME_SIZE(wire_DownDecision, dead, struct down_decision, dead);
SAME_SIZE(wire_DownDecision, text, struct down_decision, text);
SAME_SIZE(wire_DownExcluded, text, struct down_excluded, text);
SAME_SIZE(wire_DownHalt, text, struct down_halt, text);
SAME_SIZE(wire_DownHalt, cause, struct down_halt, cause);

// The same for arrays whose elements have different sizes: compares the number of elements.
#define SAME_COUNT(wire_type, field, count) \
    static_assert(sizeof(((wire_type *)NULL)->field) == \
                      (count) * sizeof(((wire_type *)NULL)->field[0]), \
                  #wire_type "." #field " does not have " #count " elements")

SAME_COUNT(wire_UpManifestPart, items, LOCKSTEP_MANIFEST_PART);
SAME_COUNT(wire_UpWait, also, LOCKSTEP_MAX_WAITS - 1);
SAME_COUNT(wire_UpHeartbeat, links, LOCKSTEP_LINKS_NAMED);
SAME_COUNT(wire_UpHeartbeat, mates, LOCKSTEP_MATES_NAMED);
SAME_COUNT(wire_Await, lacks, LOCKSTEP_MAX_AWAITED);
SAME_COUNT(wire_DownQuery, keys, LOCKSTEP_MAX_AWAITED);
SAME_COUNT(wire_UpBlocked, waits, LOCKSTEP_MAX_WAITS);
SAME_COUNT(wire_UpBlocked, lacking, LOCKSTEP_LACKS_NAMED);
SAME_COUNT(wire_UpReplan, calls, LOCKSTEP_REPLAN_CALLS);
SAME_COUNT(wire_UpReach, ranks, LOCKSTEP_REACH_RANKS);
SAME_COUNT(wire_AnswerThreads, threads, LOCKSTEP_THREADS_PART);
SAME_COUNT(wire_AnswerFrames, frames, LOCKSTEP_FRAMES_PART);
SAME_COUNT(wire_AnswerEvents, events, LOCKSTEP_EVENTS_PART);
SAME_COUNT(wire_DownGeneration, peers, LOCKSTEP_MAX_NEIGHBOURS);
SAME_COUNT(wire_DownGeneration, further, LOCKSTEP_MAX_FURTHER_PORTS);
SAME_COUNT(wire_DownAddresses, peers, LOCKSTEP_REACH_RANKS);
SAME_COUNT(wire_Locality, mates, LOCKSTEP_MAX_MATES);
SAME_COUNT(wire_DownPlanPart, slots, LOCKSTEP_PLAN_PART);
SAME_COUNT(health_HealthCheckRequest, service, LOCKSTEP_NAME_BYTES);

static_assert(sizeof(pb_size_t) == 2, "the installed nanopb has 16-bit sizes");
static_assert(wire_Up_size <= LOCKSTEP_MESSAGE_BYTES, "the largest Up fits in a message");
static_assert(wire_Down_size <= LOCKSTEP_MESSAGE_BYTES, "the largest Down fits in a message");
// One of these structs is on the stack while a message is encoded or decoded; codec.h states the
// bound.
static_assert(sizeof(wire_Up) <= 16384 && sizeof(wire_Down) <= 16384, "the stack of a codec call");

#define SAME_VALUE(wire_enum, name) \
    static_assert((int)wire_enum##_##name == (int)(name), #name " has two values")

SAME_VALUE(wire_Dtype, DTYPE_NONE);
SAME_VALUE(wire_Dtype, DTYPE_FLOAT32);
SAME_VALUE(wire_Dtype, DTYPE_FLOAT64);
SAME_VALUE(wire_Dtype, DTYPE_INT32);
SAME_VALUE(wire_Dtype, DTYPE_INT64);
SAME_VALUE(wire_Dtype, DTYPE_FLOAT16);
SAME_VALUE(wire_Dtype, DTYPE_BFLOAT16);
SAME_VALUE(wire_Dtype, DTYPE_UINT8);
SAME_VALUE(wire_Dtype, DTYPE_INT8);
SAME_VALUE(wire_Dtype, DTYPE_INT16);
SAME_VALUE(wire_Dtype, DTYPE_UINT16);
SAME_VALUE(wire_Dtype, DTYPE_UINT32);
SAME_VALUE(wire_Dtype, DTYPE_UINT64);
SAME_VALUE(wire_Dtype, DTYPE_BOOL);
SAME_VALUE(wire_HaltKind, HALT_NONE);
SAME_VALUE(wire_HaltKind, HALT_MANIFEST);
SAME_VALUE(wire_HaltKind, HALT_PHASE);
SAME_VALUE(wire_HaltKind, HALT_ORDER);
SAME_VALUE(wire_HaltKind, HALT_UNPLANNED);
SAME_VALUE(wire_HaltKind, HALT_COLLECTIVE);
SAME_VALUE(wire_HaltKind, HALT_LOST);
SAME_VALUE(wire_HaltKind, HALT_LEFT);
SAME_VALUE(wire_HaltKind, HALT_PROTOCOL);
SAME_VALUE(wire_HaltKind, HALT_LAYOUT);
SAME_VALUE(wire_HaltKind, HALT_TUNING);
SAME_VALUE(wire_HaltKind, HALT_LIMIT);
SAME_VALUE(wire_FailurePolicy, FAILURE_ERROR);
SAME_VALUE(wire_FailurePolicy, FAILURE_CONTINUE);
SAME_VALUE(wire_ManifestKind, MANIFEST_SESSION);
SAME_VALUE(wire_ManifestKind, MANIFEST_MODULE);
SAME_VALUE(wire_ManifestKind, MANIFEST_PARAMETER);
SAME_VALUE(wire_ManifestKind, MANIFEST_BUFFER);
SAME_VALUE(wire_WorkerActivity, ACTIVITY_OUTSIDE);
SAME_VALUE(wire_WorkerActivity, ACTIVITY_OPENING);
SAME_VALUE(wire_WorkerActivity, ACTIVITY_STARTING);
SAME_VALUE(wire_WorkerActivity, ACTIVITY_IN_CALL);
SAME_VALUE(wire_WorkerActivity, ACTIVITY_WAITING);
SAME_VALUE(wire_WorkerActivity, ACTIVITY_PAUSED);
SAME_VALUE(wire_Refusal, REFUSAL_NONE);
SAME_VALUE(wire_Refusal, REFUSAL_VERSION);
SAME_VALUE(wire_Refusal, REFUSAL_INVALID);
SAME_VALUE(wire_Refusal, REFUSAL_TIMEOUT);
SAME_VALUE(wire_Refusal, REFUSAL_FULL);
SAME_VALUE(wire_Refusal, REFUSAL_DRAINING);
SAME_VALUE(wire_PlanAlgorithm, ALGORITHM_RING);
SAME_VALUE(wire_PlanAlgorithm, ALGORITHM_DOUBLING);
SAME_VALUE(wire_PlanAlgorithm, ALGORITHM_HALVING);
SAME_VALUE(wire_PlanAlgorithm, ALGORITHM_SHARED);
SAME_VALUE(wire_PlanAlgorithm, ALGORITHM_TWO_LEVEL);
SAME_VALUE(wire_PlanAlgorithm, ALGORITHM_DIRECT);
SAME_VALUE(wire_PlanAlgorithm, ALGORITHM_BY_SIZE);
SAME_VALUE(wire_ApiFunction, API_NONE);
SAME_VALUE(wire_ApiFunction, API_OPEN);
SAME_VALUE(wire_ApiFunction, API_START);
SAME_VALUE(wire_ApiFunction, API_STEP_BEGIN);
SAME_VALUE(wire_ApiFunction, API_CALL_BEGIN);
SAME_VALUE(wire_ApiFunction, API_GRAD_READY);
SAME_VALUE(wire_ApiFunction, API_CALL_END);
SAME_VALUE(wire_ApiFunction, API_CALL_WAIT);
SAME_VALUE(wire_ApiFunction, API_CALL_NEXT);
SAME_VALUE(wire_ApiFunction, API_CALL_ABORT);
SAME_VALUE(wire_ApiFunction, API_STEP_END);
SAME_VALUE(wire_ApiFunction, API_COLLECTIVE);
SAME_VALUE(wire_ApiFunction, API_WORK_WAIT);
SAME_VALUE(wire_ApiFunction, API_STATE);
SAME_VALUE(wire_ApiFunction, API_PAUSE);
SAME_VALUE(wire_ApiFunction, API_RESUME);
SAME_VALUE(wire_ApiFunction, API_CLOSE);
SAME_VALUE(wire_ApiFunction, API_BARRIER);
SAME_VALUE(wire_ApiFunction, API_ALLREDUCE);
SAME_VALUE(wire_ApiFunction, API_BROADCAST);
SAME_VALUE(wire_ApiFunction, API_STATE_CHECK);
SAME_VALUE(wire_ApiFunction, API_STATE_SYNC);
SAME_VALUE(wire_ApiFunction, API_MODULE_USAGE);
SAME_VALUE(wire_ApiFunction, API_COLLECTIVE_RUN);
SAME_VALUE(wire_ApiFunction, API_GROUP_CREATE);
SAME_VALUE(wire_StackHow, STACK_SIGNAL);
SAME_VALUE(wire_StackHow, STACK_BLOCKED);
SAME_VALUE(wire_StackHow, STACK_SILENT);
SAME_VALUE(wire_StackHow, STACK_DISK);
SAME_VALUE(wire_StackHow, STACK_TAKEN);
SAME_VALUE(wire_StackHow, STACK_ASLEEP);
SAME_VALUE(wire_StackHow, STACK_CUT);
SAME_VALUE(wire_StackHow, STACK_NO_ROOM);
SAME_VALUE(wire_StackHow, STACK_LEFT_ALONE);
SAME_VALUE(wire_StackHow, STACK_NOT_ASKED);
SAME_VALUE(wire_StackAwaits, AWAITS_NOTHING);
SAME_VALUE(wire_StackAwaits, AWAITS_LOCK);
SAME_VALUE(wire_StackAwaits, AWAITS_END);

const char *codec_status_name(enum codec_status status)
{
    switch (status) {
    case CODEC_OK:
        return "ok";
    case CODEC_TRUNCATED:
        return "truncated";
    case CODEC_TOO_LONG:
        return "too long";
    case CODEC_INVALID:
        return "invalid";
    case CODEC_SPACE:
        return "no space";
    }
    return "unknown";
}

void codec_fault_set(struct codec_fault *fault, enum codec_status status, const char *detail)
{
    if (fault->status != CODEC_OK)
        return;
    fault->status = status;
    fault->detail = detail;
}

// ---- nanopb ----------------------------------------------------------------------------------

enum codec_status codec_write(const struct pb_msgdesc_s *descriptor, const void *wire,
                              uint8_t *bytes, size_t capacity, size_t *size)
{
    pb_ostream_t stream = pb_ostream_from_buffer(bytes, capacity);
    // The struct was checked before, so the only possible error is that the buffer is too small.
    if (!pb_encode(&stream, descriptor, wire))
        return CODEC_SPACE;
    *size = stream.bytes_written;
    return CODEC_OK;
}

// Maps nanopb's errors, which are only texts, to a status. A test checks each of these texts.
static const struct codec_error {
    const char *text;
    struct codec_fault fault;
} codec_errors[] = {
    {"end-of-stream", {CODEC_TRUNCATED, "the message ends inside a field"}},
    {"parent stream too short", {CODEC_TRUNCATED, "a field is longer than what holds it"}},
    {"string overflow", {CODEC_TOO_LONG, "a string is above its bound"}},
    {"bytes overflow", {CODEC_TOO_LONG, "a byte string is above its bound"}},
    {"array overflow", {CODEC_TOO_LONG, "an array is above its bound"}},
};

void codec_read(const struct pb_msgdesc_s *descriptor, void *wire, const uint8_t *bytes,
                size_t size, struct codec_fault *fault)
{
    if (size > LOCKSTEP_MESSAGE_BYTES) {
        codec_fault_set(fault, CODEC_TOO_LONG, "the message is above LOCKSTEP_MESSAGE_BYTES");
        return;
    }
    pb_istream_t stream = pb_istream_from_buffer(bytes, size);
    if (pb_decode(&stream, descriptor, wire))
        return;
    for (size_t i = 0; i < sizeof(codec_errors) / sizeof(codec_errors[0]); i++) {
        const struct codec_error *error = &codec_errors[i];
        if (strcmp(PB_GET_ERROR(&stream), error->text) == 0)
            codec_fault_set(fault, error->fault.status, error->fault.detail);
    }
    codec_fault_set(fault, CODEC_INVALID, "the bytes are not a message of this protocol");
}

// ---- Strings and fixed lengths ---------------------------------------------------------------

void codec_text_out(char *wire, const char *text, size_t bytes)
{
    memcpy(wire, text, strnlen(text, bytes - 1));
}

void codec_text_in(char *text, const char *wire, size_t bytes, struct codec_fault *fault)
{
    const size_t length = strnlen(wire, bytes);
    memcpy(text, wire, length);
    // The wire struct was zeroed, so a byte behind the first NUL that is not zero was in the
    // string.
    for (size_t i = length; i < bytes; i++) {
        if (wire[i] != '\0')
            codec_fault_set(fault, CODEC_INVALID, "a string holds a NUL");
    }
}

void codec_bytes_in(uint8_t *to, size_t size, const uint8_t *wire, size_t wire_size,
                    struct codec_fault *fault)
{
    if (wire_size == size)
        memcpy(to, wire, size);
    else
        codec_fault_set(fault, CODEC_INVALID, "a uuid or a secret has the wrong length");
}

uint32_t codec_words_out(uint64_t *wire, const uint64_t *words, uint32_t count)
{
    while (count > 0 && words[count - 1] == 0)
        count--;
    memcpy(wire, words, count * sizeof(words[0]));
    return count;
}

// ---- Messages of both directions -------------------------------------------------------------

bool codec_generation_out(wire_GenerationId *wire, const struct generation_id *id)
{
    wire->number = id->number;
    wire->incarnation = id->incarnation;
    return id->number != 0 || id->incarnation != 0;
}

void codec_generation_in(struct generation_id *id, const wire_GenerationId *wire, bool present)
{
    if (!present)
        return;
    id->number = wire->number;
    id->incarnation = wire->incarnation;
}

void codec_slot_out(wire_SlotId *wire, const struct slot_id *slot)
{
    wire->module = slot->module;
    wire->call = slot->call;
    wire->bucket = slot->bucket;
}

void codec_slot_in(struct slot_id *slot, const wire_SlotId *wire, bool present,
                   struct codec_fault *fault)
{
    if (!present)
        codec_fault_set(fault, CODEC_INVALID, "a slot is missing");
    slot->module = wire->module;
    slot->call = wire->call;
    slot->bucket = wire->bucket;
}

void codec_layout_out(wire_LayoutPart *wire, const struct layout_part *part)
{
    wire->module = part->module;
    wire->total = part->total;
    wire->first = part->first;
    wire->words_count = (pb_size_t)part->count;
    memcpy(wire->words, part->words, part->count * sizeof(part->words[0]));
}

void codec_layout_in(struct layout_part *part, const wire_LayoutPart *wire)
{
    part->module = wire->module;
    part->total = wire->total;
    part->first = wire->first;
    part->count = wire->words_count;
    memcpy(part->words, wire->words, part->count * sizeof(part->words[0]));
}

// ---- Health ----------------------------------------------------------------------------------

enum codec_status codec_decode_health_request(const uint8_t *bytes, size_t size, char *service,
                                              size_t capacity)
{
    struct codec_fault fault = {0};
    health_HealthCheckRequest request = health_HealthCheckRequest_init_zero;
    char name[sizeof(request.service)] = {0};

    if (capacity > 0)
        service[0] = '\0';
    codec_read(health_HealthCheckRequest_fields, &request, bytes, size, &fault);
    if (fault.status == CODEC_OK) {
        codec_text_in(name, request.service, sizeof(name), &fault);
        codec_check_text(name, sizeof(name), &fault);
    }
    if (fault.status == CODEC_OK && strlen(name) >= capacity)
        codec_fault_set(&fault, CODEC_TOO_LONG, "the service's name is above its bound");
    if (fault.status == CODEC_OK)
        memcpy(service, name, strlen(name) + 1);
    return fault.status;
}

enum codec_status codec_encode_health_response(int status, uint8_t *bytes, size_t capacity,
                                               size_t *size)
{
    health_HealthCheckResponse response = health_HealthCheckResponse_init_zero;

    *size = 0;
    if (status < health_HealthCheckResponse_ServingStatus_UNKNOWN ||
        status > health_HealthCheckResponse_ServingStatus_SERVICE_UNKNOWN)
        return CODEC_INVALID;
    response.status = (health_HealthCheckResponse_ServingStatus)status;
    return codec_write(health_HealthCheckResponse_fields, &response, bytes, capacity, size);
}
