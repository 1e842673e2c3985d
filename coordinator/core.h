// SPDX-License-Identifier: Apache-2.0
//
// The inside of the coordinator's core: its state. Only files of coordinator/ include this; the
// contract is coordinator.h. Runs inside coordinator_step, on the caller's thread.
//
//   coordinator.c  takes an event apart and hands it to the file that decides
//   table.c        streams and the records of workers
//   send.c         messages to workers, and log lines
//   job.c          the table of jobs
//   gather.c       the beginning of a generation
//   join.c         hello, the wanted world, deadlines of gathering workers
//   gpus.c         whether the GPUs of a world can work together
//   roster.c       ranks, and the forming of a generation
//   cost.c         how long an algorithm would take
//   links.c        what all links are like, and which algorithms follow from it
//   verify.c       lockstep_start: hashes of manifests
//   difference.c   two manifests that differ, item by item
//   learning.c     the order of a phase, from ready, wait and end
//   publish.c      layouts and plans
//   plans.c        the end of layouts
//   waits.c        ranks that are blocked in a planned step, and the verdict on them
//   knot.c         which ranks wait for each other for ever
//   crossing.c     which ranks wait in different functions for ever
//   names.c        the names of modules, calls and ranks
//   stall.c        stalls: their rules, beginning and questions (stall.h)
//   stall_end.c    the end of a stall
//   beat.c         one worker, as its heartbeats show it
//   blame.c        the ranks that others wait for
//   bounds.c       how long a rank may be where it is
//   culprit.c      the sentence about a stall
//   standing.c     the same when no rank is blamed
//   rates.c        step times, and ranks that others always wait for
//   history.c      a job over its whole run
//   journal.c      the log of a job
//   verdict.c      halts, deaths, leaving
//   sides.c        both sides of a collective that differs
//   view.c         copies for HTTP and tests
//   stall_view.c   the same, of stalls
//   sentence.c     text in fixed buffers
//   hash.c         FNV-1a

#ifndef COORDINATOR_CORE_H
#define COORDINATOR_CORE_H

#include "coordinator/coordinator.h"
#include "coordinator/cost.h"
#include "coordinator/history.h"
#include "coordinator/sentence.h"
#include "coordinator/stall.h"
#include "protos/limits.h"
#include "protos/types.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum core_limit {
    // When the configuration names none. Between two ranks a system call for each chunk counts for
    // more than how much is in flight.
    CORE_CHUNK_BYTES = 384 * 1024,
    CORE_CHUNK_BYTES_OF_TWO = 512 * 1024,

    // Comparing manifests: how many items ahead a name is searched on the other side, and how many
    // are held, so that as many again are on their way while the first are compared.
    CORE_LOOKAHEAD = 4 * LOCKSTEP_MANIFEST_PART,
    CORE_WINDOW = 2 * CORE_LOOKAHEAD,
    CORE_REPORT_LINES = 12,
    CORE_ANSWER_MS = 5000, // Then the report goes out with what is known.
    CORE_MAX_ITEMS = 2 + LOCKSTEP_MAX_MODULES + LOCKSTEP_MAX_PARAMETERS,

    CORE_RANK_WORDS = LOCKSTEP_RANK_WORDS,
    CORE_SLOT_TABLE = 2 * LOCKSTEP_MAX_SLOTS, // Open addressing, at most half full.
    CORE_PEER_TABLE = 2 * LOCKSTEP_MAX_WORKERS, // The same.
    CORE_LINE_BYTES = 3 * LOCKSTEP_NAME_BYTES, // One line of a report, one subject of a sentence.
    CORE_LOG_BYTES = 2 * LOCKSTEP_TEXT_BYTES,
    CORE_NONE = 0xffff, // No worker, no entry.
};

static_assert((CORE_SLOT_TABLE & (CORE_SLOT_TABLE - 1)) == 0, "a mask selects a place");
static_assert((CORE_PEER_TABLE & (CORE_PEER_TABLE - 1)) == 0, "a mask selects a place");
static_assert(LOCKSTEP_MAX_WORKERS < CORE_NONE, "a worker's index fits in 16 bits");
static_assert(LOCKSTEP_MAX_WORLD <= LOCKSTEP_MAX_WORKERS, "the largest job fits");

// ---- State -----------------------------------------------------------------------------------

enum stage {
    STAGE_FREE = 0, // Not in use.
    STAGE_GATHERING, // Said hello, waits for the world.
    STAGE_MEMBER, // A member of its job's present generation.
    STAGE_OUT, // A member of an earlier generation, still connected.
};

struct worker {
    coordinator_peer peer;
    enum stage stage;
    bool connected; // Its stream stands; false only for members, whose record stays for the views.
    uint16_t job;
    uint16_t next_free;
    uint32_t rank;
    uint64_t generation; // Number; 0 while gathering.
    uint64_t deadline_ms; // While gathering: its open timeout.
    uint32_t most; // While gathering: the most that were there at a time, since it came.
    struct up_hello hello; // Its texts are clean.
    bool left;
    char left_cause[LOCKSTEP_FAREWELL_TEXT_BYTES]; // Why it left, clean; "": as it should.
    bool lost;
    bool vanished; // True if it was lost without a word: its last heartbeat may have the cause.

    // From heartbeats.
    uint64_t heard_ms;
    struct up_heartbeat heartbeat;
    struct beat beat;

    // The slots that it waits for, as it said last; without waits it does not wait. In a learning
    // step the positions are indexes of slots, and the lacks are made up when they are needed.
    struct up_blocked blocked;

    // crossing.c
    uint32_t awaits; // 1 + the place of the key that it waits for; 0: it is no party.
    uint32_t lacks; // Bits, by place: it has not done what this key names.

    // Inspections.
    uint64_t asked; // Number of the last one, which it has not answered in full; 0: none.
    uint64_t ask_again_ms; // It is left alone until then.

    // lockstep_open, when its links stand.
    bool linked;
    struct up_links links;

    // lockstep_start
    bool started; // In the present round.
    struct up_start start;

    // The present learning step.
    bool ended;
};

struct manifest_entry {
    struct manifest_item item; // Its texts are clean.
    uint64_t scope; // Hash of its module's name; 0 for the session and for modules.
    bool matched; // Taken out by a match ahead; skipped when it becomes the head.
};

struct manifest_side {
    struct worker *worker;
    uint32_t item_count;
    uint32_t requested;
    uint32_t received;
    uint32_t head; // Place of the first entry held.
    uint32_t count; // Entries held.
    uint32_t modules;
    uint64_t scope; // Scope of the module whose items arrive.
    uint64_t missing; // Scope of a module that only this side has: its items are not reported.
    char module[LOCKSTEP_NAME_BYTES]; // Module of the items at the head.
    struct manifest_entry entries[CORE_WINDOW];
};

struct difference {
    bool active;
    bool several_modules;
    uint64_t deadline_ms;
    uint32_t found;
    uint32_t shown;
    struct sentence report;
    char text[LOCKSTEP_REPORT_BYTES];
    struct manifest_side sides[2];
};

struct learned_slot {
    struct slot_id id;
    enum dtype dtype;
    uint64_t elements;
    uint32_t reporter; // Rank that was first.
    uint32_t complete; // Members that made it or ended the step without it.
    bool granted;
    uint64_t ready[CORE_RANK_WORDS];
};

struct layout {
    uint32_t offset; // Into learning.words.
    uint32_t total;
    uint32_t received;
};

// The last plan of a phase, as far as a new one in its place needs it.
struct published {
    uint64_t phase;
    uint64_t number;
    uint64_t hash;
    uint32_t times; // That it took another one's place since the phase was learned.
    uint16_t buckets[LOCKSTEP_MAX_MODULES]; // In the layouts of its learning step; 0: it had none.
};

struct learning {
    bool active; // A learning step is going on.
    uint64_t step;
    uint64_t phase;
    uint32_t opener; // Rank that spoke first.
    uint64_t last_step; // The last one that a plan has closed.
    uint64_t plan_number;
    uint64_t republished; // The last one that was not learned.
    uint32_t published_count;
    struct published published[LOCKSTEP_MAX_PLANS];
    uint32_t ended;
    uint32_t slot_count;
    uint32_t grant_count;
    uint16_t grants[LOCKSTEP_MAX_SLOTS];
    uint16_t table[CORE_SLOT_TABLE]; // Index + 1 of a slot; 0: empty.
    struct learned_slot slots[LOCKSTEP_MAX_SLOTS];

    // Layouts live until the plan of their step is published, or the next round begins.
    struct layout *open; // Being received; NULL: none.
    uint32_t word_count;
    struct layout layouts[LOCKSTEP_MAX_MODULES];
    uint32_t words[LOCKSTEP_MAX_LAYOUT_WORDS];
};

// The waits of a job's ranks, and the search for ranks that cannot go on: see crossing.c.
struct crossing {
    struct await_key keys[LOCKSTEP_MAX_AWAITED];
    uint32_t users[LOCKSTEP_MAX_AWAITED]; // Parties that wait for it; 0: the place may be taken.
    uint64_t due_ms; // A crossing was found, and is told then at the latest; 0: none was.
};

static_assert(LOCKSTEP_MAX_AWAITED <= 32, "one bit for each key");

// A collective that differs, as the first rank said it: see sides.c.
struct sides {
    bool active;
    uint64_t due_ms;
    uint32_t rank;
    struct up_fail fail; // Its texts are clean.
};

struct journal_line {
    uint64_t at_ms;
    char id[24];
    char text[LOCKSTEP_TEXT_BYTES / 2];
};

struct journal {
    uint32_t count; // Lines ever; kept by count modulo LOCKSTEP_JOB_EVENTS.
    struct journal_line lines[LOCKSTEP_JOB_EVENTS];
};

// How a job gathers its workers.
struct gathering {
    uint32_t world_min;
    uint32_t world_max;
    uint32_t window_ms;
    uint64_t origin; // The origin of its first worker, as in coordinator_event.
    char wanted_by[LOCKSTEP_HOST_BYTES];
    // The text for workers whose time is over; "" if none was turned away since the last join.
    char timed_out[LOCKSTEP_TEXT_BYTES];
    uint64_t last_join_ms;
    uint64_t deadline_ms; // UINT64_MAX: none.
};

// The verdict that ended a generation.
struct halt {
    enum halt_kind kind;
    uint64_t step;
    bool has_rank;
    uint32_t rank;
    char text[LOCKSTEP_TEXT_BYTES];
};

struct job {
    bool used;
    char name[LOCKSTEP_JOB_NAME_BYTES];
    enum job_state state;
    uint64_t number; // Number of the last generation formed.

    struct gathering gathering;

    // In order of arrival while gathering, by rank afterwards.
    uint32_t count;
    uint16_t workers[LOCKSTEP_MAX_WORLD];
    uint32_t connected;
    uint32_t left;
    uint32_t outs; // Connected workers of earlier generations.
    uint32_t hosts; // Hosts of the generation, as its members were told: struct locality.
    struct cost_placement placement; // Its ranks on them.
    uint32_t linked; // Members whose links stand.
    bool tuned; // True if all members were told the tuning.
    struct tuning tuning;
    uint32_t started; // Members that have called lockstep_start in the present round.
    uint32_t rounds; // Complete rounds of lockstep_start.
    bool zero_defer; // True if a wait gives up slots, as in struct up_start.
    bool strict; // True if some member's data plane pairs collectives by their order.
    uint64_t queried_step; // The last one in which all were asked whether they wait.
    uint32_t module_count; // Number of names in modules.
    char modules[LOCKSTEP_MAX_MODULES][LOCKSTEP_NAME_BYTES]; // Clean; empty: not named yet.

    struct halt halt;

    // For the life of the generation.
    uint64_t formed_ms; // 0: none has formed yet.
    uint64_t ended_ms; // A verdict ended it, or the last rank left; 0: neither has happened.
    uint64_t settled; // The last step that is final on every rank, as far as known.
    uint64_t settled_ms; // When the first rank said so.

    uint64_t messages_total;
    uint64_t dropped_total;

    struct difference difference;
    struct learning learning;
    struct crossing crossing;
    struct sides sides;
    struct stall stall;
    struct rates rates;
    struct history history;
    struct journal journal;
};

// The search for ranks that wait for each other; the words are those of knot.c.
struct knot {
    uint32_t count;
    const struct worker *parties[LOCKSTEP_MAX_WORLD];
    bool dropped[LOCKSTEP_MAX_WORLD];
    uint32_t queued;
    uint16_t queue[LOCKSTEP_MAX_WORLD];
    struct slot_set needed; // Positions that some party needs.
    struct slot_set lacked; // Positions of needed that a party lacks that is not dropped.
    uint16_t lackers[LOCKSTEP_MAX_SLOTS]; // Number of such parties, by position.
    // Waits that watch a position: a list of numbers + 1, by party and wait.
    uint16_t watching[LOCKSTEP_MAX_SLOTS];
    uint16_t next[LOCKSTEP_MAX_WORLD * LOCKSTEP_MAX_WAITS];
};

static_assert(LOCKSTEP_MAX_WORLD * LOCKSTEP_MAX_WAITS < UINT16_MAX, "a wait's number fits");

// How one party waits for another.
struct knot_edge {
    uint32_t wait; // The wait of the one party.
    uint32_t position; // The first position that it needs and the other party lacks.
};

struct coordinator {
    struct coordinator_config config;
    bool draining;
    uint64_t number_floor; // Highest generation number of any job that was recycled.
    uint64_t asked; // Inspections, in all.

    // Valid during coordinator_step.
    struct coordinator_sink sink;
    uint64_t now;
    uint64_t origin; // As in the present event.
    const uint8_t *entropy;
    bool formed; // The entropy of this step is used up.
    struct down_message out;
    char text[LOCKSTEP_REPORT_BYTES];
    struct plan_slot plan[LOCKSTEP_MAX_SLOTS];
    struct knot knot;

    uint32_t job_count;
    uint16_t job_order[LOCKSTEP_MAX_JOBS]; // In order of creation.
    struct job jobs[LOCKSTEP_MAX_JOBS];

    uint32_t worker_top; // Workers from here on were never used.
    uint16_t worker_free;
    struct worker workers[LOCKSTEP_MAX_WORKERS];
    uint16_t peers[CORE_PEER_TABLE]; // Index + 1 of a worker; 0: empty.
};

#endif
