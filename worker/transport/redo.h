// SPDX-License-Identifier: Apache-2.0
//
// A collective that is repeated after a death, by the rows of a decision
// (docs/internals/recovery.md). Whatever way it used first, it is repeated on the ring of the new
// generation; but what is summed again goes by ALGORITHM_DIRECT where the numerics ask for that.
// Engine thread.

#ifndef WORKER_TRANSPORT_REDO_H
#define WORKER_TRANSPORT_REDO_H

#include "base/list.h"
#include "protos/redo.h"

#include <stdbool.h>
#include <stdint.h>

struct collective;
struct finals;
struct transport;

struct redos {
    struct list all; // struct redo: collectives that are being repeated.
};

// What a decision says about one collective. Equal on all ranks, except `whole`. Borrowed for the
// call.
struct transport_redo {
    const struct redo_row *rows; // [count]
    uint32_t count; // 0: all elements are final on every rank.
    // [units_words(unit_count)]: OR of the used bits of all reports. NULL: no bit is set.
    const uint64_t *used;
    // True if all elements of the collective were final here when the generation was frozen and
    // transport_final does not know that, because the collective was done before.
    bool whole;
};

// Launches a collective again. It belongs to the transport until done(). Its tag and its used bits
// are those of the first launch. weight_total of a mean is that of the elements that the rows sum
// up; if it is 0, that of the elements that were final. Where units have such elements and no rank
// has a weight, the elements that the rows sum up become zeros.
//
// Returns NULL, or why the rows are impossible; then nothing was launched.
const char *transport_redo(struct transport *transport, struct collective *collective,
                           const struct transport_redo *redo);

void redo_init(struct redos *redos);
// Forgets all collectives that are being repeated, without events. No flow may refer to them.
void redo_forget(struct redos *redos);
// Returns the collective of whose repetition `collective` is a part; NULL: it is no such part.
struct collective *redo_outer(const struct redos *redos, const struct collective *collective);
// Called when a part is done. Returns the whole collective if it is done; NULL: it is not.
struct collective *redo_done(struct transport *transport, struct collective *part);
// Returns collective number `index` of those that are being repeated, and adds what is final of it
// and which units are used. NULL: there are no more.
struct collective *redo_finals(struct transport *transport, uint32_t index, struct finals *finals);

#endif
