// SPDX-License-Identifier: Apache-2.0
//
// Decides how the survivors of a death finish one slot (docs/internals/recovery.md). Pure: the
// reports describe memory, and the rows follow from them alone. Any thread.

#ifndef COORDINATOR_REDO_H
#define COORDINATOR_REDO_H

#include "protos/redo.h"

#include <stdint.h>

enum redo_status {
    REDO_ROWS = 0, // The slot is repeated by the rows; none: it is final on every member.
    REDO_AGAIN, // No element is final on any member: the slot runs again as an ordinary slot.
    REDO_IMPOSSIBLE, // Reports contradict each other, or a report is not well formed.
    REDO_NO_ROOM, // There are more rows than `room`.
};

// Makes the rows of a slot of `elements` elements from the reports of its `members` (1 to
// LOCKSTEP_MAX_WORLD), in the order of their new ranks. A HAVE row's owner is a holder whose
// successor in the new ring lacks the elements. *count: number of rows; 0 unless REDO_ROWS. A slot
// without elements that is final on some member has no rows and is repeated: used bits and the
// weight travel without elements, too.
enum redo_status redo_decide(const struct redo_report *reports, uint32_t members, uint64_t elements,
                             struct redo_row *rows, uint32_t room, uint32_t *count);

#endif
