// SPDX-License-Identifier: Apache-2.0
//
// The socket to the coordinator; joins.h has the contract.

#include "cli/run/joins.h"

#include "cli/run/report.h"
#include "cli/run/run.h"
#include "cli/run/verdict.h"

#include "base/clock.h"
#include "base/parse.h"
#include "base/text.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_MS 200 // Most milliseconds to wait until the coordinator knows of a signal.
#define ASK_MS 1000 // Most milliseconds to wait for what did not fit in the socket.
#define SOCKET_BYTES (64 * 1024) // The kernel doubles it. A packet takes 768 bytes of it.
#define FULL_PACKETS 64 // So many packets at once may have filled the socket.
#define JOINED "joined "
#define REFUSED "refused "
#define CAUSE "cause "
#define OK "ok"

int joins_open(struct joins *joins)
{
    const int bytes = SOCKET_BYTES;
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
        return -1;
    for (int i = 0; i < 2; i++)
        (void)setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    joins->fd = fds[0];
    joins->coordinator_fd = fds[1];
    return 0;
}

void joins_close(struct joins *joins)
{
    if (joins->fd >= 0)
        close(joins->fd);
    if (joins->coordinator_fd >= 0)
        close(joins->coordinator_fd);
    joins->fd = joins->coordinator_fd = -1;
}

static void take(struct joins *joins, const char *line)
{
    uint64_t rank = 0;
    if (strcmp(line, OK) == 0)
        joins->behind = joins->asked = false;
    if (strncmp(line, CAUSE, strlen(CAUSE)) == 0 && parse_u64(line + strlen(CAUSE), &rank))
        joins->cause = (uint32_t)rank;
    if (strncmp(line, REFUSED, strlen(REFUSED)) == 0)
        joins->count++;
    if (strncmp(line, JOINED, strlen(JOINED)) != 0)
        return;
    joins->count++;
    if (!parse_u64(line + strlen(JOINED), &rank) || rank >= LOCKSTEP_MAX_WORLD)
        joins->unknown = true;
    else
        joins->joined[rank] = true;
}

// Reads one packet. Returns its size; 0 or less: there is none now.
static ssize_t read_one(struct joins *joins)
{
    char line[64];
    const ssize_t size = recv(joins->fd, line, sizeof(line) - 1, MSG_DONTWAIT);
    if (size > 0) {
        line[size] = '\0';
        take(joins, line);
    }
    return size;
}

void joins_read(struct joins *joins)
{
    ssize_t size = 1;
    uint32_t packets = 0;
    for (; joins->fd >= 0 && size > 0; packets++)
        size = read_one(joins);
    if (packets > FULL_PACKETS)
        joins->behind = true;
    if (joins->fd < 0 || size < 0)
        return;
    close(joins->fd); // The coordinator has ended.
    joins->fd = -1;
    joins->unknown = true;
}

static bool say(struct joins *joins, const char *line)
{
    return joins->fd >= 0 && send(joins->fd, line, strlen(line), MSG_DONTWAIT | MSG_NOSIGNAL) ==
                                 (ssize_t)strlen(line);
}

void joins_read_all(struct joins *joins)
{
    const uint64_t deadline = clock_now_ms() + ASK_MS;
    joins_read(joins);
    if (joins->asked)
        return; // The coordinator was asked before, and has not answered within ASK_MS.
    for (uint64_t now = clock_now_ms(); joins->fd >= 0 && joins->behind && now < deadline;
         now = clock_now_ms()) {
        struct pollfd ready = {.fd = joins->fd, .events = POLLIN};
        joins->asked = joins->asked || say(joins, "asks");
        if (!joins->asked)
            return; // The coordinator does not read either.
        (void)poll(&ready, 1, (int)(deadline - now));
        joins_read(joins);
    }
}

bool joins_lacks(const struct joins *joins, uint32_t rank)
{
    return joins->fd >= 0 && !joins->unknown && !joins->behind && !joins->joined[rank];
}

bool joins_lacks_any(const struct joins *joins, uint32_t count)
{
    uint32_t rank = 0;
    while (rank < count && !joins_lacks(joins, rank))
        rank++;
    return rank < count;
}

void joins_say_stopping(struct joins *joins, int signal_number)
{
    char line[64];
    struct text text;
    struct pollfd ready = {.fd = joins->fd, .events = POLLIN};
    text_init(&text, line, sizeof(line));
    text_append(&text, "stopping ");
    if (signal_number == 0)
        text_append(&text, "lockstep run");
    else
        run_append_signal_name(&text, signal_number);
    joins_read(joins);
    if (say(joins, line))
        (void)poll(&ready, 1, ANSWER_MS); // The answer, or a hello: both were written in time.
    joins_read(joins);
}

static void say_absent(struct joins *joins, const struct run_options *options, const char *end)
{
    char line[LOCKSTEP_TEXT_BYTES];
    struct text text;
    text_init(&text, line, sizeof(line));
    text_append(&text, "absent %s %s", options->job, end);
    text_append(&text, ": see what it printed, then start the job again");
    (void)say(joins, line);
}

void joins_note_end(struct joins *joins, const struct run_options *options, struct verdict *verdict,
                    uint32_t index)
{
    struct run_end *end = &verdict->result.ranks[index].end;
    const bool lacks = joins_lacks(joins, options->first_rank + index);
    char bytes[LOCKSTEP_TEXT_BYTES];
    struct text text;
    end->forming =
        verdict->interrupts == 0 && !end->stopped &&
        (end->status != 0 || (lacks && kill(-verdict->result.ranks[index].pid, 0) < 0)) &&
        joins_lacks_any(joins, options->world_size);
    end->unjoined = end->forming && lacks;
    if (!end->forming)
        return;
    text_init(&text, bytes, sizeof(bytes));
    run_append_rank_end(&text, options, &verdict->result, index);
    say_absent(joins, options, bytes);
}

void joins_expect_text(struct joins *joins)
{
    joins->text_left = sizeof(joins->text);
}

bool joins_take_text(struct joins *joins, const struct run_options *options, unsigned char byte)
{
    if (joins->text_left == 0)
        return false;
    joins->text[sizeof(joins->text) - joins->text_left--] = (char)byte;
    if (joins->text_left > 0)
        return true;
    joins->text[sizeof(joins->text) - 1] = '\0';
    joins_read_all(joins);
    if (joins_lacks_any(joins, options->world_size))
        say_absent(joins, options, joins->text);
    return true;
}
