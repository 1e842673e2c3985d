// SPDX-License-Identifier: Apache-2.0
//
// Passes regions of registered memory (worker/memory/regions.h) to the mates, and exchanges news
// about them on the board. The runs in registered memory are in registered.c. Engine thread.

#include "worker/transport/host/passing.h"

#include "worker/memory/regions.h"
#include "worker/transport/host/host.h"

void passing_begin(struct shared *shared)
{
    if (!shared->flows->regions)
        return;
    regions_begin(shared->flows->regions, shared->seat, shared->seats);
    shared->registered.news = regions_news(shared->flows->regions);
    shared->registered.again = true;
}

static void news_say(struct board_news *news, uint32_t number)
{
    const uint64_t said = board_read(&news->said);
    news->number[said % BOARD_NEWS] = number;
    board_publish(&news->said, said + 1);
}

void passing_take(struct shared *shared, uint32_t seat, const struct link_note *note, int fd)
{
    struct regions *regions = shared->flows->regions;
    const char *text = fd < 0 ? NULL : regions_map(regions, seat, note->number, note->bytes, fd);
    if (text) {
        host_impossible(shared, seat, text);
        return;
    }
    const bool mapped = regions_of(regions, seat, note->number, 0, 1) != NULL;
    news_say(&host_seat(shared, shared->seat)->mapped_of[seat],
             mapped ? note->number : note->number | REGION_UNMAPPED);
    host_tell(shared);
}

// Passes new regions to a mate, as far as its link has room. The board may stand before the links
// between mates other than the leader are proven.
static void passing_hand(struct shared *shared, uint32_t seat)
{
    struct regions *regions = shared->flows->regions;
    const struct peer_link *mate = shared->mates[seat];
    struct link *link = mate->stream.link;
    if (mate->state != PEER_PROVEN) {
        shared->registered.again |= mate->state != PEER_GONE;
        return;
    }
    for (;;) {
        struct link_note note = {.kind = LINK_NOTE_REGION};
        const int fd = link ? regions_to_pass(regions, seat, &note.number, &note.bytes) : -1;
        if (fd < 0)
            return;
        if (link->ops->pass(link, &note, fd) < 0) {
            shared->registered.again = true;
            return;
        }
        regions_passed(regions, seat, note.number);
        link->ops->wake(link);
    }
}

// Reads the news of a mate: which regions of this rank it has mapped or cannot map, and which of
// its own it has freed.
static void passing_hear(struct shared *shared, uint32_t seat)
{
    struct registered *registered = &shared->registered;
    struct regions *regions = shared->flows->regions;
    struct board_seat *own = host_seat(shared, shared->seat);
    const struct board_seat *mate = host_seat(shared, seat);
    const struct board_news *mapped = &mate->mapped_of[shared->seat];
    bool possible = true;
    const uint64_t said = board_read(&mapped->said);
    while (possible && registered->mapped_heard[seat] != said)
        possible = regions_mapped(
            regions, seat,
            board_word(&mapped->number[registered->mapped_heard[seat]++ % BOARD_NEWS]));
    uint64_t heard = board_read(&own->freed_heard[seat]);
    const uint64_t freed = board_read(&mate->freed.said);
    possible = possible && freed - heard <= BOARD_NEWS;
    while (possible && heard != freed)
        regions_unmap(regions, seat, board_word(&mate->freed.number[heard++ % BOARD_NEWS]));
    if (heard != board_read(&own->freed_heard[seat]))
        board_publish(&own->freed_heard[seat], heard);
    if (!possible)
        host_impossible(shared, seat, "sent news of a region that is none");
}

static void passing_say_freed(struct shared *shared)
{
    struct board_seat *own = host_seat(shared, shared->seat);
    uint32_t number = 0;
    for (;;) {
        for (uint32_t i = 0; i < shared->seats; i++) {
            const struct board_seat *mate = host_seat(shared, i);
            if (i != shared->seat &&
                board_read(&own->freed.said) - board_read(&mate->freed_heard[shared->seat]) >=
                    BOARD_NEWS)
                return;
        }
        if (!regions_freed(shared->flows->regions, &number))
            return;
        news_say(&own->freed, number);
        host_tell(shared);
    }
}

bool passing_has_news(const struct shared *shared)
{
    const struct registered *registered = &shared->registered;
    const struct board_seat *own = host_seat(shared, shared->seat);
    for (uint32_t i = 0; i < shared->seats; i++) {
        const struct board_seat *mate = host_seat(shared, i);
        if (i != shared->seat &&
            (board_read(&mate->mapped_of[shared->seat].said) != registered->mapped_heard[i] ||
             board_read(&mate->freed.said) != board_read(&own->freed_heard[i])))
            return true;
    }
    return regions_news(shared->flows->regions) != registered->news;
}

// A link without room for more descriptors is tried again at the next call. A call comes at the
// latest when the mate has mapped a region, because it reports that as news.
void passing_exchange(struct shared *shared)
{
    shared->registered.again = false;
    shared->registered.news = regions_news(shared->flows->regions);
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (i == shared->seat)
            continue;
        passing_hear(shared, i);
        passing_hand(shared, i);
    }
    passing_say_freed(shared);
}
