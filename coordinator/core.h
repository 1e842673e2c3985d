// SPDX-License-Identifier: Apache-2.0
//
// The state of the coordinator's core. Only files of coordinator/ include this header;
// coordinator.h is the contract for others. Used inside coordinator_step, on the caller's thread.
//
//   coordinator.c  passes each event to the file that decides
//   table.c        streams and the records of workers
//   send.c         messages to workers, and log lines
//   job.c          the table of jobs
//   gathering.c    creates jobs, and lets ended jobs gather workers again
//   join.c         hellos, the wanted world size, deadlines of gathering workers
//   gpus.c         whether the GPUs of a world can work together
//   roster.c       assigns ranks and forms a generation
//   cost.c         predicted time of each algorithm
//   links.c        combines the link measurements of all ranks into the tuning
//   verify.c       lockstep_start: compares hashes of manifests
//   difference.c   compares two different manifests item by item
//   difference_line.c  the lines about their differences
//   learning.c     learns the order of a phase from ready, wait and end messages
//   publish.c      layouts and plans
//   plans.c        forgets layouts
//   waits.c        ranks that are blocked in a planned step, and the verdict on a deadlock
//   knot.c         finds ranks that wait for each other forever
//   crossing.c     finds ranks that wait in different functions forever
//   names.c        the names of modules, calls and ranks
//   stall.c        stalls: rules, beginning, questions to workers (stall.h)
//   stall_end.c    the end of a stall
//   beat.c         the state of one worker, from its heartbeats
//   blame.c        finds the ranks that others wait for
//   bounds.c       how long a rank may stay in one place
//   culprit.c      the sentence about a stall
//   standing.c     the sentence about a stall that no rank explains
//   rates.c        step times, and ranks that are always the slowest
//   relearn.c      learning steps that go on after a loss, or with another coordinator
//   slots.c        the slots of a learning step
//   history.c      step times and metrics over a job's whole run
//   journal.c      the log of a job
//   verdict.c      halts, lost workers, leaving workers
//   advice.c       the words about a lost rank
//   lineage.c      open generations, and the quorum of a decision
//   suspicion.c    members that others have lost without a proof of death
//   sides.c        the verdict on a collective that two ranks call differently
//   view.c         copies of the state for HTTP and tests
//   stall_view.c   copies of stalls for HTTP and tests
//   sentence.c     text in fixed buffers
//   hash.c         FNV-1a

#ifndef COORDINATOR_CORE_H
#define COORDINATOR_CORE_H

#include "coordinator/ballot.h"
#include "coordinator/coordinator.h"
#include "coordinator/cost.h"
#include "coordinator/history.h"
#include "coordinator/lineage.h"
#include "coordinator/sentence.h"
#include "coordinator/stall.h"
#include "protos/limits.h"
#include "protos/redo.h"
#include "protos/types.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum core_limit {
    // Default chunk sizes. Chunks between two ranks are larger: there the system call for each
    // chunk matters more than the number of chunks in flight.
    CORE_CHUNK_BYTES = 384 * 1024,
    CORE_CHUNK_BYTES_OF_TWO = 512 * 1024,

    // Comparing manifests: the number of items in which a name is searched on the other side, and
    // the number of items held. Half of the items held are compared while the other half arrives.
    CORE_LOOKAHEAD = 4 * LOCKSTEP_MANIFEST_PART,
    CORE_WINDOW = 2 * CORE_LOOKAHEAD,
    CORE_REPORT_LINES = 12,
    CORE_ANSWER_MS = 5000, // How long the report on two manifests waits for missing items.

    CORE_RANK_WORDS = LOCKSTEP_RANK_WORDS,
    CORE_SLOT_TABLE = 2 * LOCKSTEP_MAX_SLOTS, // Open addressing, at most half full.
    CORE_PEER_TABLE = 2 * LOCKSTEP_MAX_WORKERS, // Open addressing, at most half full.
    CORE_LINE_BYTES = 3 * LOCKSTEP_NAME_BYTES, // One line of a report, one subject of a sentence.
    CORE_LOG_BYTES = 2 * LOCKSTEP_TEXT_BYTES,
    CORE_NONE = 0xffff, // The index that means "no worker" or "no entry".
};

static_assert((CORE_SLOT_TABLE & (CORE_SLOT_TABLE - 1)) == 0, "a mask selects a place");
static_assert((CORE_PEER_TABLE & (CORE_PEER_TABLE - 1)) == 0, "a mask selects a place");
static_assert(LOCKSTEP_MAX_WORKERS < CORE_NONE, "a worker's index fits in 16 bits");
static_assert(LOCKSTEP_MAX_WORLD <= LOCKSTEP_MAX_WORKERS, "the largest job fits");

// ---- State -----------------------------------------------------------------------------------

enum stage {
    STAGE_FREE = 0, // The record is not in use.
    STAGE_GATHERING, // The worker said hello and waits for the world to form.
    STAGE_MEMBER, // The worker is a member of its job's present generation.
    STAGE_OUT, // The worker was a member of an earlier generation and is still connected.
};

// A member whose stream has ended, or that has come back on another stream: see resume.c.
struct comeback {
    uint64_t away_ms; // When the stream ended; 0: it has not, or the worker is no member.
    uint64_t probe_ms; // When its data port is probed again; valid while away.
    uint64_t came_ms; // When it has come back; 0: never.
    uint64_t refused_ms; // When its data port was found closed; 0: it was not.
    bool unseen; // True if the member has not said hello to this coordinator yet.
    bool reached; // True if a probe has reached its data port: only then a refusal proves anything.
    bool starts; // True if an UP_START follows that this coordinator may have already.
    uint32_t rounds; // Rounds of lockstep_start that the member knew to be complete.
    uint64_t step; // The learning step that it says again; 0: none, or it has said all of it.
    uint64_t seeks[LOCKSTEP_MAX_WORLD / 64]; // Unseen ranks whose addresses the member awaits.
};

// A member that another one has lost without a proof of death: see suspicion.c.
struct accusation {
    uint64_t until_ms; // How long a proof is awaited; 0: the member is not accused.
    uint64_t probe_ms; // When its data port is probed next.
    uint64_t pause_ms; // Pause between two probes.
    uint64_t step; // As the accuser said.
    uint32_t by; // Rank of the accuser.
    char text[128]; // The words of the accuser, cleaned.
};

// A rank that a decision removed, while its stream is open.
struct removal {
    struct generation_id founder; // The first generation of its job; number 0: it is no such rank.
    uint32_t member; // Its rank in that generation.
};

enum goodbye {
    GOODBYE_NONE,
    GOODBYE_LEFT, // The worker has closed its session.
    GOODBYE_LOST, // The worker has given up: the others go on without it.
};

// The last inspection of a worker.
struct inspection {
    uint64_t id; // Its number, until the worker has answered it completely. Then 0.
    uint32_t what; // INSPECT_*
    // The next one of stacks, and of events, is allowed from this time on.
    uint64_t stacks_again_ms;
    uint64_t events_again_ms;
};

struct worker {
    coordinator_peer peer;
    enum stage stage;
    // True while the worker's stream is open. The record of a member stays after its stream has
    // ended, because views show it.
    bool connected;
    uint16_t job; // Index in coordinator.jobs.
    uint16_t next_free; // STAGE_FREE: index of the next free record, or CORE_NONE.
    uint32_t rank;
    uint64_t generation; // Number of the worker's generation; 0 while gathering.
    // True if the worker has not started the job's generation: it runs, or is frozen, in an older
    // one that is open. What it says of ranks does not count.
    bool behind;
    uint64_t deadline_ms; // While gathering: when the worker's open timeout ends.
    // While gathering: the largest number of workers that were present at one time since it joined.
    uint32_t most;
    struct up_hello hello; // The worker's hello; its texts are cleaned by sentence_clean.
    bool left; // True if the worker closed its session, or ended after the generation had.
    // The failure after which the worker left, clean; empty: it left without a failure.
    char left_cause[LOCKSTEP_FAREWELL_TEXT_BYTES];
    // The goodbye that another member has heard from the worker, and this coordinator has not.
    enum goodbye goodbye;
    bool lost; // True if the worker was lost, or broke the protocol.
    bool dead; // True if there is proof that its process is gone (rule M4).
    // True if the worker was lost because its process ended: its last heartbeat may say why.
    bool vanished;

    // From heartbeats.
    uint64_t heard_ms; // When the last heartbeat arrived; at first when all were told of the world.
    struct up_heartbeat heartbeat;
    struct beat beat;

    // The worker's last report of its waits. If wait_count is 0, the worker does not wait. In a
    // learning step positions are indices of learning.slots, and learning.c computes the lacks when
    // it needs them.
    struct up_blocked blocked;

    // Set by crossing.c.
    // 1 + index in crossing.keys of the key that the worker waits for; 0: it is no party.
    uint32_t awaits;
    uint32_t lacks; // Bit i: the worker has not done what crossing.keys[i] names.

    struct inspection asked;

    // Set in lockstep_open.
    bool linked; // True if all links of the worker are connected; `links` is valid then.
    struct up_links links;

    // Set in lockstep_start.
    bool started; // True if the worker has called lockstep_start in the present round.
    struct up_start start;
    uint64_t grouped; // Bit m is 1 if module m has a group.
    uint64_t absent; // Bit m is 1 if the worker is no member of that group.

    struct comeback back;
    struct accusation accused;
    struct removal removal; // STAGE_OUT only.

    // Set in a ballot.
    bool reported; // True if the worker has answered the present ballot; `report` is valid then.
    struct up_report report;

    // Set in a learning step.
    bool entered; // True if the worker is in the step, and has all grants: see relearn.h.
    uint32_t recalled; // Number of grants that it has said again.
    bool holds; // True if it has said that it holds the plan of the step.
    bool ended; // True if the worker has ended the step.
};

struct manifest_entry {
    struct manifest_item item; // Its texts are cleaned by sentence_clean.
    uint64_t scope; // Hash of the item's module name; 0 for items of the session and modules.
    // True if the item was compared with a later item of the other side; it is skipped when it
    // becomes the head.
    bool matched;
};

struct manifest_side {
    struct worker *worker;
    uint32_t item_count;
    uint32_t requested;
    uint32_t received;
    uint32_t head; // Index in entries of the first entry held.
    uint32_t count; // Number of entries held.
    uint32_t modules;
    uint64_t scope; // Scope of the module whose items arrive.
    // Scope of a module that only this side has. The report names the module, but not its items.
    uint64_t missing;
    uint64_t missing_sum; // Sum of the hashes of the items reported as missing; 0: none.
    char module[LOCKSTEP_NAME_BYTES]; // Name of the module of the items at the head.
    struct manifest_entry entries[CORE_WINDOW];
};

struct difference {
    bool active;
    bool several_modules;
    uint64_t deadline_ms;
    uint32_t found;
    uint32_t found_loaded; // Differences in `found` that are of the loaded file.
    uint32_t shown;
    struct text report;
    char text[LOCKSTEP_REPORT_BYTES];
    // At the first item that was missing: where the report ended, and a line for the case that only
    // the order differs. Empty: no item was missing.
    char order[CORE_LINE_BYTES];
    size_t order_used;
    uint32_t order_found;
    uint32_t order_shown;
    struct manifest_side sides[2];
};

struct learned_slot {
    struct slot_id id;
    enum dtype dtype;
    uint64_t elements;
    uint32_t reporter; // The first rank that reported the slot ready.
    // Number of members that made the slot, ended the step without it, or do not have its module.
    uint32_t complete;
    bool granted;
    uint64_t ready[CORE_RANK_WORDS]; // Set of ranks that made the slot.
    // Slots that some member had made before it made this one, without those that were granted by
    // then. Empty for a module without a group.
    struct slot_set after;
};

struct layout {
    uint32_t offset; // Index of its first word in learning.words.
    uint32_t total; // Number of words; 0: the module has no layout in this step.
    uint32_t received; // Number of words received so far.
    uint32_t proposer; // The rank that sent the first of them.
};

// The last plan of a phase: the facts that are needed to publish a new plan of this phase.
struct published {
    uint64_t phase;
    uint64_t number;
    uint64_t before; // Number of the plan that it replaced; its own number if it was learned.
    uint64_t hash;
    uint32_t times; // How often the plan was replaced since the phase was learned.
    // By module: buckets of the module's layout in the learning step; 0: it had no layout.
    uint16_t buckets[LOCKSTEP_MAX_MODULES];
};

struct learning {
    bool active; // True while members are in a learning step.
    bool again; // True if the step was opened by a member that says it again.
    uint64_t step;
    uint64_t phase;
    uint32_t opener; // The first rank that sent a message of the learning step.
    uint64_t last_step; // The last learning step that ended with a plan.
    // True if slots, grants and layouts are still those of last_step: a member may have missed its
    // plan.
    bool kept;
    // The plan of the present step, if another coordinator has published it, or of last_step, and a
    // rank that holds it. decided_number 0: it is not known.
    uint64_t decided_number;
    uint64_t decided_hash;
    uint32_t decided_rank;
    uint64_t plan_number; // Number of the last plan published.
    uint64_t republished; // Number of the last plan that replaced another plan.
    uint32_t published_count;
    struct published published[LOCKSTEP_MAX_PLANS];
    uint32_t entered; // Number of members that are in the step.
    uint32_t ended; // Number of members that have ended the step.
    uint32_t slot_count;
    uint32_t grant_count;
    bool held; // True if a complete slot may be held back.
    uint16_t grants[LOCKSTEP_MAX_SLOTS]; // Indices of the granted slots, in the order of grants.
    uint16_t table[CORE_SLOT_TABLE]; // Index + 1 of a slot; 0: empty.
    struct learned_slot slots[LOCKSTEP_MAX_SLOTS];

    // Layouts are kept until the plan of their step is published, or the next round of
    // lockstep_start begins.
    uint32_t word_count;
    struct layout layouts[LOCKSTEP_MAX_MODULES];
    uint32_t *words; // The job's row of coordinator.words. Set at init, then constant.
};

// The waits of a job's ranks, and the search for ranks that cannot go on: see crossing.c.
struct crossing {
    struct await_key keys[LOCKSTEP_MAX_AWAITED];
    // By key: number of parties that wait for it; 0: a new key may replace it.
    uint32_t users[LOCKSTEP_MAX_AWAITED];
    // By key: the ranks that must do it, as in struct await.
    uint64_t members[LOCKSTEP_MAX_AWAITED][LOCKSTEP_RANK_WORDS];
    uint64_t due_ms; // When the crossing that was found is reported at the latest; 0: none.
};

static_assert(LOCKSTEP_MAX_AWAITED <= 32, "one bit for each key");

// The first report of a collective that ranks call differently: see sides.c.
struct sides {
    bool active; // True while the report waits for a report of the other side.
    uint64_t due_ms; // When the wait ends.
    uint32_t rank; // The reporter.
    struct up_fail fail; // The report; its texts are cleaned by sentence_clean.
};

struct journal_line {
    uint64_t at_ms;
    char id[24];
    char text[LOCKSTEP_TEXT_BYTES / 2];
};

struct journal {
    uint32_t count; // All lines ever written; line n is at lines[n % LOCKSTEP_JOB_EVENTS].
    struct journal_line lines[LOCKSTEP_JOB_EVENTS];
};

// The verdict that ended a generation.
struct halt {
    enum halt_kind kind;
    uint64_t step;
    bool has_rank;
    uint32_t rank;
    char text[LOCKSTEP_TEXT_BYTES];
};

// How the job's last generation ended, for views until the next one forms. The state is
// JOB_GATHERING if none ended.
struct ended {
    enum job_state state;
    uint32_t world_size;
    uint64_t formed_ms;
    uint64_t ended_ms;
    uint64_t settled;
    uint64_t settled_ms;
    struct halt halt;
};

// How a job gathers its workers.
struct gathering {
    uint32_t world_min;
    uint32_t world_max;
    uint32_t window_ms;
    uint64_t origin; // The origin of the job's first worker, as in coordinator_event.
    char wanted_by[LOCKSTEP_HOST_BYTES]; // Host of the worker whose hello set world_min and so on.
    // The text for workers whose open timeout has passed; empty if no worker was refused since the
    // last one joined.
    char timed_out[LOCKSTEP_TEXT_BYTES];
    // Why the last worker was refused that does not agree with the workers that wait; empty: no
    // worker was.
    char refused[LOCKSTEP_TEXT_BYTES / 2];
    uint64_t last_join_ms;
    uint64_t deadline_ms; // When join_tick is due; UINT64_MAX: never.
    uint64_t early_until_ms; // Until then workers that come too early are refused without a log.
    struct ended ended; // Valid in JOB_GATHERING.
};

// Members of a running job that have no stream.
struct resuming {
    // Incarnation of the coordinator that formed the generation: another one than ours in a job
    // that this coordinator has rebuilt from what its members said.
    uint64_t incarnation;
    uint32_t unseen; // Members that have not said hello to this coordinator yet.
    uint64_t due_ms; // When a data port is probed next; UINT64_MAX: never.
    // When the connected members are sent away, because they are too few; 0: they are not.
    uint64_t divided_ms;
    uint64_t divided_pause_ms; // How long they are given the next time.
};

struct job {
    bool used;
    char name[LOCKSTEP_JOB_NAME_BYTES];
    enum job_state state;
    uint64_t number; // Number of the last generation formed.

    struct gathering gathering;

    // Indices of the job's workers: in order of arrival while gathering, by rank afterwards.
    uint32_t count;
    uint16_t workers[LOCKSTEP_MAX_WORLD];
    uint32_t connected; // Workers in `workers` whose stream is open.
    uint32_t left; // Members that have closed their sessions.
    uint32_t outs; // Connected workers of earlier generations.
    uint32_t hosts; // Number of hosts of the generation, in the sense of struct locality.
    struct cost_placement placement; // How the ranks are placed on these hosts.
    uint32_t linked; // Members whose links are all connected.
    bool tuned; // True if the tuning was sent to all members.
    struct tuning tuning;
    uint32_t started; // Members that have called lockstep_start in the present round.
    uint32_t rounds; // Complete rounds of lockstep_start.
    bool zero_defer; // As in struct up_start.
    bool strict; // True if some member's data plane matches collectives by their order.
    uint64_t queried_step; // The last step in which all members were asked for their waits.
    uint32_t module_count; // Number of names in modules.
    // Names of the modules, cleaned by sentence_clean; empty: not known yet.
    char modules[LOCKSTEP_MAX_MODULES][LOCKSTEP_NAME_BYTES];
    // Names of their groups, cleaned; empty: all ranks have the module.
    char groups[LOCKSTEP_MAX_MODULES][LOCKSTEP_GROUP_NAME_BYTES];

    struct halt halt;
    struct ballot ballot;
    struct resuming resuming;

    // Valid for the life of the generation.
    // When the generation formed; 0: it has not formed yet, or another coordinator has formed it.
    uint64_t formed_ms;
    // When a verdict ended the generation, or its last rank left; 0: neither has happened.
    uint64_t ended_ms;
    uint64_t settled; // The last step that some rank reported as final on every rank.
    uint64_t settled_ms; // When the first rank reported this.

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

// The memory of the search for ranks that wait for each other. knot.c explains the words.
struct knot {
    uint32_t count;
    const struct worker *parties[LOCKSTEP_MAX_WORLD];
    bool dropped[LOCKSTEP_MAX_WORLD];
    uint32_t queued;
    uint16_t queue[LOCKSTEP_MAX_WORLD];
    struct slot_set needed; // Positions that some party needs.
    struct slot_set lacked; // Positions in `needed` that some party lacks that is not dropped.
    uint16_t lackers[LOCKSTEP_MAX_SLOTS]; // By position: number of these parties.
    // By position: list of the waits that watch it. watching has the first wait, next the following
    // one; 0 ends the list. A wait is stored as 1 + party * LOCKSTEP_MAX_WAITS + index of the wait.
    uint16_t watching[LOCKSTEP_MAX_SLOTS];
    uint16_t next[LOCKSTEP_MAX_WORLD * LOCKSTEP_MAX_WAITS];
};

static_assert(LOCKSTEP_MAX_WORLD * LOCKSTEP_MAX_WAITS < UINT16_MAX, "a wait's number fits");

// Why one party waits for another.
struct knot_edge {
    uint32_t wait; // Index of the first party's wait.
    uint32_t position; // The first position that this wait needs and the other party lacks.
};

// A job that can never be complete, because one of its workers has ended before all said hello.
struct absence {
    char job[LOCKSTEP_JOB_NAME_BYTES]; // Empty: no such job is known.
    char text[LOCKSTEP_TEXT_BYTES]; // Which worker, and how it ended; clean.
};

// The memory in which a decision is made.
struct redo_room {
    struct redo_row rows[LOCKSTEP_REDO_ROWS];
    uint64_t words[LOCKSTEP_MAX_RECORD_WORDS];
};

struct coordinator {
    struct coordinator_config config;
    bool draining;
    char stopped_by[16]; // The signal, or the launcher, that stopped all jobs; empty: none has.
    struct absence absence;
    uint64_t number_floor; // Highest generation number of any job that was recycled.
    uint64_t asked; // Number of inspections so far.

    // Valid during coordinator_step.
    struct coordinator_sink sink;
    uint64_t now;
    uint64_t origin; // Origin of the present event.
    const uint8_t *entropy; // Random bytes of the present event.
    bool formed; // True if a generation has used the entropy of the present event.
    struct down_message out;
    char text[LOCKSTEP_REPORT_BYTES];
    struct plan_slot plan[LOCKSTEP_MAX_SLOTS];
    struct knot knot;

    uint32_t job_count;
    // Indices in jobs. The job that began to gather last is the last one.
    uint16_t job_order[LOCKSTEP_MAX_JOBS];
    struct job jobs[LOCKSTEP_MAX_JOBS];

    uint32_t worker_top; // Records of workers from this index on were never used.
    uint16_t worker_free; // Index of the first free record, or CORE_NONE.
    struct worker workers[LOCKSTEP_MAX_WORKERS];
    uint16_t peers[CORE_PEER_TABLE]; // Index + 1 of a worker; 0: empty.

    // Last, because only these are large: a job touches as many words as it needs.
    struct redo_room redo;
    uint32_t words[LOCKSTEP_MAX_JOBS][LOCKSTEP_MAX_LAYOUT_WORDS]; // By job: layouts of learning.
    uint64_t records[LOCKSTEP_MAX_JOBS][LOCKSTEP_BALLOT_WORDS]; // By job: reports of a ballot.
};

#endif
