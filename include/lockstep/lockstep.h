/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lockstep.h: the worker library of Lockstep, and its manual.
 *
 * A trainer runs as n processes ("workers"), each with the same parameters and its own shard of
 * the data. Every process opens a session, declares its parameters, and reports each gradient as
 * soon as the backward pass has produced it. The library packs gradients into buckets and averages
 * them over all workers while the backward pass goes on. At the end of the step it gives them back,
 * and all ranks hold the same bits.
 *
 *     lockstep_open(&config, &session);
 *     lockstep_module_register(session, &description, &module);
 *     lockstep_start(session);                           // compares, then broadcasts the state
 *     for (every batch) {
 *         lockstep_step_begin(session, NULL, NULL);
 *         ... forward ...
 *         lockstep_call_begin(module, &call);            // backward begins
 *         lockstep_grad_ready(module, call, p, NULL, NULL);   // for each parameter p
 *         lockstep_call_end(call);
 *         lockstep_step_end(session, NULL);              // gradients are averaged now
 *         ... optimizer ...
 *     }
 *     lockstep_close(session);
 *
 * Status. Every function that can fail returns a lockstep_status: LOCKSTEP_OK (0) on success, a
 * negative number on failure. lockstep_error_text() returns the details of the last failure on the
 * same thread.
 *
 * After a failure that concerns the whole job (a lost worker, ranks that disagree) the session has
 * failed. Every later call returns the same status and text, or E_CLOSED with the same text after
 * the E_TIMEOUT of a blocking collective. Only these still work: lockstep_close, lockstep_abort,
 * lockstep_world, lockstep_leaves, lockstep_step_report, lockstep_session_fd, lockstep_group_world,
 * lockstep_group_close, and lockstep_work_wait for work that was done before.
 *
 * The process. The library never ends the process. It prints nothing but what is described at
 * config.log: one line, and the log where LOCKSTEP_LOG asks for it. It installs no signal handler
 * until somebody asks where this process hangs. Then it installs a handler for one real-time signal
 * that has none. A sleep or poll that this signal interrupts is continued, and may take up to twice
 * its time. A sleep or poll that is interrupted a second time, or that cannot be continued, ends
 * early with EINTR, as after any signal.
 *
 * How to read a comment. A trainer may rely on what the comments say. A comment is about all
 * functions between it and the next comment. It ends with up to four paragraphs:
 * - Blocks says whether the function waits for other ranks.
 * - Threads says which threads may call it. "The trainer's" is the one thread that makes the calls
 *   of a session.
 * - Owns says what happens to memory that is handed over ("copied", "borrowed until ..."). Without
 *   this paragraph the function keeps no pointer.
 * - Returns lists the failures that are particular to the function. Three are possible everywhere
 *   and are not repeated: LOCKSTEP_E_INVALID (a NULL or foreign handle, a wrong argument),
 *   LOCKSTEP_E_FORKED, and the failure of a session that has failed.
 *
 * "As lockstep_x" means that the paragraphs of lockstep_x hold for this function, too. A signal
 * handler calls no function of the library.
 *
 * Environment. These variables override the configuration, so that a launcher can place a worker
 * without code: LOCKSTEP_COORDINATOR, _JOB, _WORLD_SIZE, _WORLD_MIN, _WORLD_MAX, _WORLD_WINDOW_MS,
 * _RANK_HINT, _ADVERTISE, _DATA_PORTS, _OPEN_TIMEOUT_MS, _LOG, _ENGINE_CPUS, _ENGINE_NICE,
 * _TRACE_DIR, _TLS_DIR, _DATA_ENCRYPTION (off or tls), _TRANSPORT (auto or tcp), _ORDER (error or
 * zero_defer), _UNPLANNED (extend, fail or defer), _HALT_TIMEOUT_MS, _DEVICE, _SUM (fast or ranks),
 * _VIRTUAL_RANKS and _ON_FAILURE (continue). These replace a choice of the library:
 * LOCKSTEP_ALGORITHM (auto, ring, doubling, halving, shared, two_level or direct, the same on every
 * rank), LOCKSTEP_LINK (LATENCY_NS,BYTES_PER_S), LOCKSTEP_SLOTS, LOCKSTEP_AWAY_TIMEOUT_MS and
 * LOCKSTEP_ABORT_MS. If neither the configuration nor a LOCKSTEP_ variable gives rank and world
 * size, the variables of torchrun, horovodrun, OpenMPI, PMI, Flux, Slurm and Kubernetes do
 * (docs/environment.md, "Which worker am I"). An unknown LOCKSTEP_ variable is E_CONFIG.
 * docs/environment.md lists all variables.
 */
#ifndef LOCKSTEP_LOCKSTEP_H
#define LOCKSTEP_LOCKSTEP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LOCKSTEP_VERSION_MAJOR 0
#define LOCKSTEP_VERSION_MINOR 1
#define LOCKSTEP_VERSION_PATCH 0

#if defined(__GNUC__)
#define LOCKSTEP_API __attribute__((visibility("default")))
#else
#define LOCKSTEP_API
#endif

/* ---- Status ---------------------------------------------------------------------------------- */

/* Each status is named for what the caller does next. */
typedef enum lockstep_status {
    LOCKSTEP_OK = 0,
    LOCKSTEP_DEFERRED = 1, /* Not a failure: this contribution counts in a later step. */
    /* Not a failure: there is no next step (lockstep_step_begin), or no next bucket
     * (lockstep_call_next). */
    LOCKSTEP_FINISHED = 2,
    LOCKSTEP_E_INVALID = -1, /* Fix the program: this call was wrong. */
    LOCKSTEP_E_UNSUPPORTED = -2, /* Do without: this build or this machine cannot. */
    LOCKSTEP_E_CONFIG = -3, /* Fix the configuration or the environment. */
    LOCKSTEP_E_UNREACHABLE = -4, /* Check address, network, and whether the job runs already. */
    LOCKSTEP_E_TIMEOUT = -5, /* The stated time passed; waiting on may help. */
    LOCKSTEP_E_MISMATCH = -6, /* Ranks run different programs: make them equal. */
    LOCKSTEP_E_UNUSED = -7, /* A gradient was not produced: the text says which; go on. */
    LOCKSTEP_E_PEER_LOST = -8, /* A worker is gone: restart from the last checkpoint. */
    LOCKSTEP_E_CLOSED = -9, /* Aborted, or a blocking collective's time was over: stop using it. */
    LOCKSTEP_E_SYSTEM = -10, /* The operating system refused; the text says what. */
    LOCKSTEP_E_FORKED = -11, /* The session belongs to the parent process. */
    LOCKSTEP_E_CHANGED = -12 /* The world changed, and the session goes on: call again. */
} lockstep_status;

/* The name of a status: "LOCKSTEP_E_TIMEOUT", or "unknown status". Never NULL. Blocks: no. Threads:
 * any. */
LOCKSTEP_API const char *lockstep_status_name(int status);

/* The text of the last failure on this thread, one or several lines without a final newline: "step
 * 812: rank 2 (host b) was lost: connection reset by peer". Empty before the first failure. A call
 * that succeeds does not clear it, so ask for it only after a failure. Blocks: no. Threads: any.
 * Owns: borrowed until the next call of this thread. */
LOCKSTEP_API const char *lockstep_error_text(void);

/* The version of the library: "0.1.0". Blocks: no. Threads: any. */
LOCKSTEP_API const char *lockstep_version(void);

/* ---- Opening and closing a session ------------------------------------------------------------
 */

typedef struct lockstep_session lockstep_session; /* Membership of this process in one job. */
typedef struct lockstep_module lockstep_module; /* Parameters that are synchronized together. */
typedef struct lockstep_call lockstep_call; /* One backward pass of a module in a step. */
typedef struct lockstep_work lockstep_work; /* A plain collective in flight. */
typedef struct lockstep_group lockstep_group; /* Ranks that make collectives among themselves. */

typedef enum lockstep_on_failure {
    LOCKSTEP_ON_FAILURE_ERROR = 0, /* A lost worker ends the step with an error on every rank. */
    LOCKSTEP_ON_FAILURE_CONTINUE = 1 /* Survivors finish the step: see lockstep_world_change. */
} lockstep_on_failure;

/* How the job ends if ranks have data for different numbers of steps; see lockstep_step_begin. */
typedef enum lockstep_uneven {
    LOCKSTEP_UNEVEN_NONE = 0, /* All ranks make equally many steps. */
    LOCKSTEP_UNEVEN_ALL = 1, /* Steps go on until every rank is exhausted. */
    LOCKSTEP_UNEVEN_FIRST = 2 /* All ranks stop when the first one is exhausted. */
} lockstep_uneven;

/* Treatment of a call that is not in the plan of its step. The plan of a phase has
 * the calls that any rank made in the first step of the phase. Calls that several steps in a row
 * make beyond it are added. */
typedef enum lockstep_unplanned {
    LOCKSTEP_UNPLANNED_EXTEND = 0, /* All ranks run the call at the end of the step. A rank that did
                                      not make it contributes nothing. More than 8 such calls in one
                                      step: E_MISMATCH on every rank, at lockstep_step_end. */
    LOCKSTEP_UNPLANNED_FAIL = 1, /* E_MISMATCH on every rank at lockstep_step_end. */
    LOCKSTEP_UNPLANNED_DEFER = 2 /* The call counts later: "Deferred calls" below. */
} lockstep_unplanned;

/* Outcome if ranks wait (lockstep_call_wait) for their calls in different orders, so that each
 * waits for a call that another rank has not made. */
typedef enum lockstep_order {
    LOCKSTEP_ORDER_ERROR = 0, /* E_MISMATCH on every rank, at once; the text names both sides. */
    LOCKSTEP_ORDER_ZERO_DEFER = 1 /* A wait gives up the calls that are planned before its own call
                                     and that this rank has not made yet: the other ranks go on
                                     without them. A call that is made after that counts later. */
} lockstep_order;

/* The order in which the contributions of ranks are added. */
typedef enum lockstep_sum {
    LOCKSTEP_SUM_FAST = 0, /* The order of the fastest algorithm: docs/numbers.md. Bits are the same
                              on all ranks, and in every run of the same world and layout. */
    /* The order of ranks, one addition after the other, whatever the bucket, the transport and the
     * number of hosts. So the bits of a step depend on the inputs and the world size alone.
     * docs/performance.md has the price. */
    LOCKSTEP_SUM_RANKS = 1
} lockstep_sum;

/* Deferred calls. A call that counts later is deferred. Its gradients are added, with their weight,
 * to this rank's next call of the same module that is not deferred, so every sample counts once.
 * lockstep_call_wait returns LOCKSTEP_DEFERRED for a deferred call at once. Until lockstep_step_end
 * its gradient memory holds what the trainer put there. After lockstep_step_end the memory holds
 * the mean of the ranks that contributed, as on the other ranks. If no rank with a weight above 0
 * contributed, it holds zeros, and ranks that have made no call keep what they had: if ranks need
 * equal memory then, they look at lockstep_module_used and clear gradients with 0.
 * lockstep_close logs one line if no later call has carried the deferred gradients.
 * lockstep_start reserves address space for deferred gradients: three to four times the size of the
 * gradients, and once more for every further separate call. Memory is used only when a call is
 * deferred. A world of one without a coordinator defers nothing. */

typedef enum lockstep_transport_kind {
    LOCKSTEP_TRANSPORT_AUTO = 0, /* Memory between ranks of one host that can share it; else TCP. */
    LOCKSTEP_TRANSPORT_TCP = 1,
    LOCKSTEP_TRANSPORT_LOOPBACK = 2 /* Ranks are sessions of one process: for tests. */
} lockstep_transport_kind;

typedef enum lockstep_log_level {
    LOCKSTEP_LOG_ERROR = 0,
    LOCKSTEP_LOG_WARN = 1,
    LOCKSTEP_LOG_INFO = 2,
    LOCKSTEP_LOG_DEBUG = 3
} lockstep_log_level;

/* Receives one logfmt line without a newline. The library calls the sink on any of its threads, or
 * on the trainer's thread inside a function that blocks. No lock is held. The sink must not call
 * the library: such a call returns E_INVALID. */
typedef void (*lockstep_log_sink)(void *context, lockstep_log_level level, const char *line);

/* A log sink for programs that no other thread may call, such as interpreters. It writes each line
 * to a file descriptor: the level as a digit, a space, the line, a newline, together at most 4,096
 * bytes; longer lines are cut. context is the descriptor, as (void *)(intptr_t)fd. A line that a
 * full pipe with O_NONBLOCK does not take is lost. Blocks: as write does. Threads: any. */
LOCKSTEP_API void lockstep_log_to_fd(void *context, lockstep_log_level level, const char *line);

/* The configuration of a session. Initialize with LOCKSTEP_CONFIG_INIT, then set what differs.
 * lockstep_open copies the strings. */
struct lockstep_config {
    size_t struct_bytes; /* sizeof(struct lockstep_config), set by the initializer. */
    /* "host:port" or "unix:/path", or up to 8 of these, separated by commas: each is tried in turn,
     * and a name is looked up at every attempt. A path is the last one. NULL, and no
     * LOCKSTEP_COORDINATOR in the environment: a world of one, without any network. If a launcher
     * started several processes, that is E_CONFIG. */
    const char *coordinator;
    const char *job; /* At most 63 letters, digits, '-', '_' and '.', but not "." or "..". NULL: the
                        launcher's name of the run, or "default" if it has none. */
    uint32_t world_size; /* The exact number of workers. 0: between world_min and world_max. */
    /* With world_size 0: the fewest workers to start with. 0 with a world_max above 1 is E_CONFIG.
     */
    uint32_t world_min;
    /* With world_size 0: the most workers; 0: world_min. If both bounds are 0: as many as the
     * launcher started. Without a launcher that is a world of one, and E_CONFIG if a coordinator is
     * named. */
    uint32_t world_max;
    uint32_t world_window_ms; /* How long to wait for one more worker once world_min are there. The
                                 world forms sooner if the open timeout of a worker passes. */
    int32_t rank_hint; /* The rank wished for; negative: none. */
    uint32_t open_timeout_ms; /* How long lockstep_open waits for the world. 0: 60,000. More than
                                 a day (86,400,000) counts as a day. */
    /* Address at which the other workers reach this one: "10.0.0.7", "fd00::7", an interface
     * ("eth0"), or a network in which this host has an address ("10.0.0.0/8"). NULL: the address by
     * which this host reaches the coordinator. */
    const char *advertise;
    const char *data_ports; /* Ports to listen on, "20000-20099". NULL: any free port. */
    const char *host_id; /* Equal on workers that share memory. NULL: from the machine. */
    lockstep_transport_kind transport;
    /* Equal on all ranks. LOCKSTEP_ON_FAILURE_CONTINUE works with gradients in host memory and
     * on devices, and with buffers in host memory. What it does not go together with yet is
     * E_UNSUPPORTED, with a text that names it: docs/recovery.md has the list. */
    lockstep_on_failure on_failure;
    size_t bucket_first_bytes; /* Cap of the first bucket of each dtype. 0: 1 MiB. */
    /* Cap of the other buckets. 0: 4 MiB, or more if a module is so large that 4 MiB would make
     * very many buckets. A bucket closes when it has reached its cap, so a larger tensor has a
     * bucket of its own. */
    size_t bucket_bytes;
    size_t bucket_last_bytes; /* Approximate size of the last bucket. 0: 1 MiB. */
    /* Receives the lines of the log. NULL: LOCKSTEP_LOG=warn in the environment (or error, info,
     * debug) writes them to standard error, with the rank once that is known. Without
     * LOCKSTEP_LOG they go nowhere. Then the library is silent, except for one line on standard
     * error when lockstep_open has not reached the coordinator after a second. LOCKSTEP_LOG=error
     * leaves that out. */
    lockstep_log_sink log;
    void *log_context;
    lockstep_log_level log_level;
    uint32_t reserved; /* 0. */
    /* The rank whose values lockstep_start gives to all ranks. Buffers of policy broadcast have
     * this rank's values from then on. Equal on all ranks. */
    uint32_t root;
    lockstep_uneven uneven; /* Equal on all ranks. Until lockstep_uneven_set sets another rule. */
    /* Processors on which the engine's thread may run: "3" or "2-3,7". The engine's thread works
     * while no function blocks, that is during the backward pass. NULL: the processors of the
     * thread that calls lockstep_open. */
    const char *engine_cpus;
    /* Nice value of the engine's thread. 1 to 19 give way to the trainer's threads. 0: unchanged.
     * Below 0 needs a privilege; if it is refused, the only effect is a warning in the log. */
    int32_t engine_nice;
    /* Directory for a file that says where this worker's trainer is and what its last 2,048 events
     * were, also after it was killed: lockstep trace FILE. lockstep_close removes the file unless
     * the session has failed. A directory in memory is best. A directory that cannot be used is a
     * warning in the log. NULL: no file. */
    const char *trace_dir;
    lockstep_order order; /* Equal on all ranks. */
    lockstep_unplanned unplanned; /* Equal on all ranks. */
    /* Number of threads of this rank that may be in lockstep_call_wait at a time. The rank counts
     * as waiting only while that many threads wait. At most 16. 0: 1. */
    uint32_t trainer_threads;
    /* 1: lockstep_call_wait may wait for something that needs the end of a call which is open here,
     * because another thread will end it. 0: such a wait counts as one that cannot end. */
    uint32_t wait_while_open;
    /* The coordinator tells ranks that wait for each other. If the coordinator is lost,
     * lockstep_call_wait goes on for this long and then fails with E_UNREACHABLE, on this rank. 0:
     * for ever. */
    uint32_t halt_timeout_ms;
    /* Directory with tls.crt, tls.key and ca.crt. With it the connection to the coordinator uses
     * TLS, and both sides show certificates (docs/certificates.md). NULL: plaintext, on this host
     * only, unless LOCKSTEP_INSECURE_PLAINTEXT=1 in the environment allows more. */
    const char *tls_dir;
    /* The GPUs of this rank, whose memory may hold parameters, gradients and buffers:
     *   "none"      no GPU;
     *   "cuda:0"    CUDA's device of this number, in its primary context;
     *   "cuda:0,1"  the same, and further devices for further replicas of modules, at most 16;
     *   "auto"      the device of the context that is current on the thread that calls
     *               lockstep_open, if CUDA's driver is in the process, else none.
     * NULL: "auto". A device that is named and cannot be used is E_UNSUPPORTED. */
    const char *device;
    /* "tls": traffic between workers over a network is encrypted. Memory that ranks of one host
     * share is not. "off" or NULL: workers authenticate each other, and tensors pass in plaintext;
     * SECURITY.md says what that does not stop. Equal on all ranks. */
    const char *data_encryption;
    /* LOCKSTEP_SUM_FAST or LOCKSTEP_SUM_RANKS, equal on all ranks. LOCKSTEP_SUM and LOCKSTEP_MEAN
     * are operations of collectives (lockstep_op): as a value here they would count as these two.
     */
    lockstep_sum sum;
    /* Number of virtual ranks, at most 64. Gradients are then added over a fixed tree of so many
     * leaves, and each rank makes one step for each of its leaves ("Leaves" below): the bits of
     * gradients do not depend on the number of ranks. Every rank has at least one leaf; a world of
     * more ranks is E_CONFIG. Not together with config.uneven, policies that defer, or devices;
     * modules have no replicas, no separate_calls and no LOCKSTEP_ABORT_ACCEPT. 0: none. Equal on
     * all ranks. */
    uint32_t virtual_ranks;
    /* 1: the report of each step has the norm of all gradients (report.gradient_norm), which costs
     * reading them once more. Only for gradients in host memory. Equal on all ranks. */
    uint32_t gradient_norm;
};

#define LOCKSTEP_CONFIG_INIT \
    { \
        sizeof(struct lockstep_config), NULL, NULL, 0, 0, 0, 0, -1, 0, NULL, NULL, NULL, \
            LOCKSTEP_TRANSPORT_AUTO, LOCKSTEP_ON_FAILURE_ERROR, 0, 0, 0, NULL, NULL, \
            LOCKSTEP_LOG_WARN, 0, 0, LOCKSTEP_UNEVEN_NONE, NULL, 0, NULL, LOCKSTEP_ORDER_ERROR, \
            LOCKSTEP_UNPLANNED_EXTEND, 0, 0, 0, NULL, NULL, NULL, LOCKSTEP_SUM_FAST, 0, 0 \
    }

/* Joins the job and waits until its world has formed and this worker is connected to its peers.
 * When the coordinator goes away before that, the worker goes on trying to reach it, or another
 * coordinator at its addresses, until open_timeout_ms has passed. While some workers of an earlier
 * world of the same job have closed their sessions and others have not, the worker waits for these
 * others, in the same way. A process may have several sessions; each takes 257 of its 8,192 handles
 * (docs/errors.md, "Limits of the process").
 * config: NULL means all defaults and the environment.
 * Blocks: until the world has formed, at most open_timeout_ms. Threads: any. Owns: config is
 * copied. Returns: E_CONFIG (the text names field or variable, or says which world size the others
 * want), E_UNREACHABLE (no coordinator, or it takes no worker now: the job is running already, or a
 * limit is reached; the text says which), E_TIMEOUT (how many of how many came, which hints are
 * missing), E_MISMATCH (another version than the coordinator's; or other ranks are in
 * lockstep_start already, and two of them differ), E_PEER_LOST, E_SYSTEM (a limit of the process
 * has no room for a session; the text names it as the shell does: ulimit -n), E_UNSUPPORTED (the
 * device, or what it needs, cannot be used: the text says why). *session is NULL on failure. */
LOCKSTEP_API int lockstep_open(const struct lockstep_config *config, lockstep_session **session);

/* Checks what lockstep_open would refuse before it asks a coordinator: the configuration and every
 * LOCKSTEP_* variable. Reads no certificates, and looks for no device. config: NULL means all
 * defaults and the environment.
 * Blocks: no. Threads: any. Owns: config is borrowed for the call.
 * Returns: OK, or what lockstep_open would return about the configuration, with the same text. */
LOCKSTEP_API int lockstep_config_check(const struct lockstep_config *config);

/* This worker's rank and the world size, constant in a generation. Either pointer may be NULL.
 * Blocks: no. Threads: any. */
LOCKSTEP_API int lockstep_world(lockstep_session *session, uint32_t *rank, uint32_t *world_size);

/* The leaves of this rank: `count` of them from `first`, of `total` in the job. With
 * config.virtual_ranks V the leaves of rank r of n are floor(r V / n) up to floor((r + 1) V / n).
 * Without it every rank is one leaf: its rank, 1, and the world size. Constant in a generation.
 * After a death (config.on_failure) the leaves of the lost rank are missing in the step that the
 * survivors finish. At the end of that step leaves are dealt anew: ask again before each window.
 * Any pointer may be NULL. Blocks: no. Threads: any. */
LOCKSTEP_API int lockstep_leaves(lockstep_session *session, uint32_t *first, uint32_t *count,
                                 uint32_t *total);

/* Leaves the job in good order and frees the session with its modules, calls and work. Data of a
 * finished step that other ranks still need is sent first, and so are messages of SENDs that are
 * complete. The function sends as long as other ranks take bytes. It ends when none has taken any
 * for two seconds, or for four round trips of the slowest link if these are longer. What was not
 * taken by then, for example by a rank that is stopped, may be lost, and its receiver gets
 * E_PEER_LOST: a barrier before the close waits for receivers. The function is not collective: a
 * rank that still needs this one for a later step gets E_PEER_LOST, whose text says that this rank
 * left. The text also has the last failure of any function here, unless a lockstep_start, step or
 * collective has ended well after that failure. The function waits one second and 10 ms for each
 * rank at most for a coordinator that is silent, which takes the goodbye when it goes on. With
 * config.on_failure continue it waits for a coordinator that is away, for five seconds at most.
 *
 * On a rank with a device the function first waits for the results of a step that a stream has
 * ended, without limit: until they are in memory, a rank is lost, the device has failed, or a rank
 * has left whose data is missing here. If they are not in memory then, gradients are undefined, and
 * the log warns (step_dropped): synchronize the stream before the close to be sure.
 * Blocks: for a device as said; as long as other ranks take what this one has sent, and at most
 * three seconds more, or seven, and 10 ms for each rank; longer only if a round trip takes more
 * than half a second, and five seconds while its goodbye cannot leave. Threads: the trainer's,
 * while no other call runs.
 * Returns: OK, also for a failed session, and the handle is foreign from then on; E_INVALID while
 * another thread waits inside a function of the session, and the session stays as it was. */
LOCKSTEP_API int lockstep_close(lockstep_session *session);

/* Gives up at once. Every call that waits in another thread returns E_CLOSED, and so does every
 * later call. The other ranks get E_PEER_LOST with this reason (NULL: "aborted"). A step that one
 * of the other ranks completes is completed by all of them. The session still has to be closed; a
 * process that ends instead loses nothing of the reason if a coordinator is there.
 * Blocks: until the reason is sent to the coordinator, some milliseconds; one second at most.
 * Threads: any. Owns: reason is copied. */
LOCKSTEP_API int lockstep_abort(lockstep_session *session, const char *reason);

/* ---- Devices -----------------------------------------------------------------------------------
 *
 * A rank with a device (config.device) may have any tensor in the device's memory: pass CUDA's
 * device addresses where this header says data or gradient.
 *
 * Where gradients are. lockstep_start agrees on the place of each parameter's gradient. The
 * gradient is on devices if any rank with a device registered it there. The address of the gradient
 * decides, or the address of data if no gradient is registered. Then all ranks that have a device
 * have the gradient there, and ranks of the same job without a device have it in host memory. The
 * place may differ from tensor to tensor. Steps, buckets, weights and results are as without
 * devices, and all ranks hold the same bits.
 *
 * Streams. A stream is a CUstream (cudaStream_t) of the device, passed as void *. The default
 * streams are the handles 1 (legacy) and 2 (per thread), because NULL has a meaning of its own
 * here. lockstep_grad_ready takes the stream that produces the gradient; no thread of the host
 * waits for it. lockstep_step_end takes the stream that is to read the results. A stream that is
 * being captured into a CUDA graph is E_INVALID, because steps cannot be part of a graph, and so is
 * one of another CUDA context than the session's. All other functions (lockstep_start,
 * lockstep_state_check, plain collectives) read and write device memory at once: work of streams on
 * that memory has to be over before the call, and the results are there when the call returns.
 *
 * Replicas. The replicas of a module are all on devices or all in host memory. Everything but
 * further replicas is on the first device of config.device. Each further replica is as a whole on
 * one of the devices, and is reported with streams of that device. The contributions of replicas
 * are added up on the first device. The stream of lockstep_step_end may belong to any of the
 * devices, and the results of all replicas come after it; a default stream, or NULL, stands for
 * those of all devices.
 *
 * In a job with devices config.order and config.unplanned defer nothing. When a rank dies, do not
 * use the gradients of ranks with a device in the step that failed. */

/* ---- Declaring what is synchronized ------------------------------------------------------------
 */

/* Element types. Parameters and buffers may have any of them; gradients are floating point. */
typedef enum lockstep_dtype {
    LOCKSTEP_FLOAT32 = 1,
    LOCKSTEP_FLOAT64 = 2,
    LOCKSTEP_INT32 = 3,
    LOCKSTEP_INT64 = 4,
    LOCKSTEP_FLOAT16 = 5, /* Added in float32, rounded to 16 bits once for each rank it passes. */
    LOCKSTEP_BFLOAT16 = 6, /* Added and rounded like LOCKSTEP_FLOAT16. */
    LOCKSTEP_UINT8 = 7,
    LOCKSTEP_INT8 = 8,
    LOCKSTEP_INT16 = 9,
    LOCKSTEP_UINT16 = 10,
    LOCKSTEP_UINT32 = 11,
    LOCKSTEP_UINT64 = 12,
    LOCKSTEP_BOOL = 13 /* A byte: 0 is false, every other value is true. */
} lockstep_dtype;

/* The parameter is not trained until lockstep_module_freeze says otherwise. Its value is still
 * broadcast at start. */
#define LOCKSTEP_PARAMETER_FROZEN 1u
/* Tied weights: the parameter is a second name of an earlier one, the owner, in the same module or
 * in an earlier module. data is the owner's pointer. dtype, gradient_dtype, shape and
 * LOCKSTEP_PARAMETER_FROZEN are the owner's. gradient is the owner's or NULL. The same holds in
 * each replica.
 * The gradient travels once, under the owner's name, when the last calls have reported it under all
 * names or when the step ends. The backward pass adds to it under each name and reports each name.
 * A name that is not reported only costs time: its bucket then waits for the end of the call. The
 * gradient counts as used if any report named it, and the policy of the owner's module applies. If
 * a step calls only the later module, its reports count for the owner, with this rank's weight, and
 * no policy objects to the owner module's other parameters.
 * An owner in another module is an error if either module has separate_calls or replicas. */
#define LOCKSTEP_PARAMETER_SHARED 2u

/* A trained tensor. Memory is dense: its elements fill it without gaps. Initialize with
 * LOCKSTEP_PARAMETER_INIT. */
struct lockstep_parameter {
    const char *name; /* Unique in its module, at most 255 bytes of UTF-8. */
    /* Type of the value, and of the gradient unless gradient_dtype says other. */
    lockstep_dtype dtype;
    uint32_t dims; /* 0 to 8; 0 is a scalar of one element. */
    const int64_t *shape; /* [dims] numbers of elements; 0 is allowed. NULL with dims 0. */
    void *data; /* shape elements. May be NULL when there are none. */
    /* shape elements. NULL: the address is passed to lockstep_grad_ready in each step. Such a
     * parameter has no place for the mean of the other ranks in a step that does not report it:
     * E_UNUSED at step_end, even if its policy accepts that it is unused, unless the module has
     * means_on_demand. */
    void *gradient;
    uint32_t flags; /* LOCKSTEP_PARAMETER_* */
    /* [dims] numbers of elements, for value and gradient: a permutation of dense memory, equal on
     * all ranks. The strides of dimensions of one element do not matter. NULL: the elements of the
     * last dimension lie side by side. */
    const int64_t *strides;
    /* Number of reports in one call that complete the gradient, for a backward pass that adds to it
     * several times (layers used twice, recomputation). One report more is an error. Fewer reports
     * at the end of the call count as use. At most 32,768. 0: 1. */
    uint64_t ready_count;
    /* The lockstep_dtype of the gradient, which is floating point. It may differ from the value's:
     * bfloat16 gradients of float32 values, or float32 gradients of bfloat16 values. The library
     * converts nothing. Gradients are added, divided and rounded as this dtype
     * (docs/numbers.md). 0: dtype. */
    uint32_t gradient_dtype;
    uint32_t reserved; /* 0. */
};

#define LOCKSTEP_PARAMETER_INIT \
    { \
        NULL, LOCKSTEP_FLOAT32, 0, NULL, NULL, NULL, 0, NULL, 0, 0, 0 \
    }

typedef enum lockstep_buffer_policy {
    LOCKSTEP_BUFFER_AT_START = 0, /* Broadcast by lockstep_start, then left alone. */
    LOCKSTEP_BUFFER_IGNORE = 1, /* Never touched; only its declaration is compared. */
    /* Buffers of the other policies are exchanged at start and at the end of every `every`-th step,
     * also if that step ends with E_UNUSED or E_INVALID. The exchange happens inside
     * lockstep_step_end, beside the last gradients, and nowhere else. So one rank may evaluate
     * while the others go on. */
    LOCKSTEP_BUFFER_BROADCAST = 2, /* Gets the value of the root. */
    LOCKSTEP_BUFFER_MEAN = 3, /* Mean over ranks, each counts as 1; floating point. */
    LOCKSTEP_BUFFER_SUM = 4 /* Sum over ranks. For totals that are set to zero in between. */
} lockstep_buffer_policy;

/* Other state of a module, such as running statistics. Initialize with LOCKSTEP_BUFFER_INIT. */
struct lockstep_buffer {
    const char *name;
    lockstep_dtype dtype;
    uint32_t dims;
    const int64_t *shape;
    void *data;
    lockstep_buffer_policy policy;
    const int64_t *strides; /* The same as the strides of a parameter. */
    uint64_t every; /* Exchanged in steps whose number is a multiple of it; a window is one step.
                       0: 1. Only with a policy that repeats. */
};

#define LOCKSTEP_BUFFER_INIT \
    { \
        NULL, LOCKSTEP_FLOAT32, 0, NULL, NULL, LOCKSTEP_BUFFER_AT_START, NULL, 0 \
    }

typedef enum lockstep_gradient_kind {
    LOCKSTEP_GRADIENT_MEAN = 0, /* Mean over this rank's samples: result is sum(w g) / sum(w). */
    LOCKSTEP_GRADIENT_SUM = 1 /* Sum over this rank's samples: result is sum(g) / sum(w). */
} lockstep_gradient_kind;

/* Outcome if a parameter that is not declared unused was reported by no call of the step on some
 * rank. That rank contributes zeros whatever the policy. */
typedef enum lockstep_unused_policy {
    LOCKSTEP_UNUSED_ERROR = 0, /* E_UNUSED on every rank at step_end, with the names. */
    LOCKSTEP_UNUSED_WARN = 1, /* One line in the log of every rank; step_end returns OK. */
    LOCKSTEP_UNUSED_ACCEPT = 2 /* OK; only counted in the report. */
} lockstep_unused_policy;

/* Effect of lockstep_call_abort on the step. */
typedef enum lockstep_abort_policy {
    LOCKSTEP_ABORT_ERROR = 0, /* E_UNUSED on every rank at step_end, naming rank and module. */
    LOCKSTEP_ABORT_ACCEPT = 1 /* OK: the mean is over ranks that did not give up; only counted. */
} lockstep_abort_policy;

/* How gradients are represented between ranks. docs/numbers.md states the errors. In a world of one
 * nothing travels, and nothing is rounded. */
typedef enum lockstep_wire {
    LOCKSTEP_WIRE_SAME = 0, /* As they are: 16-bit floats are rounded once for each rank passed. */
    LOCKSTEP_WIRE_BFLOAT16 = 1, /* float32 travels as bfloat16: half the bytes. Others: as SAME. */
    LOCKSTEP_WIRE_FLOAT32 = 2 /* 16-bit floats travel as float32, and are rounded once in all. */
} lockstep_wire;

/* Describes a module. Initialize with LOCKSTEP_MODULE_INIT. */
struct lockstep_module_config {
    size_t struct_bytes;
    size_t parameter_bytes; /* sizeof(struct lockstep_parameter), set by the initializer. */
    size_t buffer_bytes; /* sizeof(struct lockstep_buffer), set by the initializer. */
    const char *name; /* Unique in the session, 1 to 255 bytes of UTF-8. */
    const struct lockstep_parameter *parameters;
    uint32_t parameter_count;
    const struct lockstep_buffer *buffers;
    uint32_t buffer_count;
    lockstep_gradient_kind gradient_kind;
    lockstep_unused_policy unused;
    uint64_t calls_per_step; /* Backward passes of this module in a step, at most 256. 0: 1. */
    /* [ignore_count] shell patterns, at most 64: "head.*". A star also stands for dots and slashes.
     * Parameters and buffers whose name matches a pattern are declared and never touched: not
     * broadcast, hashed, or reduced. A pattern that matches nothing is a line in the log. */
    const char *const *ignore;
    uint64_t ignore_count;
    /* Copies of this module in this process, at most 16. 0: 1. With more than one, parameters is
     * [replicas * parameter_count], replica by replica. The gradients of replicas are added up (of
     * kind mean: averaged) before they travel, on the host in the memory of the first replica, and
     * every replica gets the result. A replica that does not report counts as zeros. Values at
     * start and buffers are those of the first replica. May differ between ranks. */
    uint64_t replicas;
    /* 1: every call of calls_per_step has gradient memory of its own and travels by itself when it
     * is ready. The memory is given to lockstep_grad_ready; only the first call may use the
     * registered memory. A call that is not made contributes nothing. A mean for a gradient that a
     * later call did not report has no place: E_UNUSED, as for a parameter without memory. Not
     * allowed in steps that accumulate. Each bucket of each of these calls counts as one of the
     * 1,024 buckets that all modules may have in a step. A step with more fails the session
     * with E_CONFIG: make the buckets larger (bucket_bytes), or make fewer calls. A world of one
     * without a coordinator has no such limit. Two cases are other errors: a module with more by
     * itself is E_INVALID from lockstep_module_register, and calls outside the plan may be too many
     * (LOCKSTEP_UNPLANNED_EXTEND). */
    uint32_t separate_calls;
    lockstep_abort_policy on_abort;
    lockstep_wire wire;
    /* -14 to 0: float16 gradients travel multiplied by 2 to this power, so that their sum does not
     * overflow. The mean is the same but for its error. Only for float16 that travels as such. */
    int32_t float16_exponent;
    /* Caps of this module's buckets, as in struct lockstep_config. 0: the session's. Equal on all
     * ranks. */
    size_t bucket_first_bytes;
    size_t bucket_bytes;
    size_t bucket_last_bytes;
    /* 1: a mean that has no place in a step is written to memory of the library, and
     * lockstep_module_means says where it is. A mean has no place if this rank has neither
     * registered nor reported memory for the gradient, and other ranks used it. Address space is
     * reserved for all gradients of the module; memory is used only by gradients that needed it. In
     * host memory only. Not with replicas or config.virtual_ranks. May differ between ranks. */
    uint32_t means_on_demand;
    uint32_t reserved; /* 0. */
    /* The group whose members have this module; NULL: all ranks. Only members register it, and only
     * their gradients are averaged. See the guide docs/collectives.md. */
    lockstep_group *group;
};

#define LOCKSTEP_MODULE_INIT \
    { \
        sizeof(struct lockstep_module_config), sizeof(struct lockstep_parameter), \
            sizeof(struct lockstep_buffer), NULL, NULL, 0, NULL, 0, LOCKSTEP_GRADIENT_MEAN, \
            LOCKSTEP_UNUSED_ERROR, 0, NULL, 0, 0, 0, LOCKSTEP_ABORT_ERROR, LOCKSTEP_WIRE_SAME, 0, \
            0, 0, 0, 0, 0, NULL \
    }

/* Declares a module. Parameters are numbered from 0, in the order of config->parameters. The
 * declaration is local: it is compared with the other ranks' by lockstep_start. All ranks register
 * the same modules in the same order, with the same gradient_kind, policy and calls_per_step.
 * A module with a group is registered by the group's members, in any order. On different ranks,
 * modules of different groups may have the same name, and are other modules. All modules of the
 * job, those of groups included, are at most 64. A session has at most 262,144 parameters and
 * buffers.
 * Each tensor of a session has memory of its own. Values, gradients and buffers that overlap, even
 * in part, are E_INVALID, and the text names both. Three cases are allowed: a parameter and its
 * second names (LOCKSTEP_PARAMETER_SHARED), the values of one parameter's replicas, and a
 * parameter's value and its own gradient. Ignored tensors are not checked.
 * After lockstep_start, all ranks register the same modules after the same step, and call
 * lockstep_start again before the next step. Orders and bucket layouts are learned anew, also those
 * of the other modules.
 * Blocks: no. Threads: the trainer's, outside a step or window. Owns: descriptions are copied; data
 * and gradient memory is borrowed until the module or the session is closed. Returns: E_INVALID
 * (the text names the parameter and the field), E_UNSUPPORTED, E_SYSTEM (no memory). */
LOCKSTEP_API int lockstep_module_register(lockstep_session *session,
                                          const struct lockstep_module_config *config,
                                          lockstep_module **module);

/* Ends a module, for example after an exception. Its handle and those of its calls are foreign from
 * then on, the modules registered after it move up, and its memory may be registered again. The
 * function is local.
 * After lockstep_start, all ranks close and register the same modules after the same step, and call
 * lockstep_start again before the next step. Orders and bucket layouts are learned anew, also those
 * of the other modules. If a call is open, give it up first (lockstep_call_abort) and end its step.
 * Blocks: no. Threads: the trainer's, outside a step or window. Owns: memory is the trainer's
 * again; memory from lockstep_module_gradients is freed. Returns: E_INVALID inside a step or
 * window, and while a later module shares a parameter that this one owns. */
LOCKSTEP_API int lockstep_module_close(lockstep_module *module);

/* Gradient memory from the library, in the order in which the module's gradients travel, so that
 * each bucket is one run of memory (report.runs counts them). The memory is zero. It becomes the
 * registered memory of every trainable parameter: of the first replica, and of the first of
 * separate calls. A shared parameter has its owner's memory. A later call, after the order was
 * learned, places all gradients anew and frees the memory of the earlier call. A parameter that the
 * last step did not train, and that a later step may train (lockstep_module_freeze has put it in,
 * or the phase was another one), lies behind all buckets until then. As with lockstep_alloc, ranks
 * of one host reduce the memory in place.
 * gradients: [count], one for each parameter; NULL where there is no gradient. count: the number of
 * parameters. Blocks: no. Threads: the trainer's, outside a step or window. Owns: the library's,
 * freed with the module. Returns: E_SYSTEM (no memory). */
LOCKSTEP_API int lockstep_module_gradients(lockstep_module *module, void **gradients,
                                           uint32_t count);

/* A parameter's memory (that of the first replica) has moved. data: the new memory of the value;
 * NULL leaves it where it is. gradient: the registered memory from now on, NULL for none. Shape,
 * strides and dtype stay the same. Parameters may exchange their memory, one call after the other:
 * the next lockstep_start or lockstep_step_begin checks whether tensors overlap, and returns
 * E_INVALID if they do. Blocks: no. Threads: the trainer's, outside a step or window. Owns:
 * borrowed until the session is closed or the parameter moves again. Returns: E_INVALID for the
 * gradient of an ignored parameter, and for a shared parameter: move its owner. */
LOCKSTEP_API int lockstep_parameter_move(lockstep_module *module, uint32_t parameter, void *data,
                                         void *gradient);
/* A buffer's memory has moved: it is at data from now on. The rules are those of
 * lockstep_parameter_move. Returns: E_INVALID for a number that is no buffer's, for NULL if the
 * buffer has elements, and for memory that is not where lockstep_start agreed that the buffer is
 * (on the device, or on the host). */
LOCKSTEP_API int lockstep_buffer_move(lockstep_module *module, uint32_t buffer, void *data);

/* Takes parameters out of training (frozen 1), or puts them in (0), from the next step on. A frozen
 * parameter has no gradient and is in no plan, and reporting it is an error. All ranks do the same
 * before the same step. If one rank does not, all ranks get E_MISMATCH naming the parameter. The
 * order of buckets is learned for each set of trainable parameters that is new, and is known for a
 * set that was trained before. 8 sets are remembered, and 32 pairs of a phase and a set: a job that
 * goes round more of them learns in every step, which is slow and needs the coordinator. The log
 * warns once then (too_many_phases).
 * parameters: [count] numbers. Blocks: no. Threads: the trainer's, outside a step or window. Owns:
 * read now. Returns: E_INVALID (not floating point; shared: freeze it in the module that owns it).
 */
LOCKSTEP_API int lockstep_module_freeze(lockstep_module *module, const uint32_t *parameters,
                                        uint32_t count, uint32_t frozen);

/* Declares parameters that get no gradient in the steps of one phase. Otherwise as
 * lockstep_module_freeze. Each call adds to the earlier declarations; at most 16 phases may have
 * such parameters. phase: NULL is the empty label. */
LOCKSTEP_API int lockstep_phase_unused(lockstep_module *module, const char *phase,
                                       const uint32_t *parameters, uint32_t count);

/* Compares what all ranks have registered, then makes their state equal: the values of parameters
 * and buffers become those of the root (config). Tensors that are equal everywhere do not travel.
 * The functions of the step are possible after it.
 * After lockstep_module_close and lockstep_module_register it may be called again and does the same
 * once more. Step numbers go on, and counters stay. If some ranks are in it while others begin a
 * step instead, all get E_MISMATCH, which names one rank of each side. Blocks: until all ranks have
 * called it, or the first difference is found. Threads: the trainer's. Returns: E_MISMATCH with the
 * same two-sided report on every rank, E_PEER_LOST, E_CONFIG (root is outside the world that has
 * formed); E_INVALID if no module was registered or closed since the last time, unless the job has
 * had a module of a group (docs/collectives.md); E_UNREACHABLE without the coordinator. In a job
 * with devices two more failures are possible, on every rank: E_MISMATCH if one rank has a tensor
 * in its device's memory that another rank with a device has in host memory, and E_UNSUPPORTED if
 * the policies would defer gradients on devices, or if config.gradient_norm is set and a gradient
 * is on devices. After these two, modules can be closed and registered otherwise. */
LOCKSTEP_API int lockstep_start(lockstep_session *session);

/* ---- The step ----------------------------------------------------------------------------------
 */

/* Options of one step. Initialize with LOCKSTEP_STEP_INIT. */
struct lockstep_step_options {
    size_t struct_bytes;
    /* Label of steps that run the same modules, at most 255 bytes. NULL: the empty label. */
    const char *phase;
    uint64_t weight; /* Samples behind this rank's gradients in this step, at most 2^48. With 0 the
                        rank contributes nothing but still receives the mean. */
    uint32_t accumulate; /* 1: nothing is synchronized yet, see lockstep_step_begin. */
    uint32_t exhausted; /* 1: this rank has no data for this step or any later one. With
                           config.uneven or lockstep_uneven_set; see lockstep_step_begin. */
    /* 1, with exhausted: this rank contributes zeros with `weight`, so the divisor of the mean
     * stays as it was while this rank had data. 0: the mean is over the ranks that still have data.
     * May differ between ranks. */
    uint32_t keep_weight;
    uint32_t reserved; /* 0. */
};

#define LOCKSTEP_STEP_INIT \
    { \
        sizeof(struct lockstep_step_options), NULL, 1, 0, 0, 0, 0 \
    }

/* Facts about the step that lockstep_step_begin has begun. Set struct_bytes
 * (LOCKSTEP_STEP_VIEW_INIT). */
struct lockstep_step_view {
    size_t struct_bytes;
    uint64_t step; /* From 1. All steps of a window have the same. */
    uint64_t generation; /* From 1; 0 in a world of one without a coordinator. */
    uint32_t rank;
    uint32_t world_size;
    uint32_t learning; /* 1: the order of this phase is learned in this step. */
    uint32_t exhausted; /* Number of ranks without data. */
    /* 1: the world has changed since the last step began on this rank: see lockstep_world_change.
     */
    uint32_t changed;
    uint32_t reserved; /* 0. */
};

#define LOCKSTEP_STEP_VIEW_INIT \
    { \
        sizeof(struct lockstep_step_view), 0, 0, 0, 0, 0, 0, 0, 0 \
    }

/* Begins a step. options and view may be NULL (weight 1, the empty phase).
 *
 * Accumulation. Steps with accumulate = 1 and the step without it that follows them are one window.
 * The steps of a window make calls as always, but gradients only add up in the trainer's memory,
 * which stays the trainer's. The last step of the window synchronizes these sums. For the other
 * ranks the window is one step: its steps have one number and one report, and a gradient is used if
 * any of them reported it. Windows may differ in length between ranks. A rank that accumulates
 * joins the others later.
 * A window has one weight, given with its last step: the number of samples in the whole window.
 * Gradients of kind mean must then be the mean over all these samples, so with k equal
 * micro-batches divide each loss by k. Gradients of kind sum just add up.
 *
 * Leaves (docs/numbers.md, "Virtual ranks"). With config.virtual_ranks every step is one leaf, in
 * the order of leaves, and the steps of a rank's leaves (lockstep_leaves) are one window: all but
 * the last have accumulate = 1, and another number of steps is E_INVALID. Each step has its own
 * weight, so gradients of kind mean are means over the leaf's samples. When a step with accumulate
 * ends, the library takes the gradients that it reported, and sets their memory to zero. A leaf
 * without data has weight 0.
 *
 * Ranks that run out of data. With config.uneven (or lockstep_uneven_set) a rank that has no data
 * left says exhausted = 1. It goes on calling step_begin, step_end and its optimizer, without calls
 * in between. It contributes nothing (weight 0, unless it says keep_weight) and receives the mean,
 * so its parameters stay equal. It need not name the phase, because it runs the phase of the other
 * ranks. When every rank
 * (LOCKSTEP_UNEVEN_ALL) or any rank (LOCKSTEP_UNEVEN_FIRST) is exhausted, step_begin returns
 * LOCKSTEP_FINISHED on all ranks alike. No step is open then, and every later step_begin returns
 * LOCKSTEP_FINISHED at once, until lockstep_uneven_set begins anew. Everything outside steps goes
 * on working. At that point the unfinished window of another rank is dropped, with what that rank
 * has added to metrics and counters since the last synchronized step. A rank has to end its own
 * window before it is exhausted. Agreement costs one small exchange in each step_begin without
 * accumulate. A rank that closes its session instead ends the job for the others. Blocks: with a
 * rule for uneven data, until all ranks have begun the step; else no. Threads: the trainer's. Owns:
 * both are read or written now. Returns: LOCKSTEP_FINISHED; E_PEER_LOST; E_INVALID when a step is
 * open, before lockstep_start, when tensors that have moved overlap, for another phase inside a
 * window, for a weight other than 1 with accumulate (allowed for a leaf), and for a weight above
 * 2^48. If calls may be deferred, the bound holds for the sum of this weight and the deferred
 * weights, with separate_calls the weight counts once for each call, and the leaves of a window
 * count together. Returns E_INVALID also for exhausted without such a rule, with accumulate or
 * inside a window, and for data after exhausted. */
LOCKSTEP_API int lockstep_step_begin(lockstep_session *session,
                                     const struct lockstep_step_options *options,
                                     struct lockstep_step_view *view);

/* The last change of the world. Set struct_bytes (LOCKSTEP_CHANGE_INIT). */
struct lockstep_change {
    size_t struct_bytes;
    uint64_t changes; /* Number of changes so far. With 0 the other fields are 0. */
    /* The step that the ranks finished in the new world; or the next step, if none was open. */
    uint64_t step;
    uint64_t generation; /* The new generation. */
    uint32_t rank; /* This rank's number in the new world, and the new size. */
    uint32_t world_size;
    uint32_t rank_before; /* The same of the world before. */
    uint32_t world_size_before;
    uint32_t lost_count; /* Number of ranks that were lost, or had closed their sessions. */
    uint32_t lost[16]; /* The first of them: their numbers in the world before. */
    char text[256]; /* Which rank was lost last, and why, with its number at that time. */
};

#define LOCKSTEP_CHANGE_INIT \
    { \
        sizeof(struct lockstep_change), 0, 0, 0, 0, 0, 0, 0, 0, {0}, "" \
    }

/* The last change of the world in a session with config.on_failure continue. Changes that no
 * lockstep_step_begin lies between count as one: the world before is that before the first of them,
 * and `lost` holds the ranks of all.
 *
 * When a rank dies, the others finish the step: lockstep_step_end returns OK on each of them, with
 * the same bits. Each element is the weighted mean over a set of ranks that contains all survivors;
 * the lost rank may be in it. Survivors keep their order, so ranks and the world's size may be
 * others from then on: the view of the next step says so. The learning rate and the data of the
 * lost rank are the trainer's to decide.
 * Blocks: no. Threads: the trainer's. Returns: E_INVALID with a struct_bytes of another version. */
LOCKSTEP_API int lockstep_world_change(lockstep_session *session, struct lockstep_change *change);

/* Sets the rule for ranks that run out of data, from the next step on, in place of config.uneven.
 * Every rank counts as a rank with data again, also after LOCKSTEP_FINISHED. So an epoch in which
 * ranks have unequally many batches begins with LOCKSTEP_UNEVEN_ALL (or _FIRST) on every rank, and
 * ends when step_begin returns LOCKSTEP_FINISHED. LOCKSTEP_UNEVEN_NONE then leaves out the exchange
 * of step_begin. The step number at which step_begin returned LOCKSTEP_FINISHED is not used again.
 * All ranks call it after the same step, with the same value. If ranks begin a step by different
 * rules, every rank gets E_MISMATCH, and the text names two of them.
 * Blocks: no. Threads: the trainer's, outside a step or window. Returns: E_INVALID for an unknown
 * value, and inside a step or window. */
LOCKSTEP_API int lockstep_uneven_set(lockstep_session *session, lockstep_uneven uneven);

/* Begins a backward pass of a module. A forward pass without a backward pass needs no call. Calls
 * of different modules may overlap; those of one module follow each other. The handle is valid
 * until lockstep_step_end returns.
 *
 * A module with calls_per_step k > 1 (and without separate_calls) adds up the gradients of its
 * calls in the trainer's memory, as backward passes do. They travel once, during and after the k-th
 * call. A gradient is used if any of the calls reported it. With fewer calls than k the gradients
 * travel at step_end, and nothing is lost.
 * Blocks: no. Threads: any, one after the other with the functions of the step. Returns: E_INVALID
 * outside a step, with a call of this module open, after calls_per_step calls, after
 * lockstep_call_abort in this step, on an exhausted rank, in the end of the step, and with
 * separate_calls in a step that accumulates. */
LOCKSTEP_API int lockstep_call_begin(lockstep_module *module, lockstep_call **call);

/* Reports that a gradient is complete in memory. When the last gradient of a bucket is reported,
 * the bucket begins to travel, while the backward pass goes on. In calls before the last one of
 * calls_per_step the report is only noted, and the memory stays the trainer's.
 * call: NULL means the module's open call. parameter: its number in the module.
 * gradient: NULL means the registered memory. Another address counts in this step only (with
 * accumulate: until the end of the window) and is not touched afterwards. It has the parameter's
 * gradient dtype and shape, and is contiguous. It overlaps no value, no buffer and no other
 * gradient that the step uses, not even the place where that gradient was registered; it may
 * overlap its own parameter's value. All names of a shared parameter report one place. If the same
 * parameter is reported with several places, the last place counts. A parameter that is not
 * reported has no memory in this step if its registered memory was given for another parameter.
 * stream: the device's stream that produces the gradient. NULL: the gradient is complete now.
 * From this call until lockstep_step_end returns, the memory belongs to the library: do not read or
 * write it.
 * Blocks: no. Threads: any, also several at once. Owns: gradient memory is borrowed until
 * lockstep_step_end returns. Returns: E_INVALID for a parameter that is reported more often than
 * its ready_count in a call, declared unused in it, frozen, ignored, or not in the module; after
 * lockstep_call_end; for a stream on a rank without a device, or with a gradient in host memory;
 * for memory that is another tensor's in this step (the text names both; the report counts for
 * nothing and may be repeated with other memory); for memory or a stream of another device; for
 * memory that is not where lockstep_start agreed that the gradient is; when one bucket has
 * gradients of more than 8 streams (of each replica). E_SYSTEM when the device has failed. */
LOCKSTEP_API int lockstep_grad_ready(lockstep_module *module, lockstep_call *call,
                                     uint32_t parameter, void *gradient, void *stream);
/* Reports a gradient of one of the module's replicas, numbered from 0. lockstep_grad_ready reports
 * for replica 0. In host memory the report that completes a gradient also adds up what all replicas
 * reported of it. Otherwise as lockstep_grad_ready. */
LOCKSTEP_API int lockstep_replica_ready(lockstep_module *module, lockstep_call *call,
                                        uint32_t replica, uint32_t parameter, void *gradient,
                                        void *stream);

/* The open call of a module, for hooks that do not know it. Blocks: no. Threads: any. Returns:
 * E_INVALID when no call is open; *call is NULL then. */
LOCKSTEP_API int lockstep_call_current(lockstep_module *module, lockstep_call **call);

/* Ends a backward pass. When the last call of the step has ended, gradients that no call of the
 * step reported are unused, and zeros are contributed in their place.
 * Other threads may still be inside lockstep_grad_ready. lockstep_call_end waits for every report
 * that was accepted, and refuses every later one. A report that returns OK counts in this step, and
 * a report that returns E_INVALID counts in none.
 * Blocks: no, but for such reports. Threads: any, one after the other with the functions of the
 * step. Returns: E_INVALID when the call has ended already. */
LOCKSTEP_API int lockstep_call_end(lockstep_call *call);

/* Declares in advance that parameters get no gradient in this call: their buckets do not wait for
 * them, and no policy objects to them in this step. The declaration is for this rank only; other
 * ranks may use the parameters. A gradient that an earlier call of the step reported is contributed
 * all the same.
 * parameters: [count] numbers. Blocks: no. Threads: the trainer's. Owns: read now. Returns:
 * E_INVALID for a parameter that is frozen or not in the module, and then no parameter is declared;
 * E_INVALID for a parameter that is ready or declared already in this call, and then those before
 * it in the list stay declared. */
LOCKSTEP_API int lockstep_call_unused(lockstep_call *call, const uint32_t *parameters,
                                      uint32_t count);
/* Gives up the open call, for example after an exception in the backward pass. This module
 * contributes nothing to every bucket that was not complete yet, so no rank waits for it. It makes
 * no more calls in this step (or window). From now on the module's gradients belong to the library
 * until lockstep_step_end returns.
 * In a step that accumulates, and in a call before the last one of calls_per_step, no bucket is
 * complete: the module contributes nothing. In a step that accumulates, this holds from the
 * lockstep_step_begin of the window's last step on. Until then other ranks may wait.
 * With separate_calls, other ranks do not wait for the calls that this module does not make any
 * more. Exception: in a step that is learned they wait until this rank calls lockstep_step_end.
 * With LOCKSTEP_ABORT_ERROR every rank, this one included, gets E_UNUSED at the end of the step.
 * The text names rank and module, and the session goes on. Do not use the gradients of the module:
 * on each rank an element is as it was or what all ranks agreed on.
 * With LOCKSTEP_ABORT_ACCEPT the step is OK, with one line in the log of every rank, and the
 * gradients can be used. The mean of each bucket is over the ranks whose part of it was complete; a
 * bucket that was complete on no rank is as it was, and one that was complete only on ranks with
 * weight 0 has no mean (lockstep_module_used). A shared parameter that was not complete leaves
 * out its bucket of the owner.
 * The function waits for reports of other threads inside lockstep_grad_ready, as lockstep_call_end
 * does.
 * Blocks: no. Threads: the trainer's. Returns: E_INVALID when the call has ended. */
LOCKSTEP_API int lockstep_call_abort(lockstep_call *call);
/* Waits until the gradients of one call are averaged, before the end of the step. Then they may be
 * read, in every replica. Their memory is given for no other gradient before the step ends. The
 * call must have ended, and its gradients must travel: it is the last one of calls_per_step, or any
 * call with separate_calls. Gradients that the call shares with a module that owns them
 * (LOCKSTEP_PARAMETER_SHARED) are waited for, too. On devices, the result of
 * a gradient that no ended call reported is written after all work that the legacy default stream
 * was given before this function was called. A trainer that writes a gradient before
 * lockstep_step_end must not expect the gradient to be intact or final when a rank dies, and with
 * config.on_failure continue must not write it: other ranks may take it from this one. Unused
 * parameters are reported at lockstep_step_end, as always.
 *
 * A rank that waits makes no other call, so ranks that wait in different orders may wait for each
 * other. config.order says what happens then. An error comes at once, on every rank, whatever the
 * timeout. A call that is not in the plan of the step runs only at the step's end, so a wait for it
 * is E_MISMATCH, on every rank. Give such steps another phase label, or do not wait.
 * Blocks: until all ranks have made the call, or ended the step; at most timeout_ms, and a second
 * more while the coordinator does not answer. With 0 the function only asks, and never says that
 * ranks wait for each other. Threads: config.trainer_threads at a time, while others make calls,
 * but none while another is in lockstep_step_end. Returns: LOCKSTEP_DEFERRED (with
 * LOCKSTEP_ORDER_ZERO_DEFER or LOCKSTEP_UNPLANNED_DEFER: the call counts in a later step),
 * E_TIMEOUT (nothing is lost: wait again, or go on), E_MISMATCH (the text names ranks, modules and
 * calls), E_INVALID (the call is open, was given up, is not of this step, or does not travel; a
 * gradient of it awaits another module that shares it; too many threads wait), E_PEER_LOST,
 * E_UNREACHABLE (the coordinator is gone, and the phase is being learned, or config.halt_timeout_ms
 * is over). */
LOCKSTEP_API int lockstep_call_wait(lockstep_call *call, uint32_t timeout_ms);
/* Hands out the finished buckets of a call one by one, each once, in the order in which they finish
 * on this rank. So an optimizer can work on one bucket while others travel. The gradients of the
 * bucket are averaged and may be read, as after lockstep_call_wait, and lockstep_bucket_parameters
 * says which parameters they belong to. Everything that lockstep_call_wait says of ranks that wait,
 * of the call and of timeouts holds here, too. Gradients that other modules own
 * (LOCKSTEP_PARAMETER_SHARED) are in no bucket of the call: wait for them with lockstep_call_wait.
 * Blocks: until a bucket is finished that was not handed out; at most timeout_ms. With 0 the
 * function only asks. Threads: as lockstep_call_wait. Returns: LOCKSTEP_FINISHED when all buckets
 * of the call were handed out; E_TIMEOUT; what lockstep_call_wait returns otherwise
 * (LOCKSTEP_DEFERRED when all buckets were handed out but those that count in a later step);
 * E_UNSUPPORTED for a module with replicas. *bucket is written with OK only. */
LOCKSTEP_API int lockstep_call_next(lockstep_call *call, uint32_t timeout_ms, uint32_t *bucket);
/* The parameters whose gradients travel in one bucket of a module in the open step, in the order in
 * which they travel. Buckets are numbered from 0, equally on all ranks, and may change with the
 * next step. Blocks: no. Threads: any, while a step is open and not in its end. Owns: *parameters
 * is the library's, and valid until lockstep_step_end is called. Returns: E_INVALID outside a step
 * and for a number that is no bucket's. */
LOCKSTEP_API int lockstep_bucket_parameters(lockstep_module *module, uint32_t bucket,
                                            const uint32_t **parameters, uint32_t *count);

/* Ends the step: waits until every gradient is averaged on every rank, and gives the memory back.
 * Planned calls that this rank has not made contribute nothing and receive the mean. The same holds
 * for calls outside the plan that other ranks have made (config.unplanned). Buffers that are due
 * are exchanged. A step with accumulate ends at once, and sends nothing to the other ranks.
 *
 * stream: NULL: all results are in memory when the function returns. A rank with a device may pass
 * a stream that reads or writes gradients and buffers afterwards. Then results in host memory are
 * there when the function returns, and results on devices may not be there yet. Work that is
 * enqueued on the stream from now on waits for them, on the device. Every other stream that touches
 * them must wait, too.
 * A gradient on a device that this rank has not reported is written after all work that the stream
 * was given before this call. With NULL the legacy default stream takes the stream's place.
 * If a rank dies after this function has returned, the step may be incomplete on other ranks. Do
 * not use gradients on devices then; the next call that needs the other ranks returns E_PEER_LOST.
 * Blocks: until all ranks have ended the step; no with accumulate. Threads: the trainer's. Returns:
 * E_PEER_LOST (which rank on which host), E_MISMATCH (phases, or calls outside the plan where
 * config.unplanned says so), E_UNUSED (which parameter on which rank, or which rank gave up a
 * call); E_INVALID with a call still open; E_INVALID on every rank when a module was called, but by
 * no rank with a weight above 0: then its gradients are as they were, or zero if an exhausted rank
 * keeps its weight. In a step in which a rank was lost (config.on_failure continue) that is no
 * error, because the lost rank may have had a weight: lockstep_module_used says what has a mean. */
LOCKSTEP_API int lockstep_step_end(lockstep_session *session, void *stream);
/* Ends the step like lockstep_step_end, but waits at most timeout_ms (0 only asks). E_TIMEOUT: this
 * rank has ended the step and others have not; call it again (or lockstep_step_end) to wait on.
 * Nothing is lost by that. Meanwhile the gradients are the library's, and every other function of
 * the step is E_INVALID; lockstep_abort and lockstep_close are possible. For programs that look for
 * signals now and then. Blocks: as said. Otherwise as lockstep_step_end. */
LOCKSTEP_API int lockstep_step_wait(lockstep_session *session, void *stream, uint32_t timeout_ms);

/* Report of one step. Times are microseconds since step_begin on this rank, 0: did not happen.
 * Set struct_bytes (LOCKSTEP_REPORT_INIT). */
struct lockstep_report {
    size_t struct_bytes;
    uint64_t step;
    uint64_t first_ready_us; /* First lockstep_grad_ready. */
    uint64_t last_ready_us; /* Last lockstep_grad_ready. */
    uint64_t first_wire_us; /* First byte of gradient data handed to the network. */
    uint64_t last_wire_us; /* Last byte of gradient data received. */
    uint64_t end_us; /* lockstep_step_end was called. */
    uint64_t done_us; /* lockstep_step_end had all results. */
    uint64_t bytes_sent; /* On the data plane, headers included. */
    uint64_t bytes_received;
    /* Results that were copied to their place: because no rank used some gradients of their chunk,
     * because they are float32 and travel as bfloat16, or because ranks of a host exchanged them
     * through shared slots, as private memory. 0: zero copy. */
    uint64_t bytes_copied;
    uint64_t weight_total; /* Sum of the weights of the last bucket of the step's order: of all
                              ranks, else of a group. Equal on all ranks of that bucket. */
    uint32_t buckets; /* Number of buckets that travelled. */
    /* Number of these buckets that this rank contributed as zeros, because it did not call their
     * module in time for them. A call that is forgotten is no error: this count says so, and the
     * log warns once for each module (module_not_called). No warning with policies that defer,
     * config.uneven, separate_calls or LOCKSTEP_UNUSED_ACCEPT. */
    uint32_t zero_filled;
    uint32_t control_messages; /* Sent to or received from the coordinator, without heartbeats. */
    uint32_t learning; /* 1: it was a learning step. */
    uint64_t unused; /* Gradients that were not produced: parameters, counted on each rank. */
    uint64_t in_flight_us; /* Time during which at least one bucket was in flight. */
    uint64_t overlap_us; /* Part of in_flight_us before lockstep_step_end was called. 0 in a world
                            of one without a coordinator. */
    uint64_t exposed_us; /* done_us - end_us: the time that the trainer waited. With
                            lockstep_step_wait it lasts until the trainer asked again. */
    uint64_t runs; /* Runs of gradient memory that travelled; one for each bucket at best. */
    uint64_t aborted; /* Calls given up, counted on each rank. */
    uint64_t extended; /* Calls outside the plan that all ranks have run. */
    uint64_t deferred; /* Buckets of this rank whose contribution counts in a later step. */
    /* With config.gradient_norm: the L2 norm of the averaged gradients of all modules, that is the
     * root of the sum of the squares of all elements, computed in float64. The bits are the same on
     * every rank and do not depend on buckets. Gradients that no rank used count as zeros, and with
     * separate_calls each call's gradients count. A shared parameter counts once. */
    double gradient_norm;
};

#define LOCKSTEP_REPORT_INIT \
    { \
        sizeof(struct lockstep_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
            0, 0, 0, 0, 0 \
    }

/* Report of a finished step; only the last one is kept. timeout_ms: 0; reserved.
 * Blocks: no. Threads: the trainer's. Returns: E_INVALID when that step is not the last one, and
 * while a step is in its end (lockstep_step_wait). */
LOCKSTEP_API int lockstep_step_report(lockstep_session *session, uint64_t step, uint32_t timeout_ms,
                                      struct lockstep_report *report);

/* The number of ranks that used each parameter of a module in the last step, or window. All ranks
 * call it, or all members of the module's group, outside a step or window, and in the same step.
 * ranks: [count]; 0 for parameters without a gradient, and for all parameters in a step in which no
 * rank called the module. Gradients that a given-up call withdrew are not used. count: the number
 * of parameters. Blocks: until all ranks have called it. Threads: the trainer's. Returns: E_INVALID
 * before lockstep_start, inside a step or window, and for another count; E_PEER_LOST. */
LOCKSTEP_API int lockstep_module_usage(lockstep_module *module, uint32_t *ranks, uint32_t count);

/* Which parameters of a module any rank used in the last step, or window. All ranks have agreed on
 * that with the means, so nothing is exchanged, and the answer is the same on every rank.
 * used: [count]; 1 if the gradient has a mean of this step, else 0. The memory of a gradient with 0
 * is as this rank left it, but for two cases. If ranks with weight 0 reported the gradient, and no
 * rank with a weight contributed to its bucket, lockstep_step_end sets the gradient to zeros on
 * every rank; not on devices, and not if it returns E_INVALID because of the weights. If this rank
 * deferred the gradient ("Deferred calls"), it is zeros on this rank. Gradients
 * that a given-up call withdrew are not used. count: the number of parameters. Blocks: no; after
 * lockstep_step_end with a stream, until the device has the results of the step. Threads: the
 * trainer's. Owns: written now. Returns: E_INVALID before lockstep_start, inside a step or window,
 * and for another count. */
LOCKSTEP_API int lockstep_module_used(lockstep_module *module, uint8_t *used, uint32_t count);

/* Where the means of one call of the last step, or window, are: the memory that was reported or
 * registered, or the library's (means_on_demand).
 * call: the number of the call in its step with separate_calls, else 0. means: [count]; NULL where
 * lockstep_module_used would say 0, or where the mean has no place. A shared parameter has its
 * owner's. count: the number of parameters. Blocks: as lockstep_module_used. Threads: the
 * trainer's. Owns: memory of the library is valid until the next lockstep_step_begin, and may be
 * written until then. Returns: E_INVALID before lockstep_start, inside a step or window, for a call
 * that the module does not have, and for another count. */
LOCKSTEP_API int lockstep_module_means(lockstep_module *module, uint32_t call, void **means,
                                       uint32_t count);

/* ---- Plain collectives -------------------------------------------------------------------------
 */

typedef enum lockstep_op {
    LOCKSTEP_SUM = 0,
    LOCKSTEP_MEAN = 1, /* Floating point only; every rank counts as 1. */
    LOCKSTEP_MIN = 2,
    LOCKSTEP_MAX = 3,
    LOCKSTEP_OR = 4, /* Bitwise; not for floating point. */
    LOCKSTEP_PRODUCT = 5,
    LOCKSTEP_AND = 6, /* Bitwise; not for floating point. */
    LOCKSTEP_XOR = 7 /* Bitwise; not for floating point. */
} lockstep_op;

/* Sums and products of integers wrap (modulo 2^bits). Minima and maxima follow the sign of the
 * dtype. Products of floating point are rounded like sums (docs/numbers.md): they are a NaN if an
 * operand is one, or if zero meets infinity; the sign of a zero is the product of the signs.
 * LOCKSTEP_BOOL: SUM, MAX and OR are true if any rank's value is true; PRODUCT, MIN and AND if all
 * are; XOR if an odd number is. Results are 0 or 1. MEAN is refused. A world of one without a
 * coordinator leaves booleans in device memory as they are. A MEAN of integers and bitwise
 * operations on floating point are E_INVALID. */

#define LOCKSTEP_WAIT_FOREVER 0xffffffffu

/* Collectives work in place over all ranks, after lockstep_open, inside and outside steps.
 *
 * Collectives are matched by name: the k-th use of a name on one rank meets the k-th use on the
 * others, and different names may be called in different orders. A name has 1 to 255 bytes of
 * UTF-8, and does not begin with "lockstep/". A collective whose count, dtype, op or root differs
 * between ranks fails on all of them (E_MISMATCH; the text has the calls of two ranks). Blocking
 * collectives that ranks call in different orders fail in the same way. So does a collective in
 * which some ranks wait while others wait in another function, such as lockstep_step_end: every
 * rank gets the error within about a second.
 *
 * The blocking forms wait at most timeout_ms. E_TIMEOUT fails the session, because the other ranks
 * may have the result: every later call returns E_CLOSED with its text, and the other ranks get
 * E_PEER_LOST with its text. So LOCKSTEP_WAIT_FOREVER is the usual choice. The asynchronous forms
 * borrow data until lockstep_work_wait has returned anything but E_TIMEOUT, which also frees the
 * work.
 *
 * With config.on_failure continue a collective that a death has hit ends alike on every survivor:
 * OK, or E_CHANGED, also on a rank that calls it only afterwards. With E_CHANGED what it writes is
 * undefined, the session goes on, and the collective is to be called again. E_CHANGED of a
 * collective that names a rank may also say, on one rank, that ranks have other numbers
 * (docs/recovery.md).
 * data: [count] elements; memory that another collective has borrowed, even in part, is E_INVALID,
 * and the text names both, unless both only read it: the root of a broadcast only reads. Blocks: as
 * said. Threads: the trainer's. Returns: E_MISMATCH,
 * E_PEER_LOST, E_CHANGED, E_INVALID, E_UNSUPPORTED (dtype). */
LOCKSTEP_API int lockstep_allreduce(lockstep_session *session, const char *name, void *data,
                                    uint64_t count, lockstep_dtype dtype, lockstep_op op,
                                    uint32_t timeout_ms);
LOCKSTEP_API int lockstep_broadcast(lockstep_session *session, const char *name, void *data,
                                    uint64_t count, lockstep_dtype dtype, uint32_t root,
                                    uint32_t timeout_ms);
LOCKSTEP_API int lockstep_barrier(lockstep_session *session, const char *name, uint32_t timeout_ms);

/* The same collectives, which do not wait: *work stands for the collective until lockstep_work_wait
 * has freed it. At most 256 collectives of a session may be begun and not waited for. Blocks: no.
 * Threads: the trainer's. Owns: data is borrowed until the wait. Returns: E_INVALID (also for
 * memory that another collective has borrowed, and one collective too many), E_UNSUPPORTED (dtype).
 */
LOCKSTEP_API int lockstep_allreduce_async(lockstep_session *session, const char *name, void *data,
                                          uint64_t count, lockstep_dtype dtype, lockstep_op op,
                                          lockstep_work **work);
LOCKSTEP_API int lockstep_broadcast_async(lockstep_session *session, const char *name, void *data,
                                          uint64_t count, lockstep_dtype dtype, uint32_t root,
                                          lockstep_work **work);
LOCKSTEP_API int lockstep_barrier_async(lockstep_session *session, const char *name,
                                        lockstep_work **work);

/* Waits for a collective that was begun. timeout_ms 0 only asks. E_TIMEOUT: the collective is still
 * in flight and the handle stays valid. Any other return frees the work. Blocks: until the
 * collective is done, at most timeout_ms. Threads: the trainer's. Owns: the memory of the
 * collective is the trainer's again when the work is freed. Returns: E_TIMEOUT, and what the
 * blocking form of the collective returns. */
LOCKSTEP_API int lockstep_work_wait(lockstep_work *work, uint32_t timeout_ms);

/* Calls function(context) once the work is done or the session has failed. If the work is done
 * already, the call comes before lockstep_work_notify returns. Otherwise it comes on the engine's
 * thread, or on a thread of the trainer that is inside a call that blocks. The function must not
 * block, and must not call the library (E_INVALID); it may signal another thread, which then calls
 * lockstep_work_wait. The function is called once. When lockstep_work_wait has freed the work, or
 * lockstep_close has returned, the function has returned or is never called.
 * Blocks: no. Threads: the trainer's. Owns: context is borrowed until then. Returns: E_INVALID if
 * the work has a function already. */
LOCKSTEP_API int lockstep_work_notify(lockstep_work *work, void (*function)(void *context),
                                      void *context);

/* A file descriptor for poll loops (an eventfd). It becomes readable each time that asynchronous
 * work of this session is done, and when the session fails. Reading 8 bytes resets it. Read it
 * first, then call lockstep_work_wait(work, 0) for the works in flight: so no work is missed.
 * Blocks: no. Threads: the trainer's. Owns: the session; do not close the descriptor, which ends
 * with lockstep_close. Returns: E_SYSTEM (no descriptor is left). */
LOCKSTEP_API int lockstep_session_fd(lockstep_session *session, int *fd);

/* ---- Groups, and collectives of every kind -----------------------------------------------------
 *
 * docs/collectives.md is the guide. */

#define LOCKSTEP_MAX_GROUPS 64 /* Open groups of one session. */

/* Makes a group of ranks. Its collectives concern the members only. Groups may overlap and contain
 * each other. A rank is known in the group by its place in `ranks`: the member ranks[0] is group
 * rank 0. All members call this function with the same name and the same ranks in the same order;
 * the other ranks do not call it. The k-th call with the same name and ranks on one member meets
 * the k-th call on the others.
 * ranks: [count] different ranks of the world, copied. name: 1 to 63 bytes of UTF-8, copied; two
 * groups of other ranks may have the same name. After a death (config.on_failure continue) a group
 * has the members that are left, in their order. Blocks: until all members have called it. Threads:
 * the trainer's. Returns: E_CHANGED if a rank has died; E_INVALID at once for a rank that is not in
 * `ranks`, for the 65th open group, and when the session has made 2^20 groups of different names
 * and ranks; E_MISMATCH on every rank if members wait with other names or other ranks, after about
 * a second; the text has both calls. A group that is made again with the same name and ranks has
 * names of its own. The names of a closed group's collectives make room for new ones. */
LOCKSTEP_API int lockstep_group_create(lockstep_session *session, const uint32_t *ranks,
                                       uint32_t count, const char *name, lockstep_group **group);

/* This rank's place in the group, and the number of members. rank and size may be NULL. Blocks: no.
 * Threads: any. */
LOCKSTEP_API int lockstep_group_world(const lockstep_group *group, uint32_t *rank, uint32_t *size);

/* Frees the group on this rank. lockstep_close frees the groups that are still open. Blocks: no.
 * Threads: the trainer's. Returns: E_INVALID if work of the group was not waited for, or if a
 * module of the group is registered. */
LOCKSTEP_API int lockstep_group_close(lockstep_group *group);

/* What a collective does. n is the number of members, r this rank's place among them. Parts lie one
 * after the other in the order of the members, unless offsets say otherwise. */
typedef enum lockstep_collective_kind {
    /* output[count] = op over the members' input[count], on every member. In place: input NULL or
     * equal to output; output then has the contribution first. */
    LOCKSTEP_ALLREDUCE = 1,
    /* output[count] = the root's input[count], on every member. The root may leave out input or
     * output (one memory that is sent), or have both (input is copied to its output, too). */
    LOCKSTEP_BROADCAST = 2,
    /* Completes on no member before every member has begun it. No memory. */
    LOCKSTEP_BARRIER = 3,
    /* output[count] of the root = op over the members' input[count]. In place: input NULL or equal
     * to output. Other members: output is not written; a contribution may be in either. */
    LOCKSTEP_REDUCE = 4,
    /* output[part r] = op over part r of the members' input[n parts]. In place: output is the place
     * of part r in input, or input is NULL: then output[n parts] has the contribution, and part r
     * of it becomes the result. */
    LOCKSTEP_REDUCE_SCATTER = 5,
    /* output[n parts] of the root = the members' inputs[part]. Other members have no output. In
     * place on the root: input NULL or the place of its part in output. */
    LOCKSTEP_GATHER = 6,
    /* output[part r] = part r of the root's input[n parts]. Other members have no input. In place
     * on the root: output NULL or the place of its part in input. */
    LOCKSTEP_SCATTER = 7,
    /* output[n parts] = the members' inputs[part], on every member. In place: input NULL or the
     * place of part r in output. */
    LOCKSTEP_ALL_GATHER = 8,
    /* Part r of member i's input[n parts] becomes part i of member r's output[n parts]. In place:
     * input and input_counts NULL; the counts of output say what is sent, too, and the library
     * copies output first. A member that sends nothing may have input NULL with input_counts of 0.
     */
    LOCKSTEP_ALL_TO_ALL = 9,
    /* input[count] goes to member `peer`, whose output[count] it becomes by LOCKSTEP_RECEIVE with
     * the same name and tag. The k-th send of a name and tag to a member meets that member's k-th
     * receive of them from this one. A send may complete before its receive is called, or wait for
     * it: programs must not depend on either. One of more than 256 KiB waits, and any send of a
     * rank that is far ahead of the receiver (docs/collectives.md). */
    LOCKSTEP_SEND = 10,
    LOCKSTEP_RECEIVE = 11
} lockstep_collective_kind;

/* As the peer of a RECEIVE: any other member of the group. `sender` says which member has sent.
 * Senders do nothing special. docs/collectives.md has the reasons and an example. The rules:
 * - Which message: of the messages with this name and tag that have arrived, the one whose first
 *   bytes have arrived first; if none has, the first to arrive. Messages of one sender are received
 *   in the order of its sends. Receives from any source get their messages in the order in which
 *   they were begun.
 * - A named RECEIVE claims the next message of its peer when it begins, also one that has not
 *   arrived. So it goes before receives from any source that still wait. In a group of two,
 *   LOCKSTEP_ANY_SOURCE is the same as naming the other member.
 * - Another count or dtype than the send's is E_MISMATCH. The message that is taken does not depend
 *   on the count.
 * - Without a send the receive waits, which is a stall and no E_MISMATCH. While it waits, no
 *   E_MISMATCH about the order of calls comes from what this rank has not called.
 * - E_PEER_LOST: a member has died, or all other members have closed their sessions. A member to
 *   which this rank has no link is not known to have closed its session.
 * - The first receive of a rank makes links to all members of lower rank, which must not have
 *   closed their sessions before. */
#define LOCKSTEP_ANY_SOURCE 0xffffffffu

/* A collective. Begin with LOCKSTEP_COLLECTIVE_INIT. Fields that a kind does not use are ignored,
 * unless said otherwise. All members pass the same kind, group, name, dtype, op (reductions), root
 * (BROADCAST, REDUCE, GATHER, SCATTER) and count.
 *
 * Parts of unequal size: input_counts[n] for the kinds whose input has n parts, output_counts[n]
 * for the kinds whose output has n parts; ALL_TO_ALL has both or none. Then count is ignored. All
 * members use counts or none does. REDUCE_SCATTER and ALL_GATHER: the counts are equal on all
 * members. GATHER and SCATTER: the root's counts say what each member has; of another member's
 * counts only entry r is read. ALL_TO_ALL: input_counts[i] of member r is output_counts[r] of
 * member i. A count of 0 is a part without elements. */
struct lockstep_collective {
    size_t struct_bytes;
    lockstep_collective_kind kind;
    lockstep_group *group; /* NULL: all ranks. */
    /* 1 to 255 bytes of UTF-8, unique in its group; matched as said above. Names that begin with
     * "lockstep/" are the library's. */
    const char *name;
    const void *input; /* Aligned for the dtype, as output. NULL: no elements, or as kinds say. */
    void *output;
    uint64_t count; /* Elements of the whole, or of each part. */
    const uint64_t *input_counts; /* [n], copied. NULL: every part of input has `count`. */
    const uint64_t *input_offsets; /* [n], in elements. NULL: one part after the other. */
    const uint64_t *output_counts;
    const uint64_t *output_offsets; /* Parts of output do not overlap. */
    lockstep_dtype dtype;
    lockstep_op op; /* ALLREDUCE, REDUCE, REDUCE_SCATTER. */
    uint32_t root; /* Place of a member. */
    uint32_t peer; /* SEND, RECEIVE: place of another member. RECEIVE: or LOCKSTEP_ANY_SOURCE. */
    uint32_t tag; /* SEND, RECEIVE. */
    /* LOCKSTEP_MEAN: this rank's weight w, at most 2^48. The result is sum(w x) / sum(w). A rank
     * with weight 0 contributes nothing. If all weights are 0, no output is written. Other ops and
     * kinds: 1. */
    uint64_t weight;
    /* RECEIVE: where the place of the member that has sent is written before the receive is
     * complete; borrowed until the wait. NULL: nowhere. With config.on_failure continue it is the
     * place in the world that the trainer has last heard of (docs/recovery.md). */
    uint32_t *sender;
};

#define LOCKSTEP_COLLECTIVE_INIT \
    { \
        sizeof(struct lockstep_collective), LOCKSTEP_ALLREDUCE, NULL, NULL, NULL, NULL, 0, NULL, \
            NULL, NULL, NULL, LOCKSTEP_FLOAT32, LOCKSTEP_SUM, 0, 0, 0, 1, NULL \
    }

/* A collective of any kind among the members of a group. lockstep_collective_run waits for it, with
 * a timeout as lockstep_allreduce has it; lockstep_collective_begin does not wait, and its work is
 * waited for by lockstep_work_wait. ALLREDUCE, BROADCAST and BARRIER of all ranks are the same
 * collectives as lockstep_allreduce, lockstep_broadcast and lockstep_barrier of that name.
 *
 * Members that call a collective differently get E_MISMATCH on every rank of the job; the text has
 * two calls. Where only pairs know their counts (counts of GATHER, SCATTER and ALL_TO_ALL, and SEND
 * with RECEIVE) a member that does not meet the wrong count may complete first, and gets the error
 * from its next call. Blocking collectives that members call in different orders, also in different
 * groups, fail on every rank within about a second.
 *
 * At most 4,096 different names are in use in a session, over all open groups; each pair of a tag
 * and a peer counts as a name for SEND and for RECEIVE, and LOCKSTEP_ANY_SOURCE as a peer of its
 * own.
 * Blocks: run waits for the members; begin does not. Threads: the trainer's. Owns: what is copied
 * (name, counts, offsets); input and output are borrowed until the wait, input is only read. Memory
 * that another collective has borrowed is E_INVALID, unless both only read it. Gaps that offsets
 * leave between parts are not written, and count as borrowed. Returns: E_MISMATCH,
 * E_PEER_LOST, E_CHANGED (as lockstep_allreduce has it; SEND and RECEIVE: the other rank is gone,
 * and sends and receives among the others complete), E_INVALID, E_TIMEOUT, E_UNSUPPORTED (dtype).
 * Memory of this rank's device (config.device) is read at once, and written before the collective
 * is complete. */
LOCKSTEP_API int lockstep_collective_run(lockstep_session *session,
                                         const struct lockstep_collective *what,
                                         uint32_t timeout_ms);
LOCKSTEP_API int lockstep_collective_begin(lockstep_session *session,
                                           const struct lockstep_collective *what,
                                           lockstep_work **work);
/* Begins a collective and waits for it, at most timeout_ms. OK: it is done, and *work is NULL.
 * E_TIMEOUT: it is in flight, and nothing is lost; *work is its work, as from
 * lockstep_collective_begin. Any other failure: *work is NULL. The function is as fast as
 * lockstep_collective_run, for programs that look for signals now and then. Ranks that wait in
 * different orders are found only when they wait for *work without a timeout. Otherwise as
 * lockstep_collective_run. */
LOCKSTEP_API int lockstep_collective_wait(lockstep_session *session,
                                          const struct lockstep_collective *what,
                                          uint32_t timeout_ms, lockstep_work **work);

/* ---- Counters, metrics, state, where the trainer is ------------------------------------------ */

/* Adds to a job-wide total, by name. The total with the additions of all ranks becomes visible on
 * every rank at the end of the step. The sum of a rank's additions to a counter in one step is
 * between -2^52 and 2^52. A total stays between INT64_MIN and INT64_MAX: a sum beyond one of these
 * bounds is that bound, on every rank. A job has at most 16 counters: those that ranks have added
 * to in the earliest steps. Adding 0 makes no counter. If the ranks together add to more, the end
 * of the step returns E_INVALID on every rank, and the same additions are lost on all of them. The
 * rest of the step is valid, and the session goes on. Blocks: no. Threads: any. Returns: OK;
 * E_INVALID for a delta that brings the sum of the step beyond 2^52 (the sum stays as it was), and
 * for one name too many. Owns: name is copied: 1 to 255 bytes. The page and `lockstep status` show
 * names in UTF-8 only, and of a name above 23 bytes the first 18 and a mark. */
LOCKSTEP_API int lockstep_counter_add(lockstep_session *session, const char *name, int64_t delta);
/* The total as of the last finished step: the same value on every rank. 0 for an unknown name.
 * Blocks: no. Threads: any. */
LOCKSTEP_API int lockstep_counter_read(lockstep_session *session, const char *name, int64_t *total);

/* What becomes of the values of a metric in one step. */
typedef enum lockstep_metric_kind {
    LOCKSTEP_METRIC_SUM = 1,
    LOCKSTEP_METRIC_MEAN = 2, /* Their sum, divided by their number; every value counts alike. */
    LOCKSTEP_METRIC_MIN = 3,
    LOCKSTEP_METRIC_MAX = 4
} lockstep_metric_kind;

/* Adds a value to a metric of the open step, or of the next one if none is open: a loss, a norm, an
 * accuracy. A rank may add any number of values to a metric in a step, and none. The values of all
 * ranks become one value, which every rank can read at the end of the step. It costs no collective:
 * metrics travel with the messages that end a step. In a window of accumulation they travel at the
 * end of the last step. The coordinator's page draws metrics over time.
 *
 * A name has 1 to 23 letters, digits and _ . / -, and the kind that it is first used with. A job
 * has at most 16 metrics.
 *
 * Precision. Values are float64. MIN and MAX are exact. Sums are rounded once for each addition:
 * first those of a rank in the order of its calls, then those of ranks in pairs, by an order that
 * follows from the world size alone. So a value has the same bits on every rank, and in every run
 * of the same world. If any value is NaN, the result is NaN, also of MIN and MAX. Infinities are
 * values as any other. -0 is less than +0.
 *
 * Blocks: no. Threads: any; values of several threads are added in the order of their calls, which
 * decides the last bits of sums. Owns: name is copied. Returns: E_INVALID for a name that cannot
 * be, another kind than this rank has seen, one name too many, and more than 2^21 values of one
 * rank in one step. The end of the step returns E_MISMATCH on every rank if ranks use a name with
 * different kinds, and E_INVALID on every rank if they use more than 16 names together. Then
 * gradients and other metrics of the step are valid, and the session goes on. */
LOCKSTEP_API int lockstep_metric_add(lockstep_session *session, const char *name,
                                     lockstep_metric_kind kind, double value);
/* The value of the last finished step in which some rank added to the metric, and how many values
 * the ranks added together in that step: the same bits on every rank. 0 and 0 for a name that no
 * rank has used yet. count may be NULL. lockstep_session_save does not write metrics. Blocks: no.
 * Threads: any. */
LOCKSTEP_API int lockstep_metric_read(lockstep_session *session, const char *name, double *value,
                                      uint64_t *count);

/* Says where the trainer is ("evaluating"), for people who look at the job. Copied: UTF-8, at most
 * 127 bytes; longer texts are cut. The coordinator's page draws numbers in it over time, as in
 * "epoch 3 loss=0.41". Blocks: no. Threads: any. Returns: E_INVALID for NULL, and for a text that
 * is not UTF-8. */
LOCKSTEP_API int lockstep_mark(lockstep_session *session, const char *text);

/* Announces a pause, for example to write a checkpoint. Until lockstep_resume the job shows it as a
 * pause and not as a stall, for about expected_ms. Calls of the library in between do not end it. A
 * second lockstep_pause takes the place of the first. reason: UTF-8; NULL is "paused". Blocks: no.
 * Threads: the trainer's. Owns: reason is copied. Returns: E_INVALID for a reason that is not
 * UTF-8. */
LOCKSTEP_API int lockstep_pause(lockstep_session *session, const char *reason,
                                uint64_t expected_ms);
/* Ends the pause, and removes the mark. Without a pause it only removes the mark. Blocks: no.
 * Threads: the trainer's. */
LOCKSTEP_API int lockstep_resume(lockstep_session *session);

/* Compares a hash of every parameter and buffer across ranks. All ranks call it, outside a step.
 * Blocks: until all ranks have called it. Threads: the trainer's. Returns: OK when all are equal;
 * E_MISMATCH names the tensors that differ and on how many ranks; the session goes on. E_PEER_LOST.
 */
LOCKSTEP_API int lockstep_state_check(lockstep_session *session);

/* One hash over all parameters and buffers of this rank, for logs and tests: equal states give
 * equal hashes. Blocks: no. Threads: the trainer's, outside a step. */
LOCKSTEP_API int lockstep_state_hash(lockstep_session *session, uint64_t *hash);

/* Exchanges all buffers with a policy that repeats now, whatever the step: before a checkpoint, or
 * an evaluation on one rank. Buffers of policy sum are summed again, including earlier sums. All
 * ranks call it, outside a step. Blocks: until all ranks have called it. Threads: the trainer's.
 * Returns: E_PEER_LOST. */
LOCKSTEP_API int lockstep_state_sync(lockstep_session *session);

/* ---- Saving and loading ------------------------------------------------------------------------
 */

/* Writes what decides the bits of a result beside the gradients: the bucket layouts that were
 * learned, for every set of trainable parameters. The file is the same on every rank, so one rank
 * may write it for all. The file appears whole or not at all. If the path is a symbolic link, the
 * file that it leads to is replaced.
 * Blocks: no. Threads: the trainer's, outside a step. Returns: E_SYSTEM (the text names the file),
 * E_INVALID (the path leads to something that is not a regular file). */
LOCKSTEP_API int lockstep_layout_save(lockstep_session *session, const char *path);
/* Reads a file of lockstep_layout_save, after the modules were registered and before
 * lockstep_start. Every rank reads it (ranks that differ get E_MISMATCH at start). The same world
 * with the same layouts gives the same bits. Blocks: no. Threads: the trainer's. Returns: E_CONFIG
 * (not such a file, damaged, of other modules, or of a world of this size with other chunks: the
 * text says which; nothing has changed), E_SYSTEM; E_INVALID when a file was loaded already, and
 * after lockstep_start. */
LOCKSTEP_API int lockstep_layout_load(lockstep_session *session, const char *path);

/* Saves the layouts with the number of the last step and the totals of counters. With these and the
 * trainer's own checkpoint, training goes on bit by bit as if it had not been interrupted. The file
 * does not say which parameters are frozen: freeze them again before the next step. Blocks: no.
 * Threads: the trainer's, outside a step or window. Returns: as lockstep_layout_save. */
LOCKSTEP_API int lockstep_session_save(lockstep_session *session, const char *path);
/* Reads a file of lockstep_session_save: the layouts, the step and the totals. Otherwise as
 * lockstep_layout_load. */
LOCKSTEP_API int lockstep_session_load(lockstep_session *session, const char *path);

/* Memory for tensors, at most 1,048,576 blocks. Each block is whole pages, and zero. It is freed by
 * lockstep_free or with the session. bytes 0 gives memory that must not be touched.
 * If ranks share a host and config.transport is AUTO, they can reach each other's blocks: gradients
 * in shared blocks are reduced in place, without copies, in whatever order they lie. Three limits
 * hold. At most 256 blocks above 1 MiB of a session are shared, those of lockstep_module_gradients
 * included; smaller blocks lie together in some of the 256. A block is shared only if it is at most
 * half of the memory that is left, and while the process can open 117 file descriptors: each of the
 * 256 blocks has one, and the links of a recovery need some (ulimit -n). Blocks beyond these limits
 * are like any other memory. A shared block is allocated at once, not when it is touched. A forked
 * child does not get a copy: the parent sees what the child writes there.
 * Blocks: no. Threads: the trainer's. Owns: the library's. Returns: E_SYSTEM (no memory), E_INVALID
 * (one block too many). */
LOCKSTEP_API int lockstep_alloc(lockstep_session *session, size_t bytes, void **memory);
/* Frees a block of lockstep_alloc. Blocks: no. Threads: the trainer's. Returns: E_INVALID for
 * memory that is not from lockstep_alloc, NULL included, in which a tensor is registered, or that
 * the library has borrowed: for a collective that was not waited for, or for a gradient of the open
 * step or window. */
LOCKSTEP_API int lockstep_free(lockstep_session *session, void *memory);

/* ---- What a machine has for ranks with a device ------------------------------------------------
 *
 * For tools: no session needs it. `lockstep doctor` prints it. */

/* CUDA's driver, NCCL, and the kernels of this library. Set struct_bytes (LOCKSTEP_DEVICES_INIT).
 */
struct lockstep_devices {
    size_t struct_bytes;
    uint32_t count; /* Devices that this process may use: cuda:0, cuda:1, ... */
    uint32_t driver_version; /* The CUDA that the driver is for: 13000 is 13.0. 0: no driver. */
    uint32_t nccl_version; /* 22105 is 2.21.5. 0: no NCCL. */
    char driver_text[256]; /* The driver's file, or why there is no usable driver. */
    char nccl_text[256]; /* NCCL's file, or why there is no usable NCCL. */
    char kernels[128]; /* What this library's kernels were built for, "sm_80 sm_90 compute_80".
                          "": the library was built without kernels, and no rank can have a device.
                        */
};

#define LOCKSTEP_DEVICES_INIT \
    { \
        sizeof(struct lockstep_devices), 0, 0, 0, "", "", "" \
    }

/* Loads CUDA's driver and NCCL into the process, if the machine has them, and initializes the
 * driver. CUDA does not allow that after a fork. Blocks: for the driver, a second at most as a
 * rule. Threads: any. Returns: E_INVALID for struct_bytes. A missing driver or NCCL is no failure.
 */
LOCKSTEP_API int lockstep_devices_find(struct lockstep_devices *devices);

/* One device. Set struct_bytes (LOCKSTEP_DEVICE_INIT). */
struct lockstep_device {
    size_t struct_bytes;
    char name[64];
    uint8_t uuid[16];
    uint32_t capability; /* Compute capability: 90 is 9.0. */
    uint32_t multiprocessors;
    char problem[256]; /* Why no rank can use the device. "": a rank can use it. */
};

#define LOCKSTEP_DEVICE_INIT \
    { \
        sizeof(struct lockstep_device), "", {0}, 0, 0, "" \
    }

/* Describes device `index`, below the count of lockstep_devices_find. The function first tries
 * whether the device can be used: it makes the primary context, loads the kernels, and lets both
 * go. Blocks: for the driver. Threads: any. Returns: E_INVALID for struct_bytes or index. */
LOCKSTEP_API int lockstep_device_describe(uint32_t index, struct lockstep_device *device);

#ifdef __cplusplus
}
#endif

#endif
