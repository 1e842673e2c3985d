// SPDX-License-Identifier: Apache-2.0
//
// Connects to the data ports of workers; prober.h has the contract.

#include "server/prober.h"

#include "base/clock.h"
#include "base/parse.h"
#include "base/text.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PROBE_MS 1000 // How long an attempt may take.
#define PROBE_BATCH 32 // Attempts at the same time.
#define PROBE_PREFIX "tcp:"

// ---- Addresses ----------------------------------------------------------------------------------

union probe_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

// Copies the TCP part of a worker's address: "tcp:10.0.0.1:4711;..." gives "10.0.0.1:4711".
static bool probe_tcp_part(const char *address, char *part, size_t capacity)
{
    while (strncmp(address, PROBE_PREFIX, strlen(PROBE_PREFIX)) != 0) {
        address = strchr(address, ';');
        if (!address)
            return false;
        address++;
    }
    address += strlen(PROBE_PREFIX);
    const size_t size = strcspn(address, ";");
    if (size >= capacity)
        return false;
    memcpy(part, address, size);
    part[size] = '\0';
    return true;
}

// Returns the size of the socket address, or 0 if the address has no numeric TCP part.
static socklen_t probe_parse(const char *address, union probe_address *socket_address)
{
    char part[LOCKSTEP_ADDRESS_BYTES];
    char host[LOCKSTEP_ADDRESS_BYTES];
    uint16_t port = 0;
    memset(socket_address, 0, sizeof(*socket_address));
    if (!probe_tcp_part(address, part, sizeof(part)) ||
        !parse_address(part, host, sizeof(host), &port) || port == 0)
        return 0;
    if (inet_pton(AF_INET, host, &socket_address->v4.sin_addr) == 1) {
        socket_address->v4.sin_family = AF_INET;
        socket_address->v4.sin_port = htons(port);
        return sizeof(socket_address->v4);
    }
    if (inet_pton(AF_INET6, host, &socket_address->v6.sin6_addr) != 1)
        return 0;
    socket_address->v6.sin6_family = AF_INET6;
    socket_address->v6.sin6_port = htons(port);
    return sizeof(socket_address->v6);
}

// ---- Attempts -----------------------------------------------------------------------------------

// Begins an attempt. Returns its socket. -1: there is none; *error is the reason, or 0 if it says
// nothing about the worker: the address cannot be probed, or this process has no descriptor left.
// Then there is no answer, and the coordinator asks again later.
static int probe_begin(const char *address, int *error)
{
    union probe_address to;
    const socklen_t size = probe_parse(address, &to);
    *error = 0;
    if (size == 0)
        return -1;
    const int fd = socket(to.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, &to.any, size) == 0 || errno == EINPROGRESS)
        return fd;
    *error = errno;
    close(fd);
    return -1;
}

static void probe_keep(struct prober *prober, const struct prober_answer *answer)
{
    mutex_lock(&prober->mutex);
    if (prober->answered - prober->taken < PROBER_ROOM)
        prober->answers[prober->answered++ % PROBER_ROOM] = *answer;
    mutex_unlock(&prober->mutex);
    prober->wake(prober->context);
}

static void probe_answer(struct prober *prober, uint64_t peer, int error)
{
    const struct prober_answer answer = {
        .peer = peer, .reached = error == 0, .refused = error == ECONNREFUSED};
    probe_keep(prober, &answer);
}

// An attempt has ended: answers, and closes its socket.
static void probe_end(struct prober *prober, struct pollfd *attempt, uint64_t peer)
{
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(attempt->fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0)
        probe_answer(prober, peer, error);
    close(attempt->fd);
    attempt->fd = -1;
}

static void probe_batch(struct prober *prober, const struct prober_question *questions,
                        uint32_t count)
{
    struct pollfd attempts[PROBE_BATCH];
    const uint64_t deadline_ms = clock_now_ms() + PROBE_MS;
    uint32_t open = 0;
    for (uint32_t i = 0; i < count; i++) {
        int error = 0;
        attempts[i] =
            (struct pollfd){.fd = probe_begin(questions[i].address, &error), .events = POLLOUT};
        open += attempts[i].fd >= 0;
        if (error != 0)
            probe_answer(prober, questions[i].peer, error);
    }
    for (uint64_t now = clock_now_ms(); open > 0 && now < deadline_ms; now = clock_now_ms()) {
        if (poll(attempts, count, (int)(deadline_ms - now)) <= 0)
            continue;
        for (uint32_t i = 0; i < count; i++) {
            if (attempts[i].fd < 0 || attempts[i].revents == 0)
                continue;
            probe_end(prober, &attempts[i], questions[i].peer);
            open--;
        }
    }
    for (uint32_t i = 0; i < count; i++)
        if (attempts[i].fd >= 0)
            close(attempts[i].fd);
}

// ---- The thread ---------------------------------------------------------------------------------

// Waits for questions. Returns their number, or 0 when the thread is to end.
static uint32_t probe_wait(struct prober *prober, struct prober_question *questions)
{
    uint32_t count = 0;
    mutex_lock(&prober->mutex);
    while (!prober->stop && prober->asked == prober->begun)
        cond_wait(&prober->changed, &prober->mutex);
    while (!prober->stop && count < PROBE_BATCH && prober->asked != prober->begun)
        questions[count++] = prober->questions[prober->begun++ % PROBER_ROOM];
    mutex_unlock(&prober->mutex);
    return count;
}

static void probe_run(void *argument)
{
    struct prober *prober = argument;
    struct prober_question questions[PROBE_BATCH];
    for (uint32_t count = probe_wait(prober, questions); count > 0;
         count = probe_wait(prober, questions))
        probe_batch(prober, questions, count);
}

int prober_start(struct prober *prober, void (*wake)(void *context), void *context)
{
    memset(prober, 0, sizeof(*prober));
    prober->wake = wake;
    prober->context = context;
    mutex_init(&prober->mutex);
    cond_init(&prober->changed);
    return thread_start(&prober->thread, "prober", probe_run, prober);
}

void prober_stop(struct prober *prober)
{
    mutex_lock(&prober->mutex);
    prober->stop = true;
    cond_signal(&prober->changed);
    mutex_unlock(&prober->mutex);
    thread_join(&prober->thread);
    cond_fini(&prober->changed);
    mutex_fini(&prober->mutex);
}

void prober_ask(struct prober *prober, uint64_t peer, const char *address)
{
    mutex_lock(&prober->mutex);
    if (prober->asked - prober->begun < PROBER_ROOM) {
        struct prober_question *question = &prober->questions[prober->asked++ % PROBER_ROOM];
        question->peer = peer;
        text_copy(question->address, sizeof(question->address), address);
        cond_signal(&prober->changed);
    }
    mutex_unlock(&prober->mutex);
}

bool prober_take(struct prober *prober, struct prober_answer *answer)
{
    mutex_lock(&prober->mutex);
    const bool has = prober->taken != prober->answered;
    if (has)
        *answer = prober->answers[prober->taken++ % PROBER_ROOM];
    mutex_unlock(&prober->mutex);
    return has;
}
