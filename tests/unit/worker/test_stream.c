// SPDX-License-Identifier: Apache-2.0
//
// A stream over a link that gives fewer bytes than it has said, and so ends inside an element of
// user memory. No link of ours has been seen to do that.

#include "worker/link/stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#define FLOATS 4
#define END 0 // An answer: the peer has ended.
#define NOTHING (-1) // An answer: no byte is there now.
#define NEVER (-2) // An answer: there will be no more bytes.

struct teller {
    struct link link; // First.
    const int *answers; // How many bytes each receive gives.
    size_t given; // Bytes of `bytes` that were given.
    uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES + FLOATS * sizeof(float)];
};

static float user[FLOATS];
static const struct extent extent = {.in = user, .out = user, .elements = FLOATS};
static struct extent_map map;
static unsigned ended;

static ssize_t teller_receive(struct link *link, const struct iovec *iov, int count)
{
    struct teller *teller = (struct teller *)(void *)link;
    const int answer = *teller->answers;
    size_t left = answer > 0 ? (size_t)answer : 0;
    teller->answers += answer != NEVER;
    if (answer < 0) {
        errno = EAGAIN;
        return -1;
    }
    for (int i = 0; i < count && left > 0; i++) {
        const size_t bytes = iov[i].iov_len < left ? iov[i].iov_len : left;
        memcpy(iov[i].iov_base, teller->bytes + teller->given, bytes);
        teller->given += bytes;
        left -= bytes;
    }
    assert_int_equal(left, 0);
    return answer;
}

static size_t teller_readable(struct link *link)
{
    return sizeof(((struct teller *)0)->bytes) - ((struct teller *)(void *)link)->given;
}

static void teller_close(struct link *link, bool reset)
{
    (void)link;
    (void)reset;
}

static const char *to_user(struct stream *stream)
{
    stream->target.kind = TARGET_OUT;
    stream->target.cursor = extent_seek(&map, 0);
    return NULL;
}

static const char *count_end(struct stream *stream)
{
    (void)stream;
    ended++;
    return NULL;
}

// Receives the header and all that the answers give. Returns the last status; *error: why.
static enum stream_status receive(const int *answers, int *error)
{
    static const struct link_ops ops = {
        .receive = teller_receive, .readable = teller_readable, .close = teller_close};
    static const struct stream_owner owner = {.begin = to_user, .end = count_end};
    static const float sent[FLOATS] = {1, 2, 3, 4};
    static struct stream stream;
    const struct frame_header header = {
        .kind = FRAME_REDUCE, .dtype = DTYPE_FLOAT32, .payload_bytes = sizeof(sent)};
    struct teller teller = {.link = {.ops = &ops, .fd = -1}, .answers = answers};
    enum stream_status status;
    frame_encode(&header, teller.bytes);
    memcpy(teller.bytes + LOCKSTEP_FRAME_HEADER_BYTES, sent, sizeof(sent));
    memset(user, 0, sizeof(user));
    memset(&stream, 0, sizeof(stream));
    ended = 0;
    assert_int_equal(extent_map_init(&map, &extent, 1, sizeof(float)), FLOATS);
    stream_open(&stream, &teller.link, &owner, NULL);
    do
        status = stream_receive(&stream);
    while (status == STREAM_MORE && ended == 0);
    *error = stream.error;
    stream_close(&stream, true);
    return status;
}

static void a_torn_element_is_waited_for(void **state)
{
    static const int answers[] = {
        LOCKSTEP_FRAME_HEADER_BYTES, 6, NOTHING, NOTHING, 1, NOTHING, 1, 8};
    static const float all[FLOATS] = {1, 2, 3, 4};
    int error;
    (void)state;
    assert_int_equal(receive(answers, &error), STREAM_MORE);
    assert_int_equal(ended, 1);
    assert_memory_equal(user, all, sizeof(all));
}

static void the_rest_never_comes(void **state)
{
    static const int ends[] = {LOCKSTEP_FRAME_HEADER_BYTES, 6, 1, END};
    static const int stays[] = {LOCKSTEP_FRAME_HEADER_BYTES, 6, NEVER};
    int error;
    (void)state;
    assert_int_equal(receive(ends, &error), STREAM_ENDED);
    assert_int_equal(error, EIO);
    assert_int_equal(receive(stays, &error), STREAM_ENDED); // After STREAM_TORN_MS.
    assert_int_equal(error, EIO);
    assert_int_equal(ended, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_torn_element_is_waited_for),
        cmocka_unit_test(the_rest_never_comes),
    };
    return cmocka_run_group_tests_name("stream", tests, NULL, NULL);
}
