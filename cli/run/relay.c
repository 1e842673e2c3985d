// SPDX-License-Identifier: Apache-2.0
//
// Numbers as bytes, the lowest first; relay.h has the contract. Pure.

#include "cli/run/relay.h"

#include <string.h>

static void put(unsigned char *bytes, uint64_t value, size_t size)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get(const unsigned char *bytes, size_t size)
{
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value |= (uint64_t)bytes[i] << 8 * i;
    return value;
}

void relay_put_header(unsigned char bytes[RELAY_HEADER_BYTES], const struct relay_header *header)
{
    memset(bytes, 0, RELAY_HEADER_BYTES);
    bytes[0] = header->kind;
    bytes[1] = header->stream;
    put(bytes + 4, header->rank, 4);
    put(bytes + 8, header->size, 4);
}

bool relay_get_header(const unsigned char bytes[RELAY_HEADER_BYTES], struct relay_header *header)
{
    header->kind = bytes[0];
    header->stream = bytes[1];
    header->rank = (uint32_t)get(bytes + 4, 4);
    header->size = (uint32_t)get(bytes + 8, 4);
    return header->kind >= RELAY_PLACE && header->kind <= RELAY_ENDED && header->stream <= 1 &&
           bytes[2] == 0 && bytes[3] == 0 && header->size <= RELAY_PAYLOAD_BYTES;
}

void relay_put_started(unsigned char bytes[RELAY_STARTED_BYTES],
                       const struct relay_started *started)
{
    put(bytes, started->at_ms, 8);
    put(bytes + 8, started->pid, 4);
}

bool relay_get_started(const unsigned char *bytes, size_t size, struct relay_started *started)
{
    if (size != RELAY_STARTED_BYTES)
        return false;
    started->at_ms = get(bytes, 8);
    started->pid = (uint32_t)get(bytes + 8, 4);
    return true;
}

void relay_put_ended(unsigned char bytes[RELAY_ENDED_BYTES], const struct relay_ended *ended)
{
    put(bytes, ended->at_ms, 8);
    put(bytes + 8, (uint32_t)ended->status, 4);
    put(bytes + 12, (uint32_t)ended->exec_error, 4);
    bytes[16] = ended->stopped;
    put(bytes + 17, ended->cause, 4);
}

bool relay_get_ended(const unsigned char *bytes, size_t size, struct relay_ended *ended)
{
    if (size != RELAY_ENDED_BYTES || bytes[16] > 1)
        return false;
    ended->at_ms = get(bytes, 8);
    ended->status = (int32_t)get(bytes + 8, 4);
    ended->exec_error = (int32_t)get(bytes + 12, 4);
    ended->stopped = bytes[16] == 1;
    ended->cause = (uint32_t)get(bytes + 17, 4);
    return true;
}
