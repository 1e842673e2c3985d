// SPDX-License-Identifier: Apache-2.0
//
// How a generation is frozen after a death, and which elements are then final
// (docs/internals/recovery.md). Engine thread.

#ifndef WORKER_TRANSPORT_FREEZE_H
#define WORKER_TRANSPORT_FREEZE_H

#include "base/list.h"
#include "protos/redo.h"
#include "protos/types.h"

#include <stdbool.h>
#include <stdint.h>

struct collective;
struct transport;

// What a frozen transport knows of collectives that were not done. `held` links struct held.
struct freezer {
    struct list held;
    bool lacks; // True if memory was missing: something that is final may not be held.
};

// What is final of one collective. The pointers are borrowed until the next transport_freeze or
// transport_redo.
struct transport_finals {
    // Why it is not known which elements are final, as a fact about the collective ("its memory is
    // on a device"). Then it cannot be repeated. NULL: it is known exactly.
    const char *unknown;
    // The final elements: ascending, not empty, not touching each other.
    uint32_t run_count;
    const struct redo_run *runs;
    bool all; // True if all elements are final; false if there are none.
};

void freeze_init(struct freezer *freezer);
void freeze_fini(struct freezer *freezer);

// Freezes the generation: tells the neighbours the ballot (a LEAVE frame, as far as the links take
// it without waiting), closes all links, and forgets all launched collectives and joined waves,
// without events. The exception is a collective whose result is being written to a device: it is
// waited for, and done() is reported. After the return the transport touches no user memory.
// transport_form may follow, for the next generation; its listeners must still be open. Not from an
// event.
//
// The used bits of every collective that was launched and not done are what they were at its
// launch: those of this rank's inputs. So it can be launched again, or repeated by transport_redo.
//
// A frozen transport may be frozen again, for a higher ballot: what is final stays as it is.
//
// Returns 0, or -1 if memory is missing: then it is not known what is final.
int transport_freeze(struct transport *transport, const struct generation_id *ballot);
// Sets *finals to what is final of a collective that was launched and not done when the generation
// was frozen, or of a mean that was done with weight_total 0. All elements of other collectives
// that were done are final, except where an output is missing.
void transport_final(const struct transport *transport, const struct collective *collective,
                     struct transport_finals *finals);
// Sets used[units_words(unit_count)] to what this rank reports of the units of such a collective,
// or of one that was not launched. A unit with a final element has the bit under which that element
// was written. A unit without elements has the bit that this rank knows, also if nothing is final:
// no row of a decision repeats it. All other units have no bit.
void transport_final_used(const struct transport *transport, const struct collective *collective,
                          uint64_t *used);

// What the transport keeps of a collective between two generations.
struct held {
    struct list node; // In freezer.held.
    const struct collective *collective; // Compared only; it may be gone.
    uint64_t step;
    uint64_t space;
    uint32_t slot;
    const char *unknown;
    uint64_t weight; // REDUCE_MEAN: the total weight of the final elements.
    uint32_t run_count;
    struct redo_run *runs;
    uint64_t *used;
    bool all;
};

// Takes what is held of a collective out of the freezer. NULL: nothing of it is final. Free it by
// freeze_drop.
struct held *freeze_take(struct freezer *freezer, const struct collective *collective);
void freeze_drop(struct held *held);

#endif
