// SPDX-License-Identifier: Apache-2.0
//
// The lines of the report about two manifests that differ. difference.c finds which items belong
// together. Runs inside coordinator_step.

#ifndef COORDINATOR_DIFFERENCE_LINE_H
#define COORDINATOR_DIFFERENCE_LINE_H

#include <stdint.h>

struct difference;
struct manifest_item;
struct text;

// Counts a difference. Adds its line to the report if there is room for this line and the last one.
void difference_line(struct difference *difference, const char *line);
// Adds the name of an item: "fc2.weight", "actor/fc2.weight", "buffer bn.mean", "module actor",
// "session options". Other items of the session have names of their own.
void difference_line_label(struct text *line, const struct difference *difference,
                           const char *module, const struct manifest_item *item);
// Adds the name and the numbers: "shape [2, 3]".
void difference_line_numbers(struct text *line, const char *name, const int64_t *numbers,
                             uint32_t count);
// Compares two items of one name, and adds a line for each difference. a: the item of the first
// side, b: of the second.
void difference_line_compare(struct difference *difference, const struct manifest_item *a,
                             const struct manifest_item *b);

#endif
