// SPDX-License-Identifier: Apache-2.0
//
// Control messages to bytes and back: golden bytes of every kind, random round trips, every bound
// in both directions, truncation at every byte, and mutated bytes.
//
// Messages are zeroed before they are filled and decoders fill zeroed ones, so equal messages are
// equal byte by byte, and what stands behind the end of a string or an array is compared too.

#include "protos/codec/codec.h"
#include "protos/codec/down.h"
#include "protos/codec/up.h"
#include "protos/topology.h"
#include "tests/support/choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEED 0x10c7573b10c7573bu
#define ROUNDS 200
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

// A field more in types.h ends here: it belongs into control.proto, into both directions of the
// codec and into random_up or random_down below. Then this number changes.
#if defined(__LP64__)
static_assert(sizeof(struct gpu) == 284, "a new field?");
static_assert(sizeof(struct up_hello) == 1384 + sizeof(struct up_resume), "a new field?");
static_assert(sizeof(struct up_start) == 32, "a new field?");
static_assert(sizeof(struct manifest_item) == 664, "a new field?");
static_assert(sizeof(struct lineage) == 144, "a new field?");
static_assert(sizeof(struct up_resume) == 296 + LOCKSTEP_CHAIN * sizeof(struct lineage),
              "a new field?");
static_assert(sizeof(struct up_ready) == 56, "a new field?");
static_assert(sizeof(struct up_wait) == 216, "a new field?");
static_assert(sizeof(struct layout_part) == 8208, "a new field?");
static_assert(sizeof(struct up_end) == 32, "a new field?");
static_assert(sizeof(struct place) == 96, "a new field?");
static_assert(sizeof(struct link_state) == 32, "a new field?");
static_assert(sizeof(struct mate_state) == 12, "a new field?");
static_assert(sizeof(struct await_key) == 24, "a new field?");
static_assert(sizeof(struct await) == 960, "a new field?");
static_assert(sizeof(struct up_heartbeat) == 3832, "a new field?");
static_assert(sizeof(struct up_fail) == 1504, "a new field?");
static_assert(sizeof(struct up_lost) == 1048, "a new field?");
static_assert(sizeof(struct up_leave) == 2192, "a new field?");
static_assert(sizeof(struct down_welcome) == 8, "a new field?");
static_assert(sizeof(struct down_refused) == 1028, "a new field?");
static_assert(sizeof(struct peer) == 292, "a new field?");
static_assert(sizeof(struct up_links) == 32, "a new field?");
static_assert(sizeof(struct blocked_wait) == 136, "a new field?");
static_assert(sizeof(struct blocked_lack) == 12, "a new field?");
static_assert(sizeof(struct up_blocked) == 2528, "a new field?");
static_assert(sizeof(struct up_replan) == 2088, "a new field?");
static_assert(sizeof(struct up_modules) == 5152, "a new field?");
static_assert(sizeof(struct answer_place) == 4912, "a new field?");
static_assert(sizeof(struct stack_thread) == 88, "a new field?");
static_assert(sizeof(struct stack_frame) == 208, "a new field?");
static_assert(sizeof(struct trace_event) == 40, "a new field?");
static_assert(sizeof(struct up_answer) == 6688, "a new field?");
static_assert(sizeof(struct locality) == 288, "a new field?");
static_assert(sizeof(struct tuning) == 40, "a new field?");
static_assert(sizeof(struct down_generation) == 15080, "a new field?");
static_assert(sizeof(struct down_verified) == 1, "a new field?");
static_assert(sizeof(struct down_manifest_request) == 8, "a new field?");
static_assert(sizeof(struct down_grant) == 24, "a new field?");
static_assert(sizeof(struct down_query) == 408, "a new field?");
static_assert(sizeof(struct down_inspect) == 16, "a new field?");
static_assert(sizeof(struct plan_slot) == 16, "a new field?");
static_assert(sizeof(struct down_plan_part) == 2112, "a new field?");
static_assert(sizeof(struct down_halt) == 4632, "a new field?");
// Many structs hold one of these: what is large travels in parts.
static_assert(sizeof(struct up_message) <= 9 * 1024, "a message from a worker stays small");
#endif

// ---- Both directions behind one face ---------------------------------------------------------

union any_message {
    struct up_message up;
    struct down_message down;
};

struct direction {
    const char *name;
    int last_kind;
    size_t message_size;
    void (*example)(int kind, union any_message *message);
    void (*random)(int kind, uint64_t *state, union any_message *message);
    const char *const *golden; // By kind, in hex.
};

static enum codec_status encode(const struct direction *direction, const union any_message *message,
                                uint8_t *bytes, size_t capacity, size_t *size);
static enum codec_status decode(const struct direction *direction, const uint8_t *bytes,
                                size_t size, union any_message *message, const char **detail);

// ---- Examples: small, readable, one for each kind; their bytes are golden ----------------------

static void example_manifest(struct up_manifest_part *part)
{
    part->first = 3;
    part->count = 1;
    part->items[0].kind = MANIFEST_PARAMETER;
    part->items[0].module = 2;
    strcpy(part->items[0].name, "w");
    part->items[0].dtype = DTYPE_BFLOAT16;
    part->items[0].flags = 5;
    part->items[0].dims = 2;
    part->items[0].shape[0] = 300;
    part->items[0].shape[1] = 0;
    part->items[0].strides[0] = 1;
    part->items[0].strides[1] = -1;
    strcpy(part->items[0].value, "k=v");
}

static void example_hello(struct up_hello *hello)
{
    hello->version = LOCKSTEP_PROTOCOL_VERSION;
    strcpy(hello->job, "job");
    for (uint8_t i = 0; i < LOCKSTEP_UUID_BYTES; i++)
        hello->uuid.bytes[i] = i;
    strcpy(hello->host_id, "id");
    strcpy(hello->host, "h\xc3\xb6st");
    strcpy(hello->address, "tcp:[::1]:7");
    hello->pid = 300;
    hello->world_min = 2;
    hello->world_max = 4;
    hello->window_ms = 50;
    hello->has_rank_hint = true;
    hello->rank_hint = 0;
    hello->open_timeout_ms = 60000;
    hello->on_failure = FAILURE_CONTINUE;
    strcpy(hello->device, "cpu");
    hello->started = 400;
    hello->cores = 0xc0de;
    hello->has_gpu = true;
    hello->gpu = (struct gpu){.uuid = {{0xf0, 0xf1}},
                              .capability = 90,
                              .driver_version = 13000,
                              .nccl_version = 0,
                              .nccl_missing = "why"};
    strcpy(hello->gpu_problem, "no");
    hello->further_gpu_count = 2;
    hello->further_gpus[0].bytes[0] = 0xf2;
    hello->further_gpus[1].bytes[15] = 0xf3;
    hello->resumes = true;
    hello->resume = (struct up_resume){.generation = {7, 0x0102030405060708u},
                                       .rank = 1,
                                       .world_size = 2,
                                       .settled = 811,
                                       .rounds = 1,
                                       .starting = true,
                                       .plan_number = 3,
                                       .learning_step = 812,
                                       .tuning = {1, 2, 3, 4, true, ALGORITHM_RING},
                                       .start = {9, 8, 0, 7, true, true, true},
                                       .frozen = true,
                                       .founder = {3, 1},
                                       .promised = {9, 2},
                                       .chain_count = 2,
                                       .chain = {{{6, 9}, {7}}, {{7, 0x0102030405060708u}, {5}}},
                                       .dead = {2}};
    hello->elsewhere = true;
    hello->virtual_ranks = 6;
}

static void example_layout(struct layout_part *part)
{
    part->module = 1;
    part->total = 5;
    part->first = 1;
    part->count = 3;
    part->words[0] = 2;
    part->words[1] = 0;
    part->words[2] = 300;
}

static void example_heartbeat(struct up_heartbeat *heartbeat)
{
    heartbeat->step = 812;
    heartbeat->settled = 811;
    heartbeat->activity = ACTIVITY_WAITING;
    heartbeat->since_ms = 20;
    strcpy(heartbeat->mark, "eval");
    heartbeat->bytes_sent = 1;
    heartbeat->bytes_received = 2;
    heartbeat->totals = (struct step_totals){811, 3, 900, 700, 200, 1, 2};
    heartbeat->place.position = 3;
    heartbeat->place.count = 7;
    heartbeat->place.done = true;
    heartbeat->place.open = true;
    heartbeat->place.slot = (struct slot_id){1, 2, 3};
    heartbeat->place.api = API_CALL_END;
    heartbeat->place.api_ms = 41;
    heartbeat->place.module = 1;
    heartbeat->place.call = 2;
    heartbeat->place.calls_open = 1;
    heartbeat->place.ready = 5;
    heartbeat->place.gradients = 9;
    heartbeat->place.plain = 4;
    heartbeat->place.usual_us = 300;
    heartbeat->place.longest_us = 301;
    heartbeat->place.waited_us = 302;
    heartbeat->flags = PLACE_PAUSED | PLACE_FIRST;
    heartbeat->pause_ms = 60000;
    heartbeat->link_count = 1;
    heartbeat->links[0].rank = 2;
    heartbeat->links[0].awaited = true;
    heartbeat->links[0].unsent = 300;
    heartbeat->links[0].received = 301;
    heartbeat->links[0].still_ms = 1000;
    heartbeat->mate_count = 1;
    heartbeat->mates[0].rank = 3;
    heartbeat->mates[0].state = 't';
    heartbeat->mates[0].tracer = 4711;
    heartbeat->links[0].reached = true;
    strcpy(heartbeat->sleeps, "read (nfs_wait_bit_killable)");
    heartbeat->await = (struct await){.key = {AWAIT_COLLECTIVE, 5, 2},
                                      .function = API_BARRIER,
                                      .module = 1,
                                      .rooted = true,
                                      .root = 3,
                                      .step = 811,
                                      .open = true,
                                      .name = "epoch",
                                      .lack_count = 1,
                                      .lacks = {{AWAIT_STEP, 0, 812}}};
    strcpy(heartbeat->collective, "ab");
    heartbeat->collective_use = 2;
    heartbeat->overdue_count = 1;
    heartbeat->overdue[0] = (struct overdue){.space = 5, .use = 2, .signature = 6};
    heartbeat->metric_count = 1;
    heartbeat->metrics[0] = (struct metric_state){"loss", METRIC_MEAN, 4, 0.5};
    heartbeat->counter_count = 1;
    heartbeat->counters[0] = (struct counter_state){"samples", -3};
}

static void example_blocked(struct up_blocked *blocked)
{
    blocked->step = 812;
    blocked->space = 0xfe;
    blocked->wait_count = 2;
    blocked->waits[0].call = (struct call_id){1, 2};
    blocked->waits[0].needs.words[0] = 5;
    blocked->waits[1].call = (struct call_id){2, 0};
    blocked->lacks.words[1] = 3;
    blocked->lack_count = 2;
    blocked->lacking[0] = (struct blocked_lack){64, {3, 0}};
    blocked->lacking[1] = (struct blocked_lack){65, {3, 1}};
}

static void example_answer(struct up_answer *answer)
{
    answer->id = 9;
    answer->clock_ns = 1000;
    answer->last = true;
    answer->kind = ANSWER_FRAMES;
    answer->u.frames.count = 1;
    answer->u.frames.frames[0].thread = 1;
    answer->u.frames.frames[0].python = true;
    strcpy(answer->u.frames.frames[0].object, "a.py");
    strcpy(answer->u.frames.frames[0].symbol, "f");
    answer->u.frames.frames[0].offset = 300;
}

static struct record_part example_record(enum record_kind kind)
{
    return (struct record_part){
        .kind = kind, .position = 3, .total = 4, .first = 1, .count = 3, .words = {300, 0, 100}};
}

static void example_up(int kind, union any_message *any)
{
    struct up_message *message = &any->up;
    const struct slot_id slot = {1, 2, 3};

    memset(any, 0, sizeof(*any));
    message->kind = (enum up_kind)kind;
    message->generation.number = kind == UP_HELLO ? 0 : 7;
    message->generation.incarnation = kind == UP_HELLO ? 0 : 0x0102030405060708u;
    switch (message->kind) {
    case UP_HELLO:
        example_hello(&message->u.hello);
        break;
    case UP_START:
        message->u.start = (struct up_start){.manifest_hash = 0xabcd,
                                             .item_count = 9,
                                             .root = 1,
                                             .settled = 5,
                                             .zero_defer = true,
                                             .strict = true,
                                             .grouped = true};
        break;
    case UP_MANIFEST_PART:
        example_manifest(&message->u.manifest_part);
        break;
    case UP_READY:
        message->u.ready.step = 812;
        message->u.ready.phase = 0xfe;
        message->u.ready.slot = slot;
        message->u.ready.dtype = DTYPE_FLOAT32;
        message->u.ready.elements = 1000;
        message->u.ready.granted = 4;
        message->u.ready.unmade = true;
        message->u.ready.grants = 6;
        break;
    case UP_WAIT:
        message->u.wait.step = 812;
        message->u.wait.phase = 0xfe;
        message->u.wait.slot = slot;
        message->u.wait.also_count = 1;
        message->u.wait.also[0].module = 4;
        break;
    case UP_LAYOUT_PART:
        example_layout(&message->u.layout_part);
        break;
    case UP_END:
        message->u.end.step = 812;
        message->u.end.phase = 0xfe;
        message->u.end.plan = 7;
        message->u.end.plan_hash = 0xfd;
        break;
    case UP_HEARTBEAT:
        example_heartbeat(&message->u.heartbeat);
        break;
    case UP_FAIL:
        message->u.fail.step = 812;
        message->u.fail.kind = HALT_COLLECTIVE;
        strcpy(message->u.fail.text, "why");
        message->u.fail.space = 5;
        message->u.fail.use = 2;
        strcpy(message->u.fail.name, "a");
        strcpy(message->u.fail.form, "b");
        break;
    case UP_LOST:
        message->u.lost.rank = 3;
        message->u.lost.left = true;
        message->u.lost.silent = true;
        message->u.lost.impossible = true;
        message->u.lost.told = true;
        message->u.lost.witness = 2;
        message->u.lost.proof = PROOF_PORT;
        message->u.lost.step = 812;
        strcpy(message->u.lost.text, "reset");
        break;
    case UP_LEAVE:
        message->u.leave.settled = 812;
        strcpy(message->u.leave.reason, "done");
        strcpy(message->u.leave.cause, "why");
        message->u.leave.flags = REPORT_SKIPPED;
        message->u.leave.word_count = 2;
        message->u.leave.words[0] = 7;
        message->u.leave.words[1] = 300;
        break;
    case UP_LINKS:
        message->u.links = (struct up_links){.shares = true,
                                             .latency_ns = 5200,
                                             .bytes_per_s = 119500000,
                                             .wish = ALGORITHM_HALVING,
                                             .sums_ranks = true};
        break;
    case UP_BLOCKED:
        example_blocked(&message->u.blocked);
        break;
    case UP_MODULES:
        message->u.modules.total = 9;
        message->u.modules.first = 7;
        message->u.modules.count = 2;
        strcpy(message->u.modules.names[0], "actor");
        strcpy(message->u.modules.groups[1], "g");
        message->u.modules.grouped = 0x180;
        message->u.modules.absent = 0x100;
        break;
    case UP_ANSWER:
        example_answer(&message->u.answer);
        break;
    case UP_REPLAN:
        message->u.replan = (struct up_replan){.step = 812,
                                               .phase = 0xfe,
                                               .replaces = 5,
                                               .in_force = 6,
                                               .call_count = 2,
                                               .calls = {{1, 2}, {3, 0}}};
        break;
    case UP_REACH:
        message->u.reach = (struct up_reach){.count = 3, .ranks = {4, 0, 1023}};
        break;
    case UP_RECORD_PART:
        message->u.record_part = example_record(RECORD_RUNS);
        break;
    case UP_REPORT:
        message->u.report = (struct up_report){.ballot = {8, 7},
                                               .settled = 811,
                                               .step = 812,
                                               .flags = REPORT_BEGUN | REPORT_CLOSED,
                                               .phase = 0xfe,
                                               .space = 0xcd};
        break;
    case UP_REFUSE:
        message->u.refuse.promised = (struct generation_id){9, 7};
        break;
    case UP_NONE:
        break;
    }
}

static const char *const golden_up[] = {
    [UP_HELLO] = "12c102080f12036a6f621a10000102030405060708090a0b0c0d0e0f22026964"
                 "2a0568c3b67374320b7463703a5b3a3a315d3a3738ac02400248045032580060"
                 "e0d4036801720363707578900382011c0a10f0f1000000000000000000000000"
                 "0000105a18c8652a037768798a01026e6f920110f20000000000000000000000"
                 "00000000920110000000000000000000000000000000f39901dec00000000000"
                 "00a20199010a0b08071108070605040302011001180220ab0628013001380340"
                 "ac065a0a08011002180320042801621309090000000000000010082007280130"
                 "0138016801720b08031101000000000000007a0b080911020000000000000082"
                 "01170a0b0806110900000000000000120807000000000000008201170a0b0807"
                 "110807060504030201120805000000000000008a01080200000000000000a801"
                 "01b00106",
    [UP_START] = "0a0b08071108070605040302011a1509cdab000000000000100918012005280130013801",
    [UP_MANIFEST_PART] = "0a0b0807110807060504030201221d08031219080310021a0177200628053203"
                         "ac02003a02020142036b3d76",
    [UP_READY] = "0a0b08071108070605040302012a1f08ac0611fe000000000000001a06080110"
                 "021803200128e807300438014006",
    [UP_WAIT] = "0a0b0807110807060504030201321808ac0611fe000000000000001a06080110"
                "02180322020804",
    [UP_LAYOUT_PART] = "0a0b08071108070605040302013a0c08011005180122040200ac02",
    [UP_END] = "0a0b0807110807060504030201421708ac0611fe00000000000000180721fd00"
               "000000000000",
    [UP_HEARTBEAT] = "0a0b08071108070605040302014a830208ac0610ab06180420142a046576616c"
                     "30013802421208ab06100318840720bc0528c801300138024a2d080310071801"
                     "20013a0608011002180340065029580160026801700578098001048801ac0290"
                     "01ad029801ae02501158e0d403620f0802100118ac0220ad0228e80730016a07"
                     "0803107418e7247a1c7265616420286e66735f776169745f6269745f6b696c6c"
                     "61626c6529a201280a0d0804110500000000000000180210111801200328ab06"
                     "30013a0565706f63684205080118ac06da041409050000000000000010021906"
                     "00000000000000e204026162e80402ba05130a046c6f73731002180421000000"
                     "000000e03fc2050b0a0773616d706c65731005",
    [UP_FAIL] = "0a0b0807110807060504030201521b"
                "08ac0610051a0377687921050000000000000028023201613a0162",
    [UP_LOST] = "0a0b08071108070605040302015a1c0803100118ac06220572657365742801b0"
                "0401b80402c00401c80402",
    [UP_LEAVE] = "0a0b0807110807060504030201621508ac061204646f6e651a0377687920202a0307ac02",
    [UP_LINKS] = "0a0b08071108070605040302016a0e080110d02818e0d9fd3820022801",
    [UP_BLOCKED] = "0a0b0807110807060504030201724808ac0611fe000000000000001a100a0408"
                   "011002120805000000000000001a040a02080222100000000000000000030000"
                   "00000000002a060840120208032a080841120408031001",
    [UP_MODULES] = "0a0b08071108070605040302017a24080910071a056163746f721a00"
                   "2200220167298001000000000000310001000000000000",
    [UP_ANSWER] = "0a0b080711080706050403020182011b080910e807180132120a10080110011a"
                  "04612e707922016628ac02",
    [UP_REPLAN] = "0a0b08071108070605040302018a011a08ac0611fe00000000000000180520062a040801"
                  "10022a020803",
    [UP_REACH] = "0a0b08071108070605040302019201060a040400ff07",
    [UP_RECORD_PART] = "0a0b08071108070605040302019a010e0801100318042001"
                       "2a04ac020064",
    [UP_REPORT] = "0a0b0807110807060504030201a201270a0b080811070000000000000010ab06"
                  "18ac06200629fe0000000000000031cd00000000000000",
    [UP_REFUSE] = "0a0b0807110807060504030201aa010d0a0b0809110700000000000000",
};

static void example_generation(struct down_generation *generation)
{
    generation->rank = 1;
    generation->world_size = 3;
    generation->local_rank = 0;
    generation->local_size = 1;
    generation->chunk_bytes = 4096;
    for (uint8_t i = 0; i < LOCKSTEP_SECRET_BYTES; i++)
        generation->secret[i] = i;
    generation->peer_count = 2;
    strcpy(generation->peers[0].address, "a");
    generation->peers[1].rank = 2;
    strcpy(generation->peers[1].address, "b");
    strcpy(generation->peers[1].host, "h");
    generation->locality = (struct locality){.host = 0,
                                             .hosts = 2,
                                             .mate_count = 2,
                                             .mates = {0, 1},
                                             .mate_pids = {0, 300},
                                             .mate_started = {400, 0},
                                             .local = 1,
                                             .rings = 2,
                                             .successor = 2,
                                             .predecessor = 2};
    generation->gpus[0] = 5;
    generation->gpus_meet = true;
    generation->core_ranks = 3;
    generation->further_count = 1;
    generation->further[0].rank = 2;
    strcpy(generation->further[0].address, "c");
}

static void example_plan(struct down_plan_part *part)
{
    part->number = 2;
    part->phase = 0xfe;
    part->hash = 0xabcd;
    part->closes_step = true;
    part->step = 812;
    part->slot_total = 4;
    part->slot_first = 2;
    part->slot_count = 2;
    part->last = true;
    part->strict = true;
    part->replaces = 1;
    part->slots[0].id = (struct slot_id){1, 2, 3};
}

static void example_down(int kind, union any_message *any)
{
    struct down_message *message = &any->down;

    memset(any, 0, sizeof(*any));
    message->kind = (enum down_kind)kind;
    message->generation.number = 7;
    message->generation.incarnation = 0x0102030405060708u;
    switch (message->kind) {
    case DOWN_WELCOME:
        message->u.welcome = (struct down_welcome){.version = 1, .heartbeat_ms = 1000};
        break;
    case DOWN_REFUSED:
        message->u.refused.refusal = REFUSAL_TIMEOUT;
        strcpy(message->u.refused.text, "late");
        break;
    case DOWN_GENERATION:
        example_generation(&message->u.generation_start);
        break;
    case DOWN_MANIFEST_REQUEST:
        message->u.manifest_request = (struct down_manifest_request){.first = 16, .count = 9};
        break;
    case DOWN_GRANT:
        message->u.grant.step = 812;
        message->u.grant.slot = (struct slot_id){1, 2, 3};
        message->u.grant.forced = true;
        break;
    case DOWN_LAYOUT_PART:
        example_layout(&message->u.layout_part);
        break;
    case DOWN_PLAN_PART:
        example_plan(&message->u.plan_part);
        break;
    case DOWN_HALT:
        message->u.halt.step = 812;
        message->u.halt.kind = HALT_LOST;
        message->u.halt.has_rank = true;
        strcpy(message->u.halt.text, "why");
        break;
    case DOWN_TUNING:
        message->u.tuning = (struct tuning){.latency_ns = 5200,
                                            .bytes_per_s = 119500000,
                                            .doubling_bytes = 1024,
                                            .halving_bytes = 65536,
                                            .shares = true,
                                            .wish = ALGORITHM_BY_SIZE};
        break;
    case DOWN_QUERY:
        message->u.query.step = 812;
        message->u.query.withdrawn = true;
        message->u.query.key_count = 2;
        message->u.query.keys[0] = (struct await_key){AWAIT_STEP, 0, 812};
        message->u.query.keys[1] = (struct await_key){AWAIT_COLLECTIVE, 5, 2};
        break;
    case DOWN_INSPECT:
        message->u.inspect = (struct down_inspect){.id = 9, .what = INSPECT_ALL};
        break;
    case DOWN_ADDRESSES:
        message->u.addresses = (struct down_addresses){
            .count = 2, .peers = {{.rank = 4, .address = "a", .host = "h"}, {.address = "b"}}};
        break;
    case DOWN_PREPARE:
        message->u.prepare =
            (struct down_prepare){.ballot = {8, 7}, .suspects = {4}, .text = "why"};
        break;
    case DOWN_RECORD_PART:
        message->u.record_part = example_record(RECORD_ROWS);
        break;
    case DOWN_DECISION:
        message->u.decision = (struct down_decision){.ballot = {8, 7},
                                                     .settled = 811,
                                                     .step = 812,
                                                     .flags = REPORT_BEGUN,
                                                     .removed = {4},
                                                     .chain_count = 1,
                                                     .chain = {{{8, 7}, {3}}},
                                                     .dead = {4},
                                                     .text = "why"};
        break;
    case DOWN_EXCLUDED:
        message->u.excluded = (struct down_excluded){.ballot = {8, 7}, .text = "why"};
        break;
    case DOWN_VERIFIED:
        message->u.verified.grouped = true;
        break;
    case DOWN_NONE:
        break;
    }
}

static const char *const golden_down[] = {
    [DOWN_WELCOME] = "0a0b08071108070605040302011205080110e807",
    [DOWN_REFUSED] = "0a0b08071108070605040302011a08080312046c617465",
    [DOWN_GENERATION] = "0a0b080711080706050403020122690801100320012880203220000102030405"
                        "060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f3a031201613a"
                        "0808021201621a0168421810021a0200012001280230023802420300ac024a03"
                        "9003004a0805000000000000005001580362050802120163",
    [DOWN_VERIFIED] = "0a0b08071108070605040302012a020801",
    [DOWN_MANIFEST_REQUEST] = "0a0b0807110807060504030201320408101009",
    [DOWN_GRANT] = "0a0b08071108070605040302013a0d08ac0612060801100218031801",
    [DOWN_LAYOUT_PART] = "0a0b0807110807060504030201420c08011005180122040200ac02",
    [DOWN_PLAN_PART] = "0a0b08071108070605040302014a31080211fe0000000000000019cdab000000"
                       "000000200128ac063004380240014a080a060801100218034a020a0050015801",
    [DOWN_HALT] = "0a0b0807110807060504030201520c08ac06100618002203776879",
    [DOWN_TUNING] = "0a0b08071108070605040302015a1308d02810e0d9fd38188008208080042801"
                    "3006",
    [DOWN_QUERY] = "0a0b0807110807060504030201621b"
                   "08ac0610011a05080118ac061a0d08041105000000000000001802",
    [DOWN_INSPECT] = "0a0b08071108070605040302016a0408091007",
    [DOWN_ADDRESSES] = "0a0b080711080706050403020172"
                       "0f0a0808041201611a01680a03120162",
    [DOWN_PREPARE] = "0a0b08071108070605040302017a1c0a0b080811070000000000000012080400"
                     "0000000000001a03776879",
    [DOWN_RECORD_PART] = "0a0b080711080706050403020182010e08021003180420012a04ac020064",
    [DOWN_DECISION] = "0a0b08071108070605040302018a01470a0b080811070000000000000010ab06"
                      "18ac0620022a08040000000000000032037768793a170a0b0808110700000000"
                      "0000001208030000000000000042080400000000000000",
    [DOWN_EXCLUDED] = "0a0b08071108070605040302019201120a0b0808110700000000000000120377"
                      "6879",
};

// ---- Random messages ---------------------------------------------------------------------------

// A random number of any magnitude: as many small numbers as large ones.
static uint64_t random_number(uint64_t *state)
{
    const uint64_t value = choice_random(state);
    return value >> (choice_random(state) % 64);
}

static uint32_t random_below(uint64_t *state, uint32_t bound)
{
    return (uint32_t)(choice_random(state) % bound);
}

static bool random_bool(uint64_t *state)
{
    return random_below(state, 2) == 1;
}

static void random_text(uint64_t *state, char *text, size_t bytes)
{
    static const char *const characters[] = {"a",
                                             "Z",
                                             "\x01",
                                             "\x7f",
                                             "\xc2\x80",
                                             "\xdf\xbf",
                                             "\xe0\xa0\x80",
                                             "\xed\x9f\xbf",
                                             "\xef\xbf\xbf",
                                             "\xf0\x90\x80\x80",
                                             "\xf4\x8f\xbf\xbf"};
    // Every fourth string is as long as can be.
    const size_t want = random_below(state, 4) == 0 ? bytes - 1 : choice_random(state) % bytes;
    size_t length = 0;
    while (length < want) {
        const char *character = characters[random_below(state, COUNT(characters))];
        if (length + strlen(character) > want)
            character = "x";
        memcpy(text + length, character, strlen(character));
        length += strlen(character);
    }
}

#define RANDOM_TEXT(state, array) random_text(state, array, sizeof(array))

static struct slot_id random_slot(uint64_t *state)
{
    struct slot_id slot;
    slot.module = random_below(state, LOCKSTEP_MAX_MODULES);
    slot.call = random_below(state, LOCKSTEP_MAX_CALLS);
    slot.bucket = random_below(state, LOCKSTEP_MAX_BUCKETS);
    return slot;
}

static void random_ranks(uint64_t *state, uint64_t *words)
{
    const uint32_t count = random_below(state, LOCKSTEP_RANK_WORDS + 1);
    for (uint32_t i = 0; i < count; i++)
        words[i] = random_bool(state) ? choice_random(state) : 0;
}

static struct generation_id random_ballot(uint64_t *state)
{
    return (struct generation_id){.number = 1 + random_number(state) / 2,
                                  .incarnation = choice_random(state)};
}

static uint32_t random_chain(uint64_t *state, struct lineage *chain)
{
    const uint32_t count = random_below(state, LOCKSTEP_CHAIN + 1);
    for (uint32_t i = 0; i < count; i++) {
        chain[i].id = random_ballot(state);
        random_ranks(state, chain[i].members);
    }
    return count;
}

static void random_resume(uint64_t *state, struct up_resume *resume)
{
    resume->generation.number = random_number(state);
    resume->generation.incarnation = random_number(state);
    resume->rank = random_below(state, LOCKSTEP_MAX_WORLD);
    resume->world_size = random_below(state, LOCKSTEP_MAX_WORLD + 1);
    resume->settled = random_number(state);
    resume->rounds = (uint32_t)random_number(state);
    resume->starting = random_bool(state);
    resume->plan_number = random_number(state);
    resume->learning_step = random_number(state);
    resume->tuning.latency_ns = random_number(state);
    resume->tuning.bytes_per_s = random_number(state);
    resume->tuning.shares = random_bool(state);
    resume->start.manifest_hash = random_number(state);
    resume->start.item_count = random_below(state, LOCKSTEP_MAX_ITEMS + 1);
    resume->start.settled = random_number(state);
    resume->start.grouped = random_bool(state);
    resume->frozen = random_bool(state);
    resume->founder = random_ballot(state);
    resume->promised = random_ballot(state);
    resume->chain_count = random_chain(state, resume->chain);
    random_ranks(state, resume->dead);
}

static void random_hello(uint64_t *state, struct up_hello *hello)
{
    hello->version = (uint32_t)random_number(state);
    RANDOM_TEXT(state, hello->job);
    for (size_t i = 0; i < sizeof(hello->uuid.bytes); i++)
        hello->uuid.bytes[i] = (uint8_t)choice_random(state);
    RANDOM_TEXT(state, hello->host_id);
    RANDOM_TEXT(state, hello->host);
    RANDOM_TEXT(state, hello->address);
    hello->pid = (uint32_t)random_number(state);
    hello->world_min = (uint32_t)random_number(state);
    hello->world_max = (uint32_t)random_number(state);
    hello->window_ms = (uint32_t)random_number(state);
    hello->has_rank_hint = random_bool(state);
    if (hello->has_rank_hint)
        hello->rank_hint = (uint32_t)random_number(state);
    hello->open_timeout_ms = (uint32_t)random_number(state);
    hello->on_failure = (enum failure_policy)random_below(state, FAILURE_CONTINUE + 1);
    RANDOM_TEXT(state, hello->device);
    hello->started = random_number(state);
    hello->cores = random_number(state);
    RANDOM_TEXT(state, hello->gpu_problem);
    hello->elsewhere = random_bool(state);
    hello->virtual_ranks = (uint32_t)random_number(state);
    hello->resumes = random_bool(state);
    if (hello->resumes)
        random_resume(state, &hello->resume);
    hello->has_gpu = random_bool(state);
    if (!hello->has_gpu)
        return;
    for (size_t i = 0; i < sizeof(hello->gpu.uuid.bytes); i++)
        hello->gpu.uuid.bytes[i] = (uint8_t)choice_random(state);
    hello->gpu.capability = (uint32_t)random_number(state);
    hello->gpu.driver_version = (uint32_t)random_number(state);
    hello->gpu.nccl_version = (uint32_t)random_number(state);
    RANDOM_TEXT(state, hello->gpu.nccl_missing);
    hello->further_gpu_count = random_below(state, LOCKSTEP_MAX_OWN_DEVICES);
    for (uint32_t i = 0; i < hello->further_gpu_count; i++)
        hello->further_gpus[i].bytes[i] = (uint8_t)choice_random(state);
}

static void random_manifest(uint64_t *state, struct up_manifest_part *part)
{
    part->first = random_below(state, LOCKSTEP_MAX_PARAMETERS);
    part->count = random_below(state, LOCKSTEP_MANIFEST_PART + 1);
    for (uint32_t i = 0; i < part->count; i++) {
        struct manifest_item *item = &part->items[i];
        item->kind = (enum manifest_kind)(MANIFEST_SESSION + random_below(state, MANIFEST_BUFFER));
        item->module = random_below(state, LOCKSTEP_MAX_MODULES);
        RANDOM_TEXT(state, item->name);
        item->dtype = (enum dtype)random_below(state, DTYPE_LAST + 1);
        item->flags = (uint32_t)random_number(state);
        item->dims = random_below(state, LOCKSTEP_MAX_DIMS + 1);
        for (uint32_t dim = 0; dim < item->dims; dim++) {
            item->shape[dim] = (int64_t)random_number(state);
            item->strides[dim] = (int64_t)random_number(state);
        }
        RANDOM_TEXT(state, item->value);
    }
}

static void random_layout(uint64_t *state, struct layout_part *part)
{
    part->module = random_below(state, LOCKSTEP_MAX_MODULES);
    part->count = random_below(state, LOCKSTEP_LAYOUT_PART + 1);
    part->total = part->count + random_below(state, LOCKSTEP_MAX_LAYOUT_WORDS - part->count + 1);
    part->first = random_below(state, part->total - part->count + 1);
    for (uint32_t i = 0; i < part->count; i++)
        part->words[i] = (uint32_t)random_number(state);
}

static struct call_id random_call(uint64_t *state)
{
    const struct slot_id slot = random_slot(state);
    return (struct call_id){.module = slot.module, .call = slot.call};
}

static char random_letter(uint64_t *state)
{
    return "AZazTtDZS"[random_below(state, 9)];
}

static void random_wait(uint64_t *state, struct up_wait *wait)
{
    wait->step = random_number(state);
    wait->phase = choice_random(state);
    wait->slot = random_slot(state);
    wait->also_count = random_below(state, LOCKSTEP_MAX_WAITS);
    for (uint32_t i = 0; i < wait->also_count; i++)
        wait->also[i] = random_slot(state);
}

static void random_place(uint64_t *state, struct place *place)
{
    place->count = random_below(state, LOCKSTEP_MAX_SLOTS + 1);
    place->position = random_below(state, place->count + 2);
    place->done = random_bool(state);
    place->open = random_bool(state);
    place->learning = random_bool(state);
    place->waits = random_bool(state);
    if (place->position < place->count)
        place->slot = random_slot(state);
    place->api = (enum api_function)random_below(state, API_CLOSE + 1);
    place->inside = random_bool(state);
    place->api_ms = random_number(state);
    place->module = random_below(state, LOCKSTEP_MAX_MODULES + 1);
    place->call = random_below(state, LOCKSTEP_MAX_CALLS);
    place->calls_open = (uint32_t)random_number(state);
    place->ready = (uint32_t)random_number(state);
    place->gradients = (uint32_t)random_number(state);
    place->plain = random_number(state);
    place->usual_us = random_number(state);
    place->longest_us = random_number(state);
    place->waited_us = random_number(state);
}

static void random_trouble(uint64_t *state, struct up_heartbeat *heartbeat)
{
    heartbeat->flags = random_below(state, PLACE_FLAGS + 1);
    heartbeat->pause_ms = random_number(state);
    heartbeat->link_count = random_below(state, LOCKSTEP_LINKS_NAMED + 1);
    for (uint32_t i = 0; i < heartbeat->link_count; i++) {
        struct link_state *link = &heartbeat->links[i];
        link->rank = random_below(state, LOCKSTEP_MAX_WORLD);
        link->awaited = random_bool(state);
        link->unsent = random_number(state);
        link->received = random_number(state);
        link->still_ms = random_number(state);
        link->reached = random_bool(state);
    }
    heartbeat->mate_count = random_below(state, LOCKSTEP_MATES_NAMED + 1);
    for (uint32_t i = 0; i < heartbeat->mate_count; i++) {
        heartbeat->mates[i].rank = random_below(state, LOCKSTEP_MAX_WORLD);
        heartbeat->mates[i].state = random_letter(state);
        heartbeat->mates[i].tracer = (uint32_t)random_number(state);
    }
    RANDOM_TEXT(state, heartbeat->sleeps);
    RANDOM_TEXT(state, heartbeat->failure);
}

static void random_set(uint64_t *state, struct slot_set *set)
{
    const uint32_t words = random_below(state, LOCKSTEP_SLOT_WORDS + 1);
    for (uint32_t i = 0; i < words; i++)
        set->words[i] = random_bool(state) ? choice_random(state) : 0;
}

static void random_blocked(uint64_t *state, struct up_blocked *blocked)
{
    blocked->step = random_number(state);
    blocked->space = choice_random(state);
    blocked->wait_count = random_below(state, LOCKSTEP_MAX_WAITS + 1);
    for (uint32_t i = 0; i < blocked->wait_count; i++) {
        blocked->waits[i].call = random_call(state);
        random_set(state, &blocked->waits[i].needs);
    }
    random_set(state, &blocked->lacks);
    for (uint32_t at = 0; at < LOCKSTEP_MAX_SLOTS; at++) {
        if (blocked->lack_count == LOCKSTEP_LACKS_NAMED || random_bool(state) ||
            (blocked->lacks.words[at / 64] >> at % 64 & 1) == 0)
            continue;
        blocked->lacking[blocked->lack_count].position = at;
        blocked->lacking[blocked->lack_count++].call = random_call(state);
    }
}

static void random_replan(uint64_t *state, struct up_replan *replan)
{
    replan->step = random_number(state);
    replan->phase = choice_random(state);
    replan->replaces = random_number(state);
    replan->in_force = random_number(state);
    replan->call_count = random_below(state, LOCKSTEP_REPLAN_CALLS + 1);
    for (uint32_t i = 0; i < replan->call_count; i++)
        replan->calls[i] = random_call(state);
}

static void random_modules(uint64_t *state, struct up_modules *modules)
{
    modules->count = random_below(state, LOCKSTEP_NAMES_PART + 1);
    modules->total =
        modules->count + random_below(state, LOCKSTEP_MAX_MODULES - modules->count + 1);
    modules->first = random_below(state, modules->total - modules->count + 1);
    for (uint32_t i = 0; i < modules->count; i++) {
        RANDOM_TEXT(state, modules->names[i]);
        RANDOM_TEXT(state, modules->groups[i]);
    }
    modules->grouped = choice_random(state);
    modules->absent = modules->grouped & choice_random(state);
}

static void random_answer_place(uint64_t *state, struct answer_place *place)
{
    RANDOM_TEXT(state, place->phase);
    RANDOM_TEXT(state, place->doing);
    place->missing_count = random_below(state, LOCKSTEP_MISSING_NAMED + 1);
    place->missing_total = place->missing_count + random_below(state, 1000);
    for (uint32_t i = 0; i < place->missing_count; i++)
        RANDOM_TEXT(state, place->missing[i]);
    RANDOM_TEXT(state, place->awaited);
    place->stream = choice_random(state);
}

static void random_answer_threads(uint64_t *state, struct answer_threads *threads)
{
    threads->count = random_below(state, LOCKSTEP_THREADS_PART + 1);
    for (uint32_t i = 0; i < threads->count; i++) {
        struct stack_thread *thread = &threads->threads[i];
        thread->tid = (uint32_t)random_number(state);
        RANDOM_TEXT(state, thread->name);
        thread->state = random_bool(state) ? random_letter(state) : '\0';
        thread->trainer = random_bool(state);
        thread->syscall = (int32_t)random_number(state);
        RANDOM_TEXT(state, thread->wchan);
        thread->how = (enum stack_how)random_below(state, STACK_NOT_ASKED + 1);
        thread->awaits = (enum stack_awaits)random_below(state, AWAITS_END + 1);
        thread->owner = (uint32_t)random_number(state);
        RANDOM_TEXT(state, thread->owner_name);
        thread->other = random_bool(state);
    }
}

static void random_answer_frames(uint64_t *state, struct answer_frames *frames)
{
    frames->count = random_below(state, LOCKSTEP_FRAMES_PART + 1);
    for (uint32_t i = 0; i < frames->count; i++) {
        struct stack_frame *frame = &frames->frames[i];
        frame->thread = random_below(state, LOCKSTEP_STACK_THREADS);
        frame->python = random_bool(state);
        frame->library = random_bool(state);
        frame->guessed = random_bool(state);
        RANDOM_TEXT(state, frame->object);
        RANDOM_TEXT(state, frame->symbol);
        frame->offset = random_number(state);
    }
}

static void random_answer_events(uint64_t *state, struct answer_events *events)
{
    events->count = random_below(state, LOCKSTEP_EVENTS_PART + 1);
    for (uint32_t i = 0; i < events->count; i++)
        events->events[i] = (struct trace_event){.time_ns = random_number(state),
                                                 .step = random_number(state),
                                                 .value = random_number(state),
                                                 .kind = (uint16_t)random_number(state),
                                                 .thread = (uint16_t)random_number(state),
                                                 .module = (uint16_t)random_number(state),
                                                 .call = (uint16_t)random_number(state),
                                                 .bucket = (uint32_t)random_number(state)};
}

static void random_answer(uint64_t *state, struct up_answer *answer)
{
    answer->id = random_number(state);
    answer->clock_ns = random_number(state);
    answer->last = random_bool(state);
    answer->kind = (enum answer_kind)(1 + random_below(state, ANSWER_EVENTS));
    switch (answer->kind) {
    case ANSWER_PLACE:
        random_answer_place(state, &answer->u.place);
        break;
    case ANSWER_THREADS:
        random_answer_threads(state, &answer->u.threads);
        break;
    case ANSWER_FRAMES:
        random_answer_frames(state, &answer->u.frames);
        break;
    case ANSWER_EVENTS:
        random_answer_events(state, &answer->u.events);
        break;
    }
}

static uint32_t random_keys(uint64_t *state, struct await_key *keys)
{
    const uint32_t count = random_below(state, LOCKSTEP_MAX_AWAITED + 1);
    for (uint32_t i = 0; i < count; i++)
        keys[i] = (struct await_key){(enum await_kind)(1 + random_below(state, AWAIT_CALL)),
                                     choice_random(state), random_number(state)};
    return count;
}

static void random_await(uint64_t *state, struct await *await)
{
    if (random_bool(state))
        return;
    await->key = (struct await_key){(enum await_kind)(1 + random_below(state, AWAIT_CALL)),
                                    choice_random(state), random_number(state)};
    await->function = (enum api_function)random_below(state, API_GROUP_CREATE + 1);
    await->module = random_below(state, LOCKSTEP_MAX_MODULES + 1);
    await->rooted = random_bool(state);
    await->root = await->rooted ? random_below(state, LOCKSTEP_MAX_WORLD) : 0;
    await->step = random_number(state);
    await->open = random_bool(state);
    RANDOM_TEXT(state, await->name);
    RANDOM_TEXT(state, await->detail);
    for (uint32_t i = random_below(state, LOCKSTEP_RANK_WORDS + 1); i-- > 0;)
        await->members[i] = choice_random(state);
    await->lack_count = random_keys(state, await->lacks);
}

static void random_heartbeat(uint64_t *state, struct up_heartbeat *heartbeat)
{
    heartbeat->step = random_number(state);
    heartbeat->settled = random_number(state);
    heartbeat->activity = (enum worker_activity)random_below(state, ACTIVITY_PAUSED + 1);
    heartbeat->since_ms = random_number(state);
    RANDOM_TEXT(state, heartbeat->mark);
    heartbeat->bytes_sent = random_number(state);
    heartbeat->bytes_received = random_number(state);
    heartbeat->totals.steps = random_number(state);
    heartbeat->totals.bytes_copied = random_number(state);
    heartbeat->totals.in_flight_us = random_number(state);
    heartbeat->totals.overlap_us = random_number(state);
    heartbeat->totals.exposed_us = random_number(state);
    heartbeat->totals.zero_filled = random_number(state);
    heartbeat->totals.unused = random_number(state);
    random_place(state, &heartbeat->place);
    random_trouble(state, heartbeat);
    heartbeat->held = (enum device_hold)random_below(state, DEVICE_HOLD_NCCL + 1);
    random_await(state, &heartbeat->await);
    RANDOM_TEXT(state, heartbeat->collective);
    RANDOM_TEXT(state, heartbeat->collective_detail);
    heartbeat->collective_use = random_number(state);
    heartbeat->overdue_count = random_below(state, LOCKSTEP_OVERDUE_NAMED + 1);
    for (uint32_t i = 0; i < heartbeat->overdue_count; i++)
        heartbeat->overdue[i] =
            (struct overdue){random_number(state), random_number(state), random_number(state)};
    heartbeat->metric_count = random_below(state, LOCKSTEP_MAX_METRICS + 1);
    for (uint32_t i = 0; i < heartbeat->metric_count; i++) {
        struct metric_state *metric = &heartbeat->metrics[i];
        RANDOM_TEXT(state, metric->name);
        metric->kind = METRIC_SUM + random_below(state, METRIC_MAX);
        metric->count = (uint32_t)random_number(state);
        metric->value = (double)random_number(state) / 7;
    }
    heartbeat->counter_count = random_below(state, LOCKSTEP_MAX_COUNTERS + 1);
    for (uint32_t i = 0; i < heartbeat->counter_count; i++) {
        RANDOM_TEXT(state, heartbeat->counters[i].name);
        heartbeat->counters[i].total = (int64_t)random_number(state);
    }
}

static void random_record(uint64_t *state, enum record_kind kind, struct record_part *part)
{
    part->kind = kind;
    part->position = random_below(state, LOCKSTEP_MAX_SLOTS);
    part->count = random_below(state, LOCKSTEP_RECORD_PART + 1);
    part->total = part->count + random_below(state, LOCKSTEP_MAX_RECORD_WORDS - part->count + 1);
    part->first = random_below(state, part->total - part->count + 1);
    for (uint32_t i = 0; i < part->count; i++)
        part->words[i] = random_number(state);
}

static void random_report(uint64_t *state, struct up_report *report)
{
    report->ballot = random_ballot(state);
    report->settled = random_number(state) / 2;
    report->step = report->settled + random_below(state, 2);
    report->flags = random_below(state, REPORT_FLAGS + 1);
    report->phase = choice_random(state);
    report->space = choice_random(state);
}

static void random_up(int kind, uint64_t *state, union any_message *any)
{
    struct up_message *message = &any->up;

    memset(any, 0, sizeof(*any));
    message->kind = (enum up_kind)kind;
    message->generation.number = random_number(state);
    message->generation.incarnation = random_number(state);
    switch (message->kind) {
    case UP_HELLO:
        random_hello(state, &message->u.hello);
        break;
    case UP_START:
        message->u.start.manifest_hash = choice_random(state);
        message->u.start.item_count = random_below(state, LOCKSTEP_MAX_PARAMETERS);
        message->u.start.root = random_below(state, LOCKSTEP_MAX_WORLD);
        message->u.start.settled = choice_random(state);
        message->u.start.zero_defer = random_bool(state);
        message->u.start.strict = random_bool(state);
        message->u.start.grouped = random_bool(state);
        break;
    case UP_MANIFEST_PART:
        random_manifest(state, &message->u.manifest_part);
        break;
    case UP_READY:
        message->u.ready.step = random_number(state);
        message->u.ready.phase = choice_random(state);
        message->u.ready.slot = random_slot(state);
        message->u.ready.dtype = (enum dtype)random_below(state, DTYPE_LAST + 1);
        message->u.ready.elements = random_number(state);
        message->u.ready.granted = random_below(state, LOCKSTEP_MAX_SLOTS + 1);
        message->u.ready.unmade = random_bool(state);
        message->u.ready.grants = random_below(state, LOCKSTEP_MAX_SLOTS + 1);
        break;
    case UP_WAIT:
        random_wait(state, &message->u.wait);
        break;
    case UP_LAYOUT_PART:
        random_layout(state, &message->u.layout_part);
        break;
    case UP_END:
        message->u.end.step = random_number(state);
        message->u.end.phase = choice_random(state);
        message->u.end.plan = random_number(state);
        message->u.end.plan_hash = choice_random(state);
        break;
    case UP_HEARTBEAT:
        random_heartbeat(state, &message->u.heartbeat);
        break;
    case UP_FAIL:
        message->u.fail.step = random_number(state);
        message->u.fail.kind = (enum halt_kind)(1 + random_below(state, HALT_LIMIT));
        RANDOM_TEXT(state, message->u.fail.text);
        message->u.fail.space = choice_random(state);
        message->u.fail.use = random_number(state);
        RANDOM_TEXT(state, message->u.fail.name);
        RANDOM_TEXT(state, message->u.fail.form);
        break;
    case UP_LOST:
        message->u.lost.rank = random_below(state, LOCKSTEP_MAX_WORLD);
        message->u.lost.left = random_bool(state);
        message->u.lost.silent = random_bool(state);
        message->u.lost.impossible = random_bool(state);
        message->u.lost.proof = (enum loss_proof)random_below(state, PROOF_WORD + 1);
        message->u.lost.step = random_number(state);
        RANDOM_TEXT(state, message->u.lost.text);
        break;
    case UP_LEAVE:
        message->u.leave.settled = random_number(state);
        RANDOM_TEXT(state, message->u.leave.reason);
        RANDOM_TEXT(state, message->u.leave.cause);
        message->u.leave.flags = random_bool(state) ? REPORT_SKIPPED : REPORT_OPENED;
        message->u.leave.word_count = random_below(state, LOCKSTEP_WAVE_BYTES / 8 + 1);
        for (uint32_t i = 0; i < message->u.leave.word_count; i++)
            message->u.leave.words[i] = random_number(state);
        break;
    case UP_LINKS:
        message->u.links.shares = random_bool(state);
        message->u.links.latency_ns = random_number(state);
        message->u.links.bytes_per_s = random_number(state);
        message->u.links.wish = random_below(state, ALGORITHM_BY_SIZE + 1);
        message->u.links.sums_ranks = random_bool(state);
        break;
    case UP_BLOCKED:
        random_blocked(state, &message->u.blocked);
        break;
    case UP_MODULES:
        random_modules(state, &message->u.modules);
        break;
    case UP_ANSWER:
        random_answer(state, &message->u.answer);
        break;
    case UP_REPLAN:
        random_replan(state, &message->u.replan);
        break;
    case UP_REACH:
        message->u.reach.count = 1 + random_below(state, LOCKSTEP_REACH_RANKS);
        for (uint32_t i = 0; i < message->u.reach.count; i++)
            message->u.reach.ranks[i] = random_below(state, LOCKSTEP_MAX_WORLD);
        break;
    case UP_RECORD_PART:
        random_record(state, RECORD_RUNS, &message->u.record_part);
        break;
    case UP_REPORT:
        random_report(state, &message->u.report);
        break;
    case UP_REFUSE:
        message->u.refuse.promised = random_ballot(state);
        break;
    case UP_NONE:
        break;
    }
}

// Every second peer is a mate, the others are on hosts of their own.
static void random_locality(uint64_t *state, struct down_generation *generation)
{
    struct locality *locality = &generation->locality;
    bool placed = false;
    for (uint32_t i = 0; i < generation->peer_count; i++) {
        const uint32_t rank = generation->peers[i].rank;
        if (!placed && rank > generation->rank) {
            locality->local = locality->mate_count;
            locality->mates[locality->mate_count++] = generation->rank;
            placed = true;
        }
        if (random_bool(state) && locality->mate_count < LOCKSTEP_MAX_MATES - 1)
            locality->mates[locality->mate_count++] = rank;
    }
    if (!placed) {
        locality->local = locality->mate_count;
        locality->mates[locality->mate_count++] = generation->rank;
    }
    for (uint32_t i = 0; i < locality->mate_count; i++) {
        locality->mate_pids[i] = (uint32_t)random_number(state);
        locality->mate_started[i] = random_number(state);
    }
    const uint32_t others = generation->world_size - locality->mate_count;
    locality->hosts = others == 0 ? 1 : 2 + random_below(state, others);
    locality->host = random_below(state, locality->hosts);
    locality->rings = 1 + random_below(state, locality->mate_count);
    if (locality->hosts > 1 && locality->local < locality->rings) {
        locality->successor = generation->peers[0].rank;
        locality->predecessor = generation->peers[generation->peer_count - 1].rank;
    }
}

static void random_generation(uint64_t *state, struct down_generation *generation)
{
    generation->world_size =
        1 + random_below(state, random_bool(state) ? 6 : LOCKSTEP_MAX_WORLD); // One host, or many.
    generation->rank = random_below(state, generation->world_size);
    generation->local_size = 1 + random_below(state, generation->world_size);
    generation->local_rank = random_below(state, generation->local_size);
    generation->chunk_bytes = 8 + random_below(state, LOCKSTEP_FRAME_BYTES / 8) * 8;
    for (size_t i = 0; i < sizeof(generation->secret); i++)
        generation->secret[i] = (uint8_t)choice_random(state);
    uint32_t ranks[LOCKSTEP_MAX_NEIGHBOURS];
    uint32_t count = topology_neighbours(generation->rank, generation->world_size, ranks);
    for (uint32_t more = random_below(state, 8); more > 0; more--)
        count = topology_add(ranks, count, generation->rank,
                             random_below(state, generation->world_size));
    for (uint32_t i = 0; i < count; i++) {
        struct peer *peer = &generation->peers[generation->peer_count++];
        peer->rank = ranks[i];
        RANDOM_TEXT(state, peer->address);
        RANDOM_TEXT(state, peer->host);
    }
    for (uint32_t more = random_below(state, 3); more > 0 && generation->world_size > 1; more--) {
        struct data_port *port = &generation->further[generation->further_count++];
        port->rank = (generation->rank + more) % generation->world_size;
        if (port->rank == generation->rank)
            port->rank = (port->rank + 1) % generation->world_size;
        RANDOM_TEXT(state, port->address);
    }
    for (uint32_t rank = 0; rank < generation->world_size; rank++)
        generation->gpus[rank / 64] |= (uint64_t)random_bool(state) << rank % 64;
    generation->gpus_meet = random_bool(state);
    generation->core_ranks = random_below(state, generation->world_size + 1);
    if (random_bool(state))
        random_locality(state, generation);
}

static void random_plan(uint64_t *state, struct down_plan_part *part)
{
    part->number = random_number(state);
    part->phase = choice_random(state);
    part->hash = choice_random(state);
    part->closes_step = random_bool(state);
    part->step = random_number(state);
    part->slot_count = random_below(state, LOCKSTEP_PLAN_PART + 1);
    part->slot_total =
        part->slot_count + random_below(state, LOCKSTEP_MAX_SLOTS - part->slot_count + 1);
    part->slot_first = random_below(state, part->slot_total - part->slot_count + 1);
    part->last = part->slot_first + part->slot_count == part->slot_total;
    part->strict = random_bool(state);
    part->replaces = random_number(state);
    for (uint32_t i = 0; i < part->slot_count; i++)
        part->slots[i].id = random_slot(state);
}

static void random_down(int kind, uint64_t *state, union any_message *any)
{
    struct down_message *message = &any->down;

    memset(any, 0, sizeof(*any));
    message->kind = (enum down_kind)kind;
    message->generation.number = random_number(state);
    message->generation.incarnation = random_number(state);
    switch (message->kind) {
    case DOWN_WELCOME:
        message->u.welcome.version = (uint32_t)random_number(state);
        message->u.welcome.heartbeat_ms = (uint32_t)random_number(state);
        break;
    case DOWN_REFUSED:
        message->u.refused.refusal = (enum refusal)(1 + random_below(state, REFUSAL_DRAINING));
        RANDOM_TEXT(state, message->u.refused.text);
        break;
    case DOWN_GENERATION:
        random_generation(state, &message->u.generation_start);
        break;
    case DOWN_MANIFEST_REQUEST:
        message->u.manifest_request.first = random_below(state, LOCKSTEP_MAX_PARAMETERS);
        message->u.manifest_request.count = random_below(state, LOCKSTEP_MANIFEST_PART + 1);
        break;
    case DOWN_GRANT:
        message->u.grant.step = random_number(state);
        message->u.grant.slot = random_slot(state);
        message->u.grant.forced = random_bool(state);
        break;
    case DOWN_LAYOUT_PART:
        random_layout(state, &message->u.layout_part);
        break;
    case DOWN_PLAN_PART:
        random_plan(state, &message->u.plan_part);
        break;
    case DOWN_HALT:
        message->u.halt.step = random_number(state);
        message->u.halt.kind = (enum halt_kind)(1 + random_below(state, HALT_LIMIT));
        message->u.halt.has_rank = random_bool(state);
        if (message->u.halt.has_rank)
            message->u.halt.rank = random_below(state, LOCKSTEP_MAX_WORLD);
        RANDOM_TEXT(state, message->u.halt.text);
        RANDOM_TEXT(state, message->u.halt.cause);
        break;
    case DOWN_TUNING:
        message->u.tuning.latency_ns = random_number(state);
        message->u.tuning.bytes_per_s = random_number(state);
        message->u.tuning.doubling_bytes = random_number(state);
        message->u.tuning.halving_bytes = random_number(state);
        message->u.tuning.shares = random_bool(state);
        message->u.tuning.wish = random_below(state, ALGORITHM_BY_SIZE + 1);
        break;
    case DOWN_QUERY:
        message->u.query.step = random_number(state);
        message->u.query.withdrawn = random_bool(state);
        message->u.query.key_count = random_keys(state, message->u.query.keys);
        message->u.query.form =
            message->u.query.key_count == 1 && message->u.query.keys[0].kind == AWAIT_COLLECTIVE;
        break;
    case DOWN_INSPECT:
        message->u.inspect.id = random_number(state);
        message->u.inspect.what = 1 + random_below(state, INSPECT_ALL);
        break;
    case DOWN_ADDRESSES:
        message->u.addresses.count = 1 + random_below(state, LOCKSTEP_REACH_RANKS);
        for (uint32_t i = 0; i < message->u.addresses.count; i++) {
            message->u.addresses.peers[i].rank = random_below(state, LOCKSTEP_MAX_WORLD);
            RANDOM_TEXT(state, message->u.addresses.peers[i].address);
            RANDOM_TEXT(state, message->u.addresses.peers[i].host);
        }
        break;
    case DOWN_PREPARE:
        message->u.prepare.ballot = random_ballot(state);
        random_ranks(state, message->u.prepare.suspects);
        RANDOM_TEXT(state, message->u.prepare.text);
        break;
    case DOWN_RECORD_PART:
        random_record(state, RECORD_ROWS, &message->u.record_part);
        break;
    case DOWN_DECISION:
        message->u.decision.ballot = random_ballot(state);
        message->u.decision.settled = random_number(state);
        message->u.decision.step = random_number(state);
        message->u.decision.flags = random_below(state, REPORT_FLAGS + 1);
        random_ranks(state, message->u.decision.removed);
        message->u.decision.chain_count = random_chain(state, message->u.decision.chain);
        random_ranks(state, message->u.decision.dead);
        RANDOM_TEXT(state, message->u.decision.text);
        break;
    case DOWN_EXCLUDED:
        message->u.excluded.ballot = random_ballot(state);
        RANDOM_TEXT(state, message->u.excluded.text);
        break;
    case DOWN_VERIFIED:
        message->u.verified.grouped = random_bool(state);
        break;
    case DOWN_NONE:
        break;
    }
}

static const struct direction up = {"up",       UP_REFUSE, sizeof(struct up_message),
                                    example_up, random_up, golden_up};
static const struct direction down = {"down",       DOWN_EXCLUDED, sizeof(struct down_message),
                                      example_down, random_down,   golden_down};
static const struct direction *const directions[] = {&up, &down};

static enum codec_status encode(const struct direction *direction, const union any_message *message,
                                uint8_t *bytes, size_t capacity, size_t *size)
{
    if (direction == &up)
        return codec_encode_up(&message->up, bytes, capacity, size);
    return codec_encode_down(&message->down, bytes, capacity, size);
}

// From a block of exactly these bytes, so that AddressSanitizer sees a read behind them.
static enum codec_status decode(const struct direction *direction, const uint8_t *bytes,
                                size_t size, union any_message *message, const char **detail)
{
    uint8_t *exact = malloc(size > 0 ? size : 1);
    enum codec_status status;

    assert_non_null(exact);
    memcpy(exact, bytes, size);
    memset(message, 0xa5, sizeof(*message));
    if (direction == &up)
        status = codec_decode_up(exact, size, &message->up, detail);
    else
        status = codec_decode_down(exact, size, &message->down, detail);
    free(exact);
    return status;
}

static void assert_messages_equal(const struct direction *direction, int kind,
                                  const union any_message *a, const union any_message *b)
{
    const uint8_t *left = (const uint8_t *)a;
    const uint8_t *right = (const uint8_t *)b;
    for (size_t i = 0; i < direction->message_size; i++) {
        if (left[i] != right[i])
            fail_msg("%s kind %d differs at byte %zu: %02x, %02x", direction->name, kind, i,
                     left[i], right[i]);
    }
}

// A decoded message obeys every bound, so it encodes, and comes back equal.
static void assert_encodes_again(const struct direction *direction,
                                 const union any_message *message)
{
    static uint8_t bytes[LOCKSTEP_MESSAGE_BYTES];
    union any_message again;
    size_t size = 0;
    const char *detail = "";

    if (encode(direction, message, bytes, sizeof(bytes), &size) != CODEC_OK)
        fail_msg("%s: what was decoded does not encode", direction->name);
    if (decode(direction, bytes, size, &again, &detail) != CODEC_OK)
        fail_msg("%s: %s", direction->name, detail);
    assert_messages_equal(direction, -1, message, &again);
}

// ---- Tests -------------------------------------------------------------------------------------

// A change of these bytes breaks running workers: fields are only ever added.
static void test_golden_bytes(void **state)
{
    static uint8_t bytes[LOCKSTEP_MESSAGE_BYTES];
    (void)state;
    for (size_t d = 0; d < COUNT(directions); d++) {
        for (int kind = 1; kind <= directions[d]->last_kind; kind++) {
            union any_message message;
            union any_message decoded;
            char hex[2 * 512 + 1] = "";
            size_t size = 0;
            directions[d]->example(kind, &message);
            assert_int_equal(encode(directions[d], &message, bytes, sizeof(bytes), &size),
                             CODEC_OK);
            assert_in_range(size, 1, 512);
            for (size_t i = 0; i < size; i++)
                snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
            if (strcmp(hex, directions[d]->golden[kind]) != 0)
                fail_msg("%s kind %d: %s", directions[d]->name, kind, hex);
            assert_int_equal(decode(directions[d], bytes, size, &decoded, NULL), CODEC_OK);
            assert_messages_equal(directions[d], kind, &message, &decoded);
        }
    }
}

static void test_round_trip(void **state)
{
    static uint8_t bytes[LOCKSTEP_MESSAGE_BYTES];
    uint64_t seed = SEED;
    (void)state;
    for (size_t d = 0; d < COUNT(directions); d++) {
        for (int kind = 1; kind <= directions[d]->last_kind; kind++) {
            for (int round = 0; round < ROUNDS; round++) {
                union any_message message;
                union any_message decoded;
                size_t size = 0;
                const char *detail = "";
                directions[d]->random(kind, &seed, &message);
                assert_int_equal(encode(directions[d], &message, bytes, sizeof(bytes), &size),
                                 CODEC_OK);
                if (decode(directions[d], bytes, size, &decoded, &detail) != CODEC_OK)
                    fail_msg("%s kind %d: %s", directions[d]->name, kind, detail);
                assert_messages_equal(directions[d], kind, &message, &decoded);
            }
        }
    }
}

static void test_small_buffers(void **state)
{
    (void)state;
    for (size_t d = 0; d < COUNT(directions); d++) {
        for (int kind = 1; kind <= directions[d]->last_kind; kind++) {
            union any_message message;
            uint8_t bytes[512];
            size_t size = 0;
            size_t used = 77;
            directions[d]->example(kind, &message);
            assert_int_equal(encode(directions[d], &message, bytes, sizeof(bytes), &size),
                             CODEC_OK);
            for (size_t capacity = 0; capacity < size; capacity++) {
                assert_int_equal(encode(directions[d], &message, bytes, capacity, &used),
                                 CODEC_SPACE);
                assert_int_equal(used, 0);
            }
            assert_int_equal(encode(directions[d], &message, bytes, size, &used), CODEC_OK);
        }
    }
}

// A message is a generation and one long field, so there are two places where the bytes may end
// without tearing a field: before the generation and behind it. There the kind is missing.
static void test_truncation(void **state)
{
    static uint8_t bytes[LOCKSTEP_MESSAGE_BYTES];
    uint64_t seed = SEED;
    (void)state;
    for (size_t d = 0; d < COUNT(directions); d++) {
        for (int kind = 1; kind <= directions[d]->last_kind; kind++) {
            union any_message message;
            union any_message decoded;
            size_t size = 0;
            directions[d]->random(kind, &seed, &message);
            assert_int_equal(encode(directions[d], &message, bytes, sizeof(bytes), &size),
                             CODEC_OK);
            assert_int_equal(bytes[0], 0x0a);
            const size_t generation_end = 2 + (size_t)bytes[1];
            for (size_t end = 0; end < size; end++) {
                const bool whole = end == 0 || end == generation_end;
                const char *detail = NULL;
                assert_int_equal(decode(directions[d], bytes, end, &decoded, &detail),
                                 whole ? CODEC_INVALID : CODEC_TRUNCATED);
                assert_non_null(detail);
                assert_int_equal(decoded.up.kind, 0);
            }
        }
    }
}

static void test_mutations(void **state)
{
    static uint8_t bytes[LOCKSTEP_MESSAGE_BYTES];
    uint64_t seed = SEED;
    unsigned decoded_count = 0;
    unsigned refused_count = 0;
    (void)state;
    for (size_t d = 0; d < COUNT(directions); d++) {
        for (int kind = 1; kind <= directions[d]->last_kind; kind++) {
            for (int round = 0; round < 4000; round++) {
                union any_message message;
                size_t size = 0;
                // Small messages, where most bytes are structure, and sometimes a random one.
                if (round % 16 == 0)
                    directions[d]->random(kind, &seed, &message);
                else
                    directions[d]->example(kind, &message);
                assert_int_equal(encode(directions[d], &message, bytes, sizeof(bytes), &size),
                                 CODEC_OK);
                bytes[choice_random(&seed) % size] = (uint8_t)choice_random(&seed);
                if (decode(directions[d], bytes, size, &message, NULL) == CODEC_OK) {
                    assert_encodes_again(directions[d], &message);
                    decoded_count++;
                } else {
                    refused_count++;
                }
            }
        }
    }
    assert_true(decoded_count > 1000 && refused_count > 1000);
}

static void test_noise(void **state)
{
    uint64_t seed = SEED;
    (void)state;
    for (int round = 0; round < 20000; round++) {
        uint8_t bytes[64];
        const size_t size = choice_random(&seed) % sizeof(bytes);
        for (size_t i = 0; i < size; i++)
            bytes[i] = (uint8_t)(choice_random(&seed) >> (choice_random(&seed) % 8));
        for (size_t d = 0; d < COUNT(directions); d++) {
            union any_message message;
            if (decode(directions[d], bytes, size, &message, NULL) == CODEC_OK)
                assert_encodes_again(directions[d], &message);
        }
    }
}

// ---- Bounds, encoding --------------------------------------------------------------------------

// One field of an example is replaced: a number of 4 bytes, or a text of `size` bytes that has no
// end. Both directions of the codec ask the same checks, so these are the rules of decoding too.
struct poke {
    const struct direction *direction;
    int kind;
    size_t at;
    size_t size;
    uint32_t value;
    enum codec_status status;
};

#define POKE(way, kind, field, value, status) \
    { \
        &way, kind, offsetof(struct way##_message, field), \
            sizeof(((struct way##_message *)NULL)->field), value, status \
    }
#define POKE_MAX(way, kind, field, max) \
    POKE(way, kind, field, max, CODEC_OK), POKE(way, kind, field, (max) + 1, CODEC_INVALID)
#define POKE_COUNT(way, kind, field, max) POKE(way, kind, field, (max) + 1, CODEC_TOO_LONG)
#define POKE_TEXT(way, kind, field) POKE(way, kind, field, 0, CODEC_TOO_LONG)
#define POKE_SLOT(way, kind, slot) \
    POKE_MAX(way, kind, slot.module, LOCKSTEP_MAX_MODULES - 1), \
        POKE_MAX(way, kind, slot.call, LOCKSTEP_MAX_CALLS - 1), \
        POKE_MAX(way, kind, slot.bucket, LOCKSTEP_MAX_BUCKETS - 1)
#define POKE_LAYOUT(way, kind) \
    POKE_MAX(way, kind, u.layout_part.module, LOCKSTEP_MAX_MODULES - 1), \
        POKE_MAX(way, kind, u.layout_part.total, LOCKSTEP_MAX_LAYOUT_WORDS), \
        POKE_MAX(way, kind, u.layout_part.first, 2), \
        POKE(way, kind, u.layout_part.first, UINT32_MAX, CODEC_INVALID), \
        POKE_COUNT(way, kind, u.layout_part.count, LOCKSTEP_LAYOUT_PART)
#define MANIFEST_ITEMS LOCKSTEP_MAX_ITEMS

static const struct poke pokes[] = {
    POKE(up, UP_END, kind, UP_NONE, CODEC_INVALID),
    POKE(up, UP_END, kind, UP_REFUSE + 1, CODEC_INVALID),
    POKE_TEXT(up, UP_HELLO, u.hello.job),
    POKE_TEXT(up, UP_HELLO, u.hello.host_id),
    POKE_TEXT(up, UP_HELLO, u.hello.host),
    POKE_TEXT(up, UP_HELLO, u.hello.address),
    POKE_TEXT(up, UP_HELLO, u.hello.device),
    POKE_TEXT(up, UP_HELLO, u.hello.gpu.nccl_missing),
    POKE_TEXT(up, UP_HELLO, u.hello.gpu_problem),
    POKE_MAX(up, UP_HELLO, u.hello.on_failure, FAILURE_CONTINUE),
    POKE(up, UP_HELLO, u.hello.version, UINT32_MAX, CODEC_OK),
    POKE(up, UP_HELLO, u.hello.world_max, UINT32_MAX, CODEC_OK),
    POKE_MAX(up, UP_START, u.start.item_count, MANIFEST_ITEMS),
    POKE_MAX(up, UP_START, u.start.root, LOCKSTEP_MAX_WORLD - 1),
    POKE_MAX(up, UP_MANIFEST_PART, u.manifest_part.first, MANIFEST_ITEMS - 1),
    POKE(up, UP_MANIFEST_PART, u.manifest_part.first, UINT32_MAX, CODEC_INVALID),
    POKE_COUNT(up, UP_MANIFEST_PART, u.manifest_part.count, LOCKSTEP_MANIFEST_PART),
    POKE(up, UP_MANIFEST_PART, u.manifest_part.items[0].kind, 0, CODEC_INVALID),
    POKE_MAX(up, UP_MANIFEST_PART, u.manifest_part.items[0].kind, MANIFEST_BUFFER),
    POKE_MAX(up, UP_MANIFEST_PART, u.manifest_part.items[0].module, LOCKSTEP_MAX_MODULES - 1),
    POKE_MAX(up, UP_MANIFEST_PART, u.manifest_part.items[0].dtype, DTYPE_LAST),
    POKE(up, UP_MANIFEST_PART, u.manifest_part.items[0].dims, LOCKSTEP_MAX_DIMS, CODEC_OK),
    POKE_COUNT(up, UP_MANIFEST_PART, u.manifest_part.items[0].dims, LOCKSTEP_MAX_DIMS),
    POKE_TEXT(up, UP_MANIFEST_PART, u.manifest_part.items[0].name),
    POKE_TEXT(up, UP_MANIFEST_PART, u.manifest_part.items[0].value),
    POKE_SLOT(up, UP_READY, u.ready.slot),
    POKE_MAX(up, UP_READY, u.ready.dtype, DTYPE_LAST),
    POKE_MAX(up, UP_READY, u.ready.granted, LOCKSTEP_MAX_SLOTS),
    POKE_MAX(up, UP_READY, u.ready.grants, LOCKSTEP_MAX_SLOTS),
    POKE_SLOT(up, UP_WAIT, u.wait.slot),
    POKE_SLOT(up, UP_WAIT, u.wait.also[0]),
    POKE_COUNT(up, UP_WAIT, u.wait.also_count, LOCKSTEP_MAX_WAITS - 1),
    POKE_LAYOUT(up, UP_LAYOUT_PART),
    POKE_MAX(up, UP_HEARTBEAT, u.heartbeat.activity, ACTIVITY_PAUSED),
    POKE_TEXT(up, UP_HEARTBEAT, u.heartbeat.mark),
    POKE_TEXT(up, UP_HEARTBEAT, u.heartbeat.sleeps),
    POKE_TEXT(up, UP_HEARTBEAT, u.heartbeat.failure),
    POKE_MAX(up, UP_HEARTBEAT, u.heartbeat.place.count, LOCKSTEP_MAX_SLOTS),
    POKE(up, UP_HEARTBEAT, u.heartbeat.place.count, 1, CODEC_INVALID), // Position 3.
    POKE_MAX(up, UP_HEARTBEAT, u.heartbeat.place.position, 8),
    POKE(up, UP_HEARTBEAT, u.heartbeat.place.position, UINT32_MAX, CODEC_INVALID),
    POKE_SLOT(up, UP_HEARTBEAT, u.heartbeat.place.slot),
    POKE_MAX(up, UP_HEARTBEAT, u.heartbeat.place.api, API_CLOSE),
    POKE_MAX(up, UP_HEARTBEAT, u.heartbeat.place.module, LOCKSTEP_MAX_MODULES),
    POKE_MAX(up, UP_HEARTBEAT, u.heartbeat.place.call, LOCKSTEP_MAX_CALLS - 1),
    POKE_MAX(up, UP_HEARTBEAT, u.heartbeat.flags, PLACE_FLAGS),
    POKE_COUNT(up, UP_HEARTBEAT, u.heartbeat.link_count, LOCKSTEP_LINKS_NAMED),
    POKE_MAX(up, UP_HEARTBEAT, u.heartbeat.links[0].rank, LOCKSTEP_MAX_WORLD - 1),
    POKE_COUNT(up, UP_HEARTBEAT, u.heartbeat.mate_count, LOCKSTEP_MATES_NAMED),
    POKE(up, UP_HEARTBEAT, u.heartbeat.mate_count, 2, CODEC_INVALID), // The second has no state.
    POKE_MAX(up, UP_HEARTBEAT, u.heartbeat.mates[0].rank, LOCKSTEP_MAX_WORLD - 1),
    POKE_MAX(up, UP_HEARTBEAT, u.heartbeat.await.key.kind, AWAIT_CALL),
    POKE_MAX(up, UP_HEARTBEAT, u.heartbeat.await.function, API_GROUP_CREATE),
    POKE_MAX(up, UP_HEARTBEAT, u.heartbeat.await.module, LOCKSTEP_MAX_MODULES),
    POKE_MAX(up, UP_HEARTBEAT, u.heartbeat.await.root, LOCKSTEP_MAX_WORLD - 1),
    POKE_TEXT(up, UP_HEARTBEAT, u.heartbeat.await.name),
    POKE_TEXT(up, UP_HEARTBEAT, u.heartbeat.await.detail),
    POKE(up, UP_HEARTBEAT, u.heartbeat.await.lack_count, LOCKSTEP_MAX_AWAITED + 1, CODEC_TOO_LONG),
    POKE(up, UP_HEARTBEAT, u.heartbeat.await.lack_count, 2, CODEC_INVALID), // It has no kind.
    POKE_MAX(up, UP_HEARTBEAT, u.heartbeat.await.lacks[0].kind, AWAIT_CALL),
    POKE_TEXT(up, UP_HEARTBEAT, u.heartbeat.collective),
    POKE_TEXT(up, UP_HEARTBEAT, u.heartbeat.collective_detail),
    POKE_COUNT(up, UP_HEARTBEAT, u.heartbeat.overdue_count, LOCKSTEP_OVERDUE_NAMED),
    POKE(up, UP_HEARTBEAT, u.heartbeat.metric_count, LOCKSTEP_MAX_METRICS + 1, CODEC_TOO_LONG),
    POKE(up, UP_HEARTBEAT, u.heartbeat.metric_count, 2, CODEC_INVALID), // The second has no kind.
    POKE_MAX(up, UP_HEARTBEAT, u.heartbeat.metrics[0].kind, METRIC_MAX),
    POKE_TEXT(up, UP_HEARTBEAT, u.heartbeat.metrics[0].name),
    POKE_COUNT(up, UP_HEARTBEAT, u.heartbeat.counter_count, LOCKSTEP_MAX_COUNTERS),
    POKE_TEXT(up, UP_HEARTBEAT, u.heartbeat.counters[0].name),
    POKE(up, UP_FAIL, u.fail.kind, HALT_NONE, CODEC_INVALID),
    POKE_MAX(up, UP_FAIL, u.fail.kind, HALT_LIMIT),
    POKE_TEXT(up, UP_FAIL, u.fail.text),
    POKE_TEXT(up, UP_FAIL, u.fail.name),
    POKE_TEXT(up, UP_FAIL, u.fail.form),
    POKE_MAX(up, UP_LOST, u.lost.rank, LOCKSTEP_MAX_WORLD - 1),
    POKE_TEXT(up, UP_LOST, u.lost.text),
    POKE_TEXT(up, UP_LEAVE, u.leave.reason),
    POKE_TEXT(up, UP_LEAVE, u.leave.cause),
    POKE_MAX(up, UP_LINKS, u.links.wish, ALGORITHM_BY_SIZE),
    POKE_COUNT(up, UP_BLOCKED, u.blocked.wait_count, LOCKSTEP_MAX_WAITS),
    POKE_MAX(up, UP_BLOCKED, u.blocked.waits[1].call.module, LOCKSTEP_MAX_MODULES - 1),
    POKE_MAX(up, UP_BLOCKED, u.blocked.waits[0].call.call, LOCKSTEP_MAX_CALLS - 1),
    POKE_COUNT(up, UP_BLOCKED, u.blocked.lack_count, LOCKSTEP_LACKS_NAMED),
    POKE(up, UP_BLOCKED, u.blocked.lack_count, 3, CODEC_INVALID), // The third has position 0.
    POKE(up, UP_BLOCKED, u.blocked.lacking[0].position, 63, CODEC_INVALID), // No lack.
    POKE(up, UP_BLOCKED, u.blocked.lacking[0].position, 65, CODEC_INVALID), // Said twice.
    POKE(up, UP_BLOCKED, u.blocked.lacking[1].position, LOCKSTEP_MAX_SLOTS, CODEC_INVALID),
    POKE(up, UP_BLOCKED, u.blocked.lacking[1].position, UINT32_MAX, CODEC_INVALID),
    POKE_MAX(up, UP_BLOCKED, u.blocked.lacking[1].call.module, LOCKSTEP_MAX_MODULES - 1),
    POKE_MAX(up, UP_BLOCKED, u.blocked.lacking[0].call.call, LOCKSTEP_MAX_CALLS - 1),
    POKE_MAX(up, UP_MODULES, u.modules.total, LOCKSTEP_MAX_MODULES),
    POKE_MAX(up, UP_MODULES, u.modules.first, 7),
    POKE(up, UP_MODULES, u.modules.first, UINT32_MAX, CODEC_INVALID),
    POKE_COUNT(up, UP_MODULES, u.modules.count, LOCKSTEP_NAMES_PART),
    POKE_TEXT(up, UP_MODULES, u.modules.names[0]),
    POKE_TEXT(up, UP_MODULES, u.modules.names[1]),
    POKE_TEXT(up, UP_MODULES, u.modules.groups[0]),
    POKE_COUNT(up, UP_REPLAN, u.replan.call_count, LOCKSTEP_REPLAN_CALLS),
    POKE_MAX(up, UP_REPLAN, u.replan.calls[1].module, LOCKSTEP_MAX_MODULES - 1),
    POKE_MAX(up, UP_REPLAN, u.replan.calls[0].call, LOCKSTEP_MAX_CALLS - 1),
    POKE(up, UP_REACH, u.reach.count, 0, CODEC_INVALID),
    POKE_COUNT(up, UP_REACH, u.reach.count, LOCKSTEP_REACH_RANKS),
    POKE_MAX(up, UP_REACH, u.reach.ranks[2], LOCKSTEP_MAX_WORLD - 1),
    POKE(up, UP_RECORD_PART, u.record_part.kind, RECORD_NONE, CODEC_INVALID),
    POKE(up, UP_RECORD_PART, u.record_part.kind, RECORD_COMMIT + 1, CODEC_INVALID),
    POKE(up, UP_RECORD_PART, u.record_part.kind, RECORD_ROWS,
         CODEC_INVALID), // Of the other direction.
    POKE_MAX(up, UP_RECORD_PART, u.record_part.position, LOCKSTEP_MAX_SLOTS - 1),
    POKE_MAX(up, UP_RECORD_PART, u.record_part.total, LOCKSTEP_MAX_RECORD_WORDS),
    POKE_MAX(up, UP_RECORD_PART, u.record_part.first, 1),
    POKE(up, UP_RECORD_PART, u.record_part.first, UINT32_MAX, CODEC_INVALID),
    POKE_COUNT(up, UP_RECORD_PART, u.record_part.count, LOCKSTEP_RECORD_PART),
    POKE_MAX(up, UP_REPORT, u.report.flags, REPORT_FLAGS),
    POKE(up, UP_ANSWER, u.answer.kind, 0, CODEC_INVALID),
    POKE(up, UP_ANSWER, u.answer.kind, ANSWER_EVENTS + 1, CODEC_INVALID),
    POKE_COUNT(up, UP_ANSWER, u.answer.u.frames.count, LOCKSTEP_FRAMES_PART),
    POKE_MAX(up, UP_ANSWER, u.answer.u.frames.frames[0].thread, LOCKSTEP_STACK_THREADS - 1),
    POKE_TEXT(up, UP_ANSWER, u.answer.u.frames.frames[0].object),
    POKE_TEXT(up, UP_ANSWER, u.answer.u.frames.frames[0].symbol),

    POKE(down, DOWN_VERIFIED, kind, DOWN_NONE, CODEC_INVALID),
    POKE(down, DOWN_VERIFIED, kind, DOWN_EXCLUDED + 1, CODEC_INVALID),
    POKE(down, DOWN_REFUSED, u.refused.refusal, REFUSAL_NONE, CODEC_INVALID),
    POKE_MAX(down, DOWN_REFUSED, u.refused.refusal, REFUSAL_DRAINING),
    POKE_TEXT(down, DOWN_REFUSED, u.refused.text),
    POKE(down, DOWN_GENERATION, u.generation_start.world_size, LOCKSTEP_MAX_WORLD + 1,
         CODEC_INVALID),
    POKE(down, DOWN_GENERATION, u.generation_start.world_size, 4, CODEC_INVALID), // The rank is 3.
    POKE(down, DOWN_GENERATION, u.generation_start.world_size, 0, CODEC_INVALID),
    POKE(down, DOWN_GENERATION, u.generation_start.rank, 3, CODEC_INVALID),
    POKE(down, DOWN_GENERATION, u.generation_start.rank, 2, CODEC_INVALID),
    POKE(down, DOWN_GENERATION, u.generation_start.local_rank, 1, CODEC_INVALID),
    POKE_MAX(down, DOWN_GENERATION, u.generation_start.local_size, 3),
    POKE_MAX(down, DOWN_GENERATION, u.generation_start.core_ranks, 3),
    POKE_MAX(down, DOWN_GENERATION, u.generation_start.chunk_bytes, LOCKSTEP_FRAME_BYTES),
    POKE(down, DOWN_GENERATION, u.generation_start.chunk_bytes, 0, CODEC_INVALID),
    POKE(down, DOWN_GENERATION, u.generation_start.chunk_bytes, 7, CODEC_INVALID),
    POKE_MAX(down, DOWN_GENERATION, u.generation_start.chunk_bytes, 8),
    POKE(down, DOWN_GENERATION, u.generation_start.chunk_bytes, 12, CODEC_INVALID),
    POKE(down, DOWN_GENERATION, u.generation_start.chunk_bytes, 4100, CODEC_INVALID),
    POKE(down, DOWN_GENERATION, u.generation_start.peer_count, 1, CODEC_INVALID), // A neighbour.
    POKE_COUNT(down, DOWN_GENERATION, u.generation_start.peer_count, LOCKSTEP_MAX_NEIGHBOURS),
    POKE_COUNT(down, DOWN_GENERATION, u.generation_start.further_count, LOCKSTEP_MAX_FURTHER_PORTS),
    POKE(down, DOWN_GENERATION, u.generation_start.further[0].rank, 1, CODEC_INVALID), // Itself.
    POKE_MAX(down, DOWN_GENERATION, u.generation_start.further[0].rank, 2),
    POKE_TEXT(down, DOWN_GENERATION, u.generation_start.further[0].address),
    POKE(down, DOWN_GENERATION, u.generation_start.peers[0].rank, 2, CODEC_INVALID),
    POKE(down, DOWN_GENERATION, u.generation_start.peers[1].rank, 3, CODEC_INVALID),
    POKE_TEXT(down, DOWN_GENERATION, u.generation_start.peers[0].address),
    POKE_TEXT(down, DOWN_GENERATION, u.generation_start.peers[1].host),
    POKE_COUNT(down, DOWN_GENERATION, u.generation_start.locality.mate_count, LOCKSTEP_MAX_MATES),
    POKE(down, DOWN_GENERATION, u.generation_start.locality.hosts, 4, CODEC_INVALID),
    POKE(down, DOWN_GENERATION, u.generation_start.locality.hosts, 0, CODEC_INVALID),
    POKE(down, DOWN_GENERATION, u.generation_start.locality.hosts, 1, CODEC_INVALID),
    POKE_MAX(down, DOWN_GENERATION, u.generation_start.locality.host, 1),
    POKE_MAX(down, DOWN_GENERATION, u.generation_start.locality.local, 1),
    POKE(down, DOWN_GENERATION, u.generation_start.locality.mates[0], 1, CODEC_INVALID),
    POKE(down, DOWN_GENERATION, u.generation_start.locality.mates[1], 2, CODEC_INVALID),
    POKE(down, DOWN_GENERATION, u.generation_start.locality.rings, 0, CODEC_INVALID),
    POKE(down, DOWN_GENERATION, u.generation_start.locality.rings, 1, CODEC_INVALID),
    POKE_MAX(down, DOWN_GENERATION, u.generation_start.locality.rings, 2),
    POKE(down, DOWN_GENERATION, u.generation_start.locality.successor, 1, CODEC_INVALID),
    POKE(down, DOWN_GENERATION, u.generation_start.locality.predecessor, 3, CODEC_INVALID),
    POKE_MAX(down, DOWN_MANIFEST_REQUEST, u.manifest_request.count, LOCKSTEP_MANIFEST_PART),
    POKE_MAX(down, DOWN_MANIFEST_REQUEST, u.manifest_request.first, MANIFEST_ITEMS - 9),
    POKE_SLOT(down, DOWN_GRANT, u.grant.slot),
    POKE_LAYOUT(down, DOWN_LAYOUT_PART),
    POKE(down, DOWN_PLAN_PART, u.plan_part.slot_total, LOCKSTEP_MAX_SLOTS + 1, CODEC_INVALID),
    POKE(down, DOWN_PLAN_PART, u.plan_part.slot_total, 5, CODEC_INVALID), // This part is the last.
    POKE_MAX(down, DOWN_PLAN_PART, u.plan_part.slot_first, 2),
    POKE_COUNT(down, DOWN_PLAN_PART, u.plan_part.slot_count, LOCKSTEP_PLAN_PART),
    POKE_SLOT(down, DOWN_PLAN_PART, u.plan_part.slots[0].id),
    POKE_MAX(down, DOWN_PLAN_PART, u.plan_part.slots[1].algorithm, ALGORITHM_BY_SIZE),
    POKE(down, DOWN_HALT, u.halt.kind, HALT_NONE, CODEC_INVALID),
    POKE_MAX(down, DOWN_HALT, u.halt.kind, HALT_LIMIT),
    POKE_MAX(down, DOWN_HALT, u.halt.rank, LOCKSTEP_MAX_WORLD - 1),
    POKE_TEXT(down, DOWN_HALT, u.halt.text),
    POKE_TEXT(down, DOWN_HALT, u.halt.cause),
    POKE_MAX(down, DOWN_TUNING, u.tuning.wish, ALGORITHM_BY_SIZE),
    POKE(down, DOWN_QUERY, u.query.key_count, LOCKSTEP_MAX_AWAITED + 1, CODEC_TOO_LONG),
    POKE(down, DOWN_QUERY, u.query.key_count, 3, CODEC_INVALID), // The third has no kind.
    POKE_MAX(down, DOWN_QUERY, u.query.keys[1].kind, AWAIT_CALL),
    POKE(down, DOWN_INSPECT, u.inspect.what, 0, CODEC_INVALID),
    POKE_MAX(down, DOWN_INSPECT, u.inspect.what, INSPECT_ALL),
    POKE(down, DOWN_ADDRESSES, u.addresses.count, 0, CODEC_INVALID),
    POKE_COUNT(down, DOWN_ADDRESSES, u.addresses.count, LOCKSTEP_REACH_RANKS),
    POKE_MAX(down, DOWN_ADDRESSES, u.addresses.peers[1].rank, LOCKSTEP_MAX_WORLD - 1),
    POKE_TEXT(down, DOWN_ADDRESSES, u.addresses.peers[0].address),
    POKE_TEXT(down, DOWN_ADDRESSES, u.addresses.peers[1].host),
    POKE_TEXT(down, DOWN_PREPARE, u.prepare.text),
    POKE(down, DOWN_RECORD_PART, u.record_part.kind, RECORD_NONE, CODEC_INVALID),
    POKE(down, DOWN_RECORD_PART, u.record_part.kind, RECORD_COMMIT + 1, CODEC_INVALID),
    POKE(down, DOWN_RECORD_PART, u.record_part.kind, RECORD_RUNS,
         CODEC_INVALID), // Of the other direction.
    POKE_MAX(down, DOWN_RECORD_PART, u.record_part.position, LOCKSTEP_MAX_SLOTS - 1),
    POKE_MAX(down, DOWN_RECORD_PART, u.record_part.total, LOCKSTEP_MAX_RECORD_WORDS),
    POKE_MAX(down, DOWN_RECORD_PART, u.record_part.first, 1),
    POKE(down, DOWN_RECORD_PART, u.record_part.first, UINT32_MAX, CODEC_INVALID),
    POKE_COUNT(down, DOWN_RECORD_PART, u.record_part.count, LOCKSTEP_RECORD_PART),
    POKE_MAX(down, DOWN_DECISION, u.decision.flags, REPORT_FLAGS),
    POKE_TEXT(down, DOWN_DECISION, u.decision.text),
    POKE_TEXT(down, DOWN_EXCLUDED, u.excluded.text),
};

static void poke(const struct poke *poke, union any_message *message)
{
    uint8_t *field = (uint8_t *)message + poke->at;
    if (poke->size == sizeof(poke->value))
        memcpy(field, &poke->value, sizeof(poke->value));
    else
        memset(field, 'x', poke->size);
}

static void test_encoding_bounds(void **state)
{
    static uint8_t bytes[LOCKSTEP_MESSAGE_BYTES];
    (void)state;
    for (size_t i = 0; i < COUNT(pokes); i++) {
        union any_message message;
        size_t size = 77;
        pokes[i].direction->example(pokes[i].kind, &message);
        poke(&pokes[i], &message);
        const enum codec_status status =
            encode(pokes[i].direction, &message, bytes, sizeof(bytes), &size);
        if (status != pokes[i].status)
            fail_msg("poke %zu (%s kind %d, value %u): %s", i, pokes[i].direction->name,
                     pokes[i].kind, pokes[i].value, codec_status_name(status));
        assert_true((size == 0) == (status != CODEC_OK));
    }
}

// Ranks with a GPU are ranks of the world, which has three.
static void test_encoding_gpus(void **state)
{
    static const struct {
        uint32_t rank;
        enum codec_status status;
    } cases[] = {
        {0, CODEC_OK},       {1, CODEC_OK},        {2, CODEC_OK},
        {3, CODEC_INVALID},  {63, CODEC_INVALID},  {64, CODEC_INVALID},
        {66, CODEC_INVALID}, {512, CODEC_INVALID}, {LOCKSTEP_MAX_WORLD - 1, CODEC_INVALID},
    };
    static uint8_t bytes[LOCKSTEP_MESSAGE_BYTES];
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        union any_message message;
        size_t size = 77;
        example_down(DOWN_GENERATION, &message);
        message.down.u.generation_start.gpus[cases[i].rank / 64] |= UINT64_C(1)
                                                                    << cases[i].rank % 64;
        assert_int_equal(encode(&down, &message, bytes, sizeof(bytes), &size), cases[i].status);
        assert_true((size == 0) == (cases[i].status != CODEC_OK));
    }
}

// Parts of an answer of the kinds that the example does not have, one fault in each.
static void test_encoding_answers(void **state)
{
    static const struct {
        const char *what;
        struct up_answer answer;
        enum codec_status status;
    } cases[] = {
        {"nothing is missing", {.kind = ANSWER_PLACE}, CODEC_OK},
        {"a phase that is no text", {.kind = ANSWER_PLACE, .u.place.phase = "\xff"}, CODEC_INVALID},
        {"a doing that is no text", {.kind = ANSWER_PLACE, .u.place.doing = "\xff"}, CODEC_INVALID},
        {"more names than bound",
         {.kind = ANSWER_PLACE, .u.place = {.missing_total = 99, .missing_count = 17}},
         CODEC_TOO_LONG},
        {"more names than missing",
         {.kind = ANSWER_PLACE, .u.place = {.missing_total = 1, .missing_count = 2}},
         CODEC_INVALID},
        {"a name that is no text",
         {.kind = ANSWER_PLACE,
          .u.place = {.missing_total = 1, .missing_count = 1, .missing = {"\xff"}}},
         CODEC_INVALID},
        {"no threads", {.kind = ANSWER_THREADS}, CODEC_OK},
        {"too many threads",
         {.kind = ANSWER_THREADS, .u.threads.count = LOCKSTEP_THREADS_PART + 1},
         CODEC_TOO_LONG},
        {"a state that is no letter",
         {.kind = ANSWER_THREADS, .u.threads = {1, {{.state = '\n'}}}},
         CODEC_INVALID},
        {"an unknown reason",
         {.kind = ANSWER_THREADS,
          .u.threads = {1, {{.how = (enum stack_how)(STACK_NOT_ASKED + 1)}}}},
         CODEC_INVALID},
        {"an unknown thing to wait for",
         {.kind = ANSWER_THREADS,
          .u.threads = {1, {{.awaits = (enum stack_awaits)(AWAITS_END + 1)}}}},
         CODEC_INVALID},
        {"a thread's name without an end",
         {.kind = ANSWER_THREADS, .u.threads = {1, {{.name = "0123456789abcdef"}}}},
         CODEC_TOO_LONG},
        {"a function without an end",
         {.kind = ANSWER_THREADS,
          .u.threads = {1, {{.wchan = "0123456789abcdef0123456789abcdef"}}}},
         CODEC_TOO_LONG},
        {"no events", {.kind = ANSWER_EVENTS}, CODEC_OK},
        {"too many events",
         {.kind = ANSWER_EVENTS, .u.events.count = LOCKSTEP_EVENTS_PART + 1},
         CODEC_TOO_LONG},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct up_message message = {.kind = UP_ANSWER};
        uint8_t bytes[512];
        size_t size = 0;
        message.u.answer = cases[i].answer;
        const enum codec_status status = codec_encode_up(&message, bytes, sizeof(bytes), &size);
        if (status != cases[i].status)
            fail_msg("%s: %s", cases[i].what, codec_status_name(status));
    }
}

// Texts that are no texts, in every place: what is wrong is wrong wherever it stands in the string.
static enum codec_status encode_up_status(const struct up_message *message)
{
    static uint8_t bytes[LOCKSTEP_MESSAGE_BYTES];
    size_t size;
    return codec_encode_up(message, bytes, sizeof(bytes), &size);
}

static enum codec_status encode_down_status(const struct down_message *message)
{
    static uint8_t bytes[LOCKSTEP_MESSAGE_BYTES];
    size_t size;
    return codec_encode_down(message, bytes, sizeof(bytes), &size);
}

// A ballot has a number, and a report is of the step that is settled or of the next one.
static void test_encoding_recovery(void **state)
{
    static const int ups[] = {UP_REPORT, UP_REFUSE};
    static const int downs[] = {DOWN_PREPARE, DOWN_DECISION, DOWN_EXCLUDED};
    static const uint64_t steps[] = {810, 811, 812, 813};
    union any_message message;
    (void)state;
    for (size_t i = 0; i < COUNT(ups); i++) {
        example_up(ups[i], &message);
        message.up.u.report.ballot.number = 0; // In refuse, promised has the same place.
        assert_int_equal(encode_up_status(&message.up), CODEC_INVALID);
    }
    for (size_t i = 0; i < COUNT(downs); i++) {
        example_down(downs[i], &message);
        message.down.u.prepare.ballot.number = 0; // The ballot is the first field of each.
        assert_int_equal(encode_down_status(&message.down), CODEC_INVALID);
    }
    for (size_t i = 0; i < COUNT(steps); i++) {
        example_up(UP_REPORT, &message);
        message.up.u.report.step = steps[i];
        assert_int_equal(encode_up_status(&message.up),
                         i == 1 || i == 2 ? CODEC_OK : CODEC_INVALID);
    }
}

static void test_encoding_utf8(void **state)
{
    static const struct {
        const char *text;
        enum codec_status status;
    } cases[] = {
        {"", CODEC_OK},
        {"plain", CODEC_OK},
        {"\xc2\x80 \xdf\xbf \xe0\xa0\x80 \xed\x9f\xbf \xee\x80\x80", CODEC_OK},
        {"\xf0\x90\x80\x80 \xf4\x8f\xbf\xbf", CODEC_OK},
        {"\x80", CODEC_INVALID}, // A continuation alone.
        {"a\xc3", CODEC_INVALID}, // Cut after the first byte.
        {"a\xe2\x82", CODEC_INVALID}, // Cut after the second.
        {"\xf0\x9f\x98", CODEC_INVALID}, // Cut after the third.
        {"\xc3(", CODEC_INVALID}, // No continuation.
        {"\xe2\x82(", CODEC_INVALID}, // The same, later.
        {"\xc0\xaf", CODEC_INVALID}, // Overlong.
        {"\xc1\xbf", CODEC_INVALID}, // Overlong.
        {"\xe0\x9f\xbf", CODEC_INVALID}, // Overlong.
        {"\xf0\x8f\xbf\xbf", CODEC_INVALID}, // Overlong.
        {"\xed\xa0\x80", CODEC_INVALID}, // A surrogate.
        {"\xf4\x90\x80\x80", CODEC_INVALID}, // Above U+10FFFF.
        {"\xf5\x80\x80\x80", CODEC_INVALID},
        {"\xff", CODEC_INVALID},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        for (size_t p = 0; p < COUNT(pokes); p++) {
            union any_message message;
            uint8_t bytes[512];
            size_t size = 0;
            if (pokes[p].size == sizeof(pokes[p].value))
                continue;
            pokes[p].direction->example(pokes[p].kind, &message);
            strcpy((char *)&message + pokes[p].at, cases[i].text);
            if (encode(pokes[p].direction, &message, bytes, sizeof(bytes), &size) !=
                cases[i].status)
                fail_msg("text %zu in poke %zu", i, p);
        }
    }
}

// ---- Bounds, decoding --------------------------------------------------------------------------

// A second occurrence of a message's field is merged into the first, so every bound can be tried by
// appending one small field to the bytes of an example. Wire types by their numbers: 0 varint, 1
// fixed64, 2 bytes.
struct append {
    const struct direction *direction;
    int kind;
    unsigned field; // In the message of this kind.
    unsigned nested; // 0, or a field of the message that `field` is.
    unsigned wire_type;
    uint64_t value; // The number, or how many bytes 'x'.
    unsigned repeat; // How many of the innermost field.
    enum codec_status status;
};

#define NUMBER 0
#define FIXED 1
#define BYTES 2

static const struct append appends[] = {
    {&up, UP_HELLO, 2, 0, BYTES, LOCKSTEP_JOB_NAME_BYTES - 1, 1, CODEC_OK},
    {&up, UP_HELLO, 2, 0, BYTES, LOCKSTEP_JOB_NAME_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_HELLO, 3, 0, BYTES, LOCKSTEP_UUID_BYTES - 1, 1, CODEC_INVALID},
    {&up, UP_HELLO, 3, 0, BYTES, LOCKSTEP_UUID_BYTES, 1, CODEC_OK},
    {&up, UP_HELLO, 3, 0, BYTES, LOCKSTEP_UUID_BYTES + 1, 1, CODEC_TOO_LONG},
    {&up, UP_HELLO, 3, 0, BYTES, 0, 1, CODEC_INVALID},
    {&up, UP_HELLO, 4, 0, BYTES, LOCKSTEP_HOST_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_HELLO, 5, 0, BYTES, LOCKSTEP_HOST_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_HELLO, 6, 0, BYTES, LOCKSTEP_ADDRESS_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_HELLO, 7, 0, NUMBER, UINT32_MAX, 1, CODEC_OK},
    {&up, UP_HELLO, 7, 0, NUMBER, (uint64_t)UINT32_MAX + 1, 1, CODEC_INVALID},
    {&up, UP_HELLO, 7, 0, BYTES, 4, 1, CODEC_INVALID},
    {&up, UP_HELLO, 13, 0, NUMBER, FAILURE_CONTINUE + 1, 1, CODEC_INVALID},
    {&up, UP_HELLO, 13, 0, NUMBER, UINT64_MAX, 1, CODEC_INVALID},
    {&up, UP_HELLO, 14, 0, BYTES, LOCKSTEP_DEVICE_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_HELLO, 99, 0, BYTES, 400, 3, CODEC_OK}, // A field of a later version is skipped.
    {&up, UP_HELLO, 99, 0, FIXED, 400, 3, CODEC_OK},
    {&up, UP_HELLO, 16, 1, BYTES, LOCKSTEP_UUID_BYTES, 1, CODEC_OK},
    {&up, UP_HELLO, 16, 1, BYTES, LOCKSTEP_UUID_BYTES - 1, 1, CODEC_INVALID},
    {&up, UP_HELLO, 16, 1, BYTES, LOCKSTEP_UUID_BYTES + 1, 1, CODEC_TOO_LONG},
    {&up, UP_HELLO, 16, 5, BYTES, LOCKSTEP_NAME_BYTES - 1, 1, CODEC_OK},
    {&up, UP_HELLO, 16, 5, BYTES, LOCKSTEP_NAME_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_HELLO, 17, 0, BYTES, LOCKSTEP_NAME_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_START, 2, 0, NUMBER, MANIFEST_ITEMS + 1, 1, CODEC_INVALID},
    {&up, UP_START, 3, 0, NUMBER, LOCKSTEP_MAX_WORLD, 1, CODEC_INVALID},
    {&up, UP_MANIFEST_PART, 1, 0, NUMBER, MANIFEST_ITEMS, 1, CODEC_INVALID},
    {&up, UP_MANIFEST_PART, 2, 0, BYTES, 0, LOCKSTEP_MANIFEST_PART, CODEC_TOO_LONG},
    {&up, UP_MANIFEST_PART, 2, 0, BYTES, 0, 1, CODEC_INVALID}, // An item without a kind.
    {&up, UP_MANIFEST_PART, 2, 1, NUMBER, MANIFEST_BUFFER, 1, CODEC_OK},
    {&up, UP_MANIFEST_PART, 2, 1, NUMBER, MANIFEST_BUFFER + 1, 1, CODEC_INVALID},
    {&up, UP_MANIFEST_PART, 2, 3, BYTES, LOCKSTEP_NAME_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_MANIFEST_PART, 2, 6, NUMBER, 1, LOCKSTEP_MAX_DIMS + 1, CODEC_TOO_LONG},
    {&up, UP_MANIFEST_PART, 2, 6, NUMBER, 1, LOCKSTEP_MAX_DIMS, CODEC_INVALID}, // No strides.
    {&up, UP_MANIFEST_PART, 2, 7, NUMBER, 1, LOCKSTEP_MAX_DIMS + 1, CODEC_TOO_LONG},
    {&up, UP_MANIFEST_PART, 2, 8, BYTES, LOCKSTEP_OPTIONS_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_READY, 3, 1, NUMBER, LOCKSTEP_MAX_MODULES - 1, 1, CODEC_OK},
    {&up, UP_READY, 3, 1, NUMBER, LOCKSTEP_MAX_MODULES, 1, CODEC_INVALID},
    {&up, UP_READY, 3, 2, NUMBER, LOCKSTEP_MAX_CALLS, 1, CODEC_INVALID},
    {&up, UP_READY, 3, 3, NUMBER, LOCKSTEP_MAX_BUCKETS, 1, CODEC_INVALID},
    {&up, UP_READY, 4, 0, NUMBER, DTYPE_LAST + 1, 1, CODEC_INVALID},
    {&up, UP_WAIT, 3, 1, NUMBER, LOCKSTEP_MAX_MODULES, 1, CODEC_INVALID},
    {&up, UP_WAIT, 4, 0, BYTES, 0, LOCKSTEP_MAX_WAITS - 2, CODEC_OK},
    {&up, UP_WAIT, 4, 0, BYTES, 0, LOCKSTEP_MAX_WAITS - 1, CODEC_TOO_LONG},
    {&up, UP_WAIT, 4, 2, NUMBER, LOCKSTEP_MAX_CALLS, 1, CODEC_INVALID},
    {&up, UP_LAYOUT_PART, 2, 0, NUMBER, LOCKSTEP_MAX_LAYOUT_WORDS + 1, 1, CODEC_INVALID},
    {&up, UP_LAYOUT_PART, 4, 0, NUMBER, 1, 1, CODEC_OK},
    {&up, UP_LAYOUT_PART, 4, 0, NUMBER, 1, 2, CODEC_INVALID}, // Outside the layout.
    {&up, UP_LAYOUT_PART, 4, 0, NUMBER, 1, LOCKSTEP_LAYOUT_PART - 2, CODEC_TOO_LONG},
    {&up, UP_LAYOUT_PART, 4, 0, BYTES, LOCKSTEP_LAYOUT_PART - 2, 1, CODEC_TOO_LONG}, // Packed.
    {&up, UP_HEARTBEAT, 3, 0, NUMBER, ACTIVITY_PAUSED + 1, 1, CODEC_INVALID},
    {&up, UP_HEARTBEAT, 5, 0, BYTES, LOCKSTEP_MARK_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_HEARTBEAT, 9, 1, NUMBER, 7, 1, CODEC_INVALID}, // Behind the last slot, with a slot.
    {&up, UP_HEARTBEAT, 9, 1, NUMBER, 9, 1, CODEC_INVALID},
    {&up, UP_HEARTBEAT, 9, 2, NUMBER, LOCKSTEP_MAX_SLOTS + 1, 1, CODEC_INVALID},
    {&up, UP_HEARTBEAT, 9, 8, NUMBER, API_CLOSE, 1, CODEC_OK},
    {&up, UP_HEARTBEAT, 9, 8, NUMBER, API_CLOSE + 1, 1, CODEC_INVALID},
    {&up, UP_HEARTBEAT, 9, 11, NUMBER, LOCKSTEP_MAX_MODULES, 1, CODEC_OK},
    {&up, UP_HEARTBEAT, 9, 11, NUMBER, LOCKSTEP_MAX_MODULES + 1, 1, CODEC_INVALID},
    {&up, UP_HEARTBEAT, 10, 0, NUMBER, PLACE_FLAGS + 1, 1, CODEC_INVALID},
    {&up, UP_HEARTBEAT, 12, 0, BYTES, 0, LOCKSTEP_LINKS_NAMED - 1, CODEC_OK},
    {&up, UP_HEARTBEAT, 12, 0, BYTES, 0, LOCKSTEP_LINKS_NAMED, CODEC_TOO_LONG},
    {&up, UP_HEARTBEAT, 12, 1, NUMBER, LOCKSTEP_MAX_WORLD, 1, CODEC_INVALID},
    {&up, UP_HEARTBEAT, 13, 0, BYTES, 0, LOCKSTEP_MATES_NAMED, CODEC_TOO_LONG},
    {&up, UP_HEARTBEAT, 13, 0, BYTES, 0, 1, CODEC_INVALID}, // A mate without a state.
    {&up, UP_HEARTBEAT, 13, 2, NUMBER, 'Z', 1, CODEC_OK},
    {&up, UP_HEARTBEAT, 13, 2, NUMBER, '9', 1, CODEC_INVALID},
    {&up, UP_HEARTBEAT, 13, 2, NUMBER, 'Z' + 256, 1, CODEC_INVALID},
    {&up, UP_HEARTBEAT, 20, 2, NUMBER, API_GROUP_CREATE + 1, 1, CODEC_INVALID},
    {&up, UP_HEARTBEAT, 20, 4, NUMBER, LOCKSTEP_MAX_WORLD, 1, CODEC_INVALID},
    {&up, UP_HEARTBEAT, 20, 7, BYTES, LOCKSTEP_NAME_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_HEARTBEAT, 20, 8, BYTES, 0, 1, CODEC_INVALID}, // A key without a kind.
    {&up, UP_HEARTBEAT, 20, 8, BYTES, 0, LOCKSTEP_MAX_AWAITED, CODEC_TOO_LONG},
    {&up, UP_HEARTBEAT, 20, 10, BYTES, LOCKSTEP_DETAIL_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_HEARTBEAT, 86, 0, BYTES, LOCKSTEP_DETAIL_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_FAIL, 2, 0, NUMBER, HALT_NONE, 1, CODEC_INVALID},
    {&up, UP_FAIL, 2, 0, NUMBER, HALT_LIMIT + 1, 1, CODEC_INVALID},
    {&up, UP_FAIL, 3, 0, BYTES, LOCKSTEP_TEXT_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_FAIL, 6, 0, BYTES, LOCKSTEP_NAME_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_FAIL, 7, 0, BYTES, LOCKSTEP_FORM_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_LOST, 1, 0, NUMBER, LOCKSTEP_MAX_WORLD, 1, CODEC_INVALID},
    {&up, UP_LOST, 4, 0, BYTES, LOCKSTEP_TEXT_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_LEAVE, 2, 0, BYTES, LOCKSTEP_MARK_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_LEAVE, 3, 0, BYTES, LOCKSTEP_FAREWELL_TEXT_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_LINKS, 4, 0, NUMBER, ALGORITHM_BY_SIZE + 1, 1, CODEC_INVALID},
    {&up, UP_BLOCKED, 3, 0, BYTES, 0, 1, CODEC_INVALID}, // A wait without its call.
    {&up, UP_BLOCKED, 3, 0, BYTES, 0, LOCKSTEP_MAX_WAITS - 1, CODEC_TOO_LONG},
    {&up, UP_BLOCKED, 3, 2, FIXED, 0, LOCKSTEP_SLOT_WORDS + 1, CODEC_TOO_LONG},
    {&up, UP_BLOCKED, 4, 0, FIXED, 0, LOCKSTEP_SLOT_WORDS - 2, CODEC_OK},
    {&up, UP_BLOCKED, 4, 0, FIXED, 0, LOCKSTEP_SLOT_WORDS - 1, CODEC_TOO_LONG},
    {&up, UP_BLOCKED, 4, 0, BYTES, 8 * (LOCKSTEP_SLOT_WORDS - 2), 1, CODEC_OK}, // Packed.
    {&up, UP_BLOCKED, 4, 0, BYTES, 8 * (LOCKSTEP_SLOT_WORDS - 1), 1, CODEC_TOO_LONG},
    {&up, UP_BLOCKED, 4, 0, BYTES, 7, 1, CODEC_TOO_LONG}, // No word; nanopb calls it so.
    {&up, UP_BLOCKED, 5, 0, BYTES, 0, 1, CODEC_INVALID}, // A lack without its call.
    {&up, UP_BLOCKED, 5, 1, NUMBER, 66, 1, CODEC_INVALID}, // No lack.
    {&up, UP_BLOCKED, 5, 0, BYTES, 0, LOCKSTEP_LACKS_NAMED - 1, CODEC_TOO_LONG},
    {&up, UP_MODULES, 1, 0, NUMBER, LOCKSTEP_MAX_MODULES + 1, 1, CODEC_INVALID},
    {&up, UP_MODULES, 2, 0, NUMBER, 8, 1, CODEC_INVALID},
    {&up, UP_MODULES, 3, 0, BYTES, 1, 1, CODEC_INVALID}, // Outside the modules.
    {&up, UP_MODULES, 3, 0, BYTES, LOCKSTEP_NAME_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_MODULES, 3, 0, BYTES, 1, LOCKSTEP_NAMES_PART - 1, CODEC_TOO_LONG},
    {&up, UP_MODULES, 4, 0, BYTES, 1, 1, CODEC_INVALID}, // A group of no module.
    {&up, UP_MODULES, 4, 0, BYTES, LOCKSTEP_GROUP_NAME_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_REPLAN, 5, 0, BYTES, 0, LOCKSTEP_REPLAN_CALLS - 2, CODEC_OK},
    {&up, UP_REPLAN, 5, 0, BYTES, 0, LOCKSTEP_REPLAN_CALLS - 1, CODEC_TOO_LONG},
    {&up, UP_REPLAN, 5, 1, NUMBER, LOCKSTEP_MAX_MODULES, 1, CODEC_INVALID},
    {&up, UP_REACH, 1, 0, NUMBER, 1, LOCKSTEP_REACH_RANKS - 3, CODEC_OK},
    {&up, UP_REACH, 1, 0, NUMBER, 1, LOCKSTEP_REACH_RANKS - 2, CODEC_TOO_LONG},
    {&up, UP_REACH, 1, 0, NUMBER, LOCKSTEP_MAX_WORLD, 1, CODEC_INVALID},
    {&up, UP_ANSWER, 4, 0, BYTES, 0, 1, CODEC_OK}, // The last kind counts.
    {&up, UP_ANSWER, 4, 2, BYTES, LOCKSTEP_NAME_BYTES, 1, CODEC_TOO_LONG},
    {&up, UP_ANSWER, 4, 3, NUMBER, 9, 1, CODEC_OK},
    {&up, UP_ANSWER, 4, 4, BYTES, 1, 1, CODEC_INVALID}, // Named, but not missing.
    {&up, UP_ANSWER, 4, 4, BYTES, 1, LOCKSTEP_MISSING_NAMED + 1, CODEC_TOO_LONG},
    {&up, UP_ANSWER, 5, 1, BYTES, 0, LOCKSTEP_THREADS_PART, CODEC_OK},
    {&up, UP_ANSWER, 5, 1, BYTES, 0, LOCKSTEP_THREADS_PART + 1, CODEC_TOO_LONG},
    {&up, UP_ANSWER, 6, 1, BYTES, 0, LOCKSTEP_FRAMES_PART - 1, CODEC_OK},
    {&up, UP_ANSWER, 6, 1, BYTES, 0, LOCKSTEP_FRAMES_PART, CODEC_TOO_LONG},
    {&up, UP_ANSWER, 7, 1, BYTES, 0, LOCKSTEP_EVENTS_PART, CODEC_OK},
    {&up, UP_ANSWER, 7, 1, BYTES, 0, LOCKSTEP_EVENTS_PART + 1, CODEC_TOO_LONG},

    {&down, DOWN_REFUSED, 1, 0, NUMBER, REFUSAL_NONE, 1, CODEC_INVALID},
    {&down, DOWN_REFUSED, 1, 0, NUMBER, REFUSAL_DRAINING + 1, 1, CODEC_INVALID},
    {&down, DOWN_REFUSED, 2, 0, BYTES, LOCKSTEP_TEXT_BYTES, 1, CODEC_TOO_LONG},
    {&down, DOWN_GENERATION, 2, 0, NUMBER, LOCKSTEP_MAX_WORLD + 1, 1, CODEC_INVALID},
    {&down, DOWN_GENERATION, 5, 0, NUMBER, LOCKSTEP_FRAME_BYTES + 1, 1, CODEC_INVALID},
    {&down, DOWN_GENERATION, 6, 0, BYTES, LOCKSTEP_SECRET_BYTES - 1, 1, CODEC_INVALID},
    {&down, DOWN_GENERATION, 6, 0, BYTES, LOCKSTEP_SECRET_BYTES + 1, 1, CODEC_TOO_LONG},
    {&down, DOWN_GENERATION, 7, 0, BYTES, 0, 1, CODEC_INVALID}, // A rank that is there already.
    {&down, DOWN_GENERATION, 7, 0, BYTES, 0, LOCKSTEP_MAX_NEIGHBOURS - 1, CODEC_TOO_LONG},
    {&down, DOWN_GENERATION, 7, 2, BYTES, LOCKSTEP_ADDRESS_BYTES, 1, CODEC_TOO_LONG},
    {&down, DOWN_GENERATION, 7, 3, BYTES, LOCKSTEP_HOST_BYTES, 1, CODEC_TOO_LONG},
    {&down, DOWN_GENERATION, 8, 3, NUMBER, 2, LOCKSTEP_MAX_MATES - 1, CODEC_TOO_LONG},
    {&down, DOWN_GENERATION, 8, 3, NUMBER, 2, 1, CODEC_INVALID}, // None is left for the other host.
    {&down, DOWN_GENERATION, 8, 3, NUMBER, 1, 1, CODEC_INVALID}, // A mate that is there already.
    {&down, DOWN_GENERATION, 8, 2, NUMBER, 4, 1, CODEC_INVALID},
    {&down, DOWN_GENERATION, 8, 8, NUMBER, 4, 1, CODEC_INVALID}, // An entry for no mate.
    {&down, DOWN_GENERATION, 8, 9, NUMBER, 4, 1, CODEC_INVALID}, // The same.
    // An entry for ranks that do not exist.
    {&down, DOWN_GENERATION, 9, 0, FIXED, 0, 1, CODEC_INVALID},
    {&down, DOWN_GENERATION, 9, 0, FIXED, 0, LOCKSTEP_RANK_WORDS, CODEC_TOO_LONG},
    {&down, DOWN_GENERATION, 12, 0, BYTES, 0, LOCKSTEP_MAX_FURTHER_PORTS - 1, CODEC_OK},
    {&down, DOWN_GENERATION, 12, 0, BYTES, 0, LOCKSTEP_MAX_FURTHER_PORTS, CODEC_TOO_LONG},
    {&down, DOWN_GENERATION, 12, 2, BYTES, LOCKSTEP_ADDRESS_BYTES, 1, CODEC_TOO_LONG},
    {&down, DOWN_MANIFEST_REQUEST, 2, 0, NUMBER, LOCKSTEP_MANIFEST_PART + 1, 1, CODEC_INVALID},
    {&down, DOWN_GRANT, 2, 3, NUMBER, LOCKSTEP_MAX_BUCKETS, 1, CODEC_INVALID},
    {&down, DOWN_LAYOUT_PART, 4, 0, NUMBER, 1, LOCKSTEP_LAYOUT_PART - 2, CODEC_TOO_LONG},
    {&down, DOWN_PLAN_PART, 6, 0, NUMBER, LOCKSTEP_MAX_SLOTS + 1, 1, CODEC_INVALID},
    {&down, DOWN_PLAN_PART, 9, 0, BYTES, 0, LOCKSTEP_PLAN_PART - 1, CODEC_TOO_LONG},
    {&down, DOWN_HALT, 2, 0, NUMBER, HALT_LIMIT + 1, 1, CODEC_INVALID},
    {&down, DOWN_HALT, 3, 0, NUMBER, LOCKSTEP_MAX_WORLD, 1, CODEC_INVALID},
    {&down, DOWN_HALT, 4, 0, BYTES, LOCKSTEP_REPORT_BYTES - 1, 1, CODEC_OK},
    {&down, DOWN_HALT, 4, 0, BYTES, LOCKSTEP_REPORT_BYTES, 1, CODEC_TOO_LONG},
    {&down, DOWN_TUNING, 6, 0, NUMBER, ALGORITHM_BY_SIZE + 1, 1, CODEC_INVALID},
    {&down, DOWN_QUERY, 4, 0, NUMBER, 0, 1, CODEC_OK},
    {&down, DOWN_QUERY, 4, 0, NUMBER, 1, 1, CODEC_INVALID}, // It has two keys.
    {&down, DOWN_INSPECT, 2, 0, NUMBER, 0, 1, CODEC_INVALID},
    {&down, DOWN_INSPECT, 2, 0, NUMBER, INSPECT_ALL + 1, 1, CODEC_INVALID},
    {&down, DOWN_ADDRESSES, 1, 0, BYTES, 0, LOCKSTEP_REACH_RANKS - 2, CODEC_OK},
    {&down, DOWN_ADDRESSES, 1, 0, BYTES, 0, LOCKSTEP_REACH_RANKS - 1, CODEC_TOO_LONG},
    {&down, DOWN_ADDRESSES, 1, 1, NUMBER, LOCKSTEP_MAX_WORLD, 1, CODEC_INVALID},
    {&down, DOWN_ADDRESSES, 1, 2, BYTES, LOCKSTEP_ADDRESS_BYTES, 1, CODEC_TOO_LONG},
    {&down, DOWN_ADDRESSES, 1, 3, BYTES, LOCKSTEP_HOST_BYTES, 1, CODEC_TOO_LONG},
};

static size_t put_varint(uint8_t *bytes, uint64_t value)
{
    size_t size = 0;
    while (value >= 0x80) {
        bytes[size++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    bytes[size++] = (uint8_t)value;
    return size;
}

// A field that holds size bytes, copied from content; NULL: 'x'.
static size_t put_bytes(uint8_t *bytes, unsigned field, const uint8_t *content, size_t size)
{
    size_t at = put_varint(bytes, field << 3 | BYTES);
    at += put_varint(bytes + at, size);
    if (content)
        memcpy(bytes + at, content, size);
    else
        memset(bytes + at, 'x', size);
    return at + size;
}

static size_t put_innermost(uint8_t *bytes, const struct append *append)
{
    const unsigned field = append->nested ? append->nested : append->field;
    size_t size = 0;
    for (unsigned i = 0; i < append->repeat; i++) {
        if (append->wire_type == BYTES) {
            size += put_bytes(bytes + size, field, NULL, append->value);
            continue;
        }
        size += put_varint(bytes + size, field << 3 | append->wire_type);
        if (append->wire_type == FIXED) {
            memset(bytes + size, 1, 8);
            size += 8;
        } else {
            size += put_varint(bytes + size, append->value);
        }
    }
    return size;
}

// The bytes of an example and the appended field.
static size_t put_append(uint8_t *bytes, const struct append *append)
{
    static uint8_t inner[LOCKSTEP_MESSAGE_BYTES];
    static uint8_t outer[LOCKSTEP_MESSAGE_BYTES];
    union any_message message;
    size_t size = 0;

    append->direction->example(append->kind, &message);
    assert_int_equal(encode(append->direction, &message, bytes, LOCKSTEP_MESSAGE_BYTES, &size),
                     CODEC_OK);
    size_t inner_size = put_innermost(inner, append);
    if (append->nested) {
        inner_size = put_bytes(outer, append->field, inner, inner_size);
        memcpy(inner, outer, inner_size);
    }
    return size + put_bytes(bytes + size, (unsigned)append->kind + 1, inner, inner_size);
}

static void test_decoding_bounds(void **state)
{
    static uint8_t bytes[2 * LOCKSTEP_MESSAGE_BYTES];
    (void)state;
    for (size_t i = 0; i < COUNT(appends); i++) {
        union any_message message;
        const char *detail = NULL;
        const size_t size = put_append(bytes, &appends[i]);
        const enum codec_status status =
            decode(appends[i].direction, bytes, size, &message, &detail);
        if (status != appends[i].status)
            fail_msg("append %zu (%s kind %d field %u): %s: %s", i, appends[i].direction->name,
                     appends[i].kind, appends[i].field, codec_status_name(status),
                     detail ? detail : "-");
        assert_true((!detail) == (status == CODEC_OK));
        assert_int_equal(message.up.kind, status == CODEC_OK ? appends[i].kind : 0);
        if (status == CODEC_OK)
            assert_encodes_again(appends[i].direction, &message);
    }
}

// Whole messages that no encoder of ours writes.
static void test_decoding_malformed(void **state)
{
    static const struct {
        const char *what;
        const char *bytes;
        size_t size;
        enum codec_status status;
    } cases[] = {
        {"nothing", "", 0, CODEC_INVALID},
        {"only a kind of a later version", "\xf2\x01\x00", 3, CODEC_INVALID},
        {"a ready without its slot", "\x2a\x02\x08\x01", 4, CODEC_INVALID},
        {"a wait without its slot", "\x32\x02\x08\x01", 4, CODEC_INVALID},
        {"a question for the address of no rank", "\x92\x01\x00", 3, CODEC_INVALID},
        {"a hello without its uuid", "\x12\x02\x08\x01", 4, CODEC_INVALID},
        {"a heartbeat at a slot that it does not name", "\x4a\x04\x4a\x02\x10\x01", 6,
         CODEC_INVALID},
        {"an answer without a part", "\x82\x01\x02\x08\x01", 5, CODEC_INVALID},
        {"an event of more than 16 bits", "\x82\x01\x08\x3a\x06\x0a\x04\x20\x80\x80\x04", 11,
         CODEC_INVALID},
        {"a NUL inside a string", "\x62\x05\x12\x03\x61\x00\x62", 7, CODEC_INVALID},
        {"a string that is not UTF-8", "\x62\x03\x12\x01\xff", 5, CODEC_INVALID},
        {"a field longer than its message", "\x62\x02\x12\x05\x61\x62\x63", 7, CODEC_TRUNCATED},
        {"a length without an end", "\x62\xff\xff\xff\xff\xff\xff\xff\xff\xff", 10,
         CODEC_TRUNCATED},
        {"field number zero", "\x02\x00", 2, CODEC_INVALID},
        {"a group", "\x0b\x0c", 2, CODEC_INVALID},
        {"a number where a message belongs", "\x60\x01", 2, CODEC_INVALID},
        {"two kinds: the last one counts", "\x12\x02\x08\x01\x42\x02\x08\x05", 8, CODEC_OK},
        {"no generation", "\x42\x02\x08\x05", 4, CODEC_OK},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        union any_message message;
        const char *detail = "-";
        const enum codec_status status =
            decode(&up, (const uint8_t *)cases[i].bytes, cases[i].size, &message, &detail);
        if (status != cases[i].status)
            fail_msg("%s: %s: %s", cases[i].what, codec_status_name(status), detail);
        if (status == CODEC_OK) {
            assert_int_equal(message.up.kind, UP_END);
            assert_int_equal(message.up.u.end.step, 5);
            assert_int_equal(message.up.generation.number, 0);
        }
    }
}

static void test_message_too_long(void **state)
{
    static uint8_t bytes[LOCKSTEP_MESSAGE_BYTES + 1];
    union any_message message;
    (void)state;
    assert_int_equal(decode(&up, bytes, sizeof(bytes), &message, NULL), CODEC_TOO_LONG);
    assert_int_equal(decode(&down, bytes, sizeof(bytes), &message, NULL), CODEC_TOO_LONG);
}

// ---- Health ------------------------------------------------------------------------------------

static void test_health_request(void **state)
{
    static const uint8_t request[] = "\x0a\x05"
                                     "a.b.c";
    uint8_t longest[300];
    char service[LOCKSTEP_NAME_BYTES];
    (void)state;

    assert_int_equal(codec_decode_health_request(NULL, 0, service, sizeof(service)), CODEC_OK);
    assert_string_equal(service, "");
    assert_int_equal(codec_decode_health_request(request, 7, service, sizeof(service)), CODEC_OK);
    assert_string_equal(service, "a.b.c");
    assert_int_equal(codec_decode_health_request(request, 7, service, 6), CODEC_OK);
    assert_int_equal(codec_decode_health_request(request, 7, service, 5), CODEC_TOO_LONG);
    assert_string_equal(service, "");
    for (size_t end = 1; end < 7; end++)
        assert_int_equal(codec_decode_health_request(request, end, service, sizeof(service)),
                         CODEC_TRUNCATED);
    size_t size = put_bytes(longest, 1, NULL, LOCKSTEP_NAME_BYTES - 1);
    assert_int_equal(codec_decode_health_request(longest, size, service, sizeof(service)),
                     CODEC_OK);
    assert_int_equal(strlen(service), LOCKSTEP_NAME_BYTES - 1);
    size = put_bytes(longest, 1, NULL, LOCKSTEP_NAME_BYTES);
    assert_int_equal(codec_decode_health_request(longest, size, service, sizeof(service)),
                     CODEC_TOO_LONG);
    assert_int_equal(
        codec_decode_health_request((const uint8_t *)"\x0a\x01\xff", 3, service, sizeof(service)),
        CODEC_INVALID);
}

static void test_health_response(void **state)
{
    uint8_t bytes[8];
    size_t size = 77;
    (void)state;

    assert_int_equal(codec_encode_health_response(0, bytes, sizeof(bytes), &size), CODEC_OK);
    assert_int_equal(size, 0);
    for (uint8_t status = 1; status <= 3; status++) {
        assert_int_equal(codec_encode_health_response(status, bytes, sizeof(bytes), &size),
                         CODEC_OK);
        assert_int_equal(size, 2);
        assert_int_equal(bytes[0], 0x08);
        assert_int_equal(bytes[1], status);
    }
    assert_int_equal(codec_encode_health_response(4, bytes, sizeof(bytes), &size), CODEC_INVALID);
    assert_int_equal(codec_encode_health_response(-1, bytes, sizeof(bytes), &size), CODEC_INVALID);
    assert_int_equal(codec_encode_health_response(1, bytes, 1, &size), CODEC_SPACE);
    assert_int_equal(size, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_bytes),       cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_small_buffers),      cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_mutations),          cmocka_unit_test(test_noise),
        cmocka_unit_test(test_encoding_bounds),    cmocka_unit_test(test_encoding_recovery),
        cmocka_unit_test(test_encoding_utf8),      cmocka_unit_test(test_encoding_gpus),
        cmocka_unit_test(test_encoding_answers),   cmocka_unit_test(test_decoding_bounds),
        cmocka_unit_test(test_decoding_malformed), cmocka_unit_test(test_message_too_long),
        cmocka_unit_test(test_health_request),     cmocka_unit_test(test_health_response),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
