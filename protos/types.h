// SPDX-License-Identifier: Apache-2.0
//
// The messages of the control stream as plain structs: up.h and down.h have one struct for each
// message, place.h and basic.h the pieces of them. The coordinator's core and the worker read and
// write these structs; protos/codec/codec.h turns them into bytes and back. The .proto file beside
// this one has the same fields under the same names.
//
// No pointers: a message owns all of its contents, so it can be copied, queued and compared.
// docs/internals/design.md, section "Words", explains the terms (generation, slot, plan, ...).

#ifndef LOCKSTEP_PROTOS_TYPES_H
#define LOCKSTEP_PROTOS_TYPES_H

#include "protos/basic.h"
#include "protos/down.h"
#include "protos/place.h"
#include "protos/up.h"

#endif
