// SPDX-License-Identifier: Apache-2.0
//
// Declarations that only the files of the codec share.
//
// up.c, place.c, await.c and down.c move fields between the plain structs of types.h and the
// structs that nanopb generates from control.proto. check.c, check_up.c and check_down.c have the
// bounds. codec.c has the pieces that both directions use, and calls nanopb. This header only
// declares the generated types, so it includes no header of nanopb.

#ifndef LOCKSTEP_PROTOS_CODEC_INTERNAL_H
#define LOCKSTEP_PROTOS_CODEC_INTERNAL_H

#include "protos/codec/codec.h"

struct pb_msgdesc_s;
struct _wire_Await;
struct _wire_AwaitKey;
struct _wire_GenerationId;
struct _wire_DownDecision;
struct _wire_DownExcluded;
struct _wire_DownPrepare;
struct _wire_LayoutPart;
struct _wire_Lineage;
struct _wire_RecordPart;
struct _wire_SlotId;
struct _wire_UpAnswer;
struct _wire_UpBlocked;
struct _wire_UpHeartbeat;
struct _wire_UpReplan;
struct _wire_UpModules;
struct _wire_UpRefuse;
struct _wire_UpReport;

// The first fault of a message. All zero: no fault.
struct codec_fault {
    enum codec_status status;
    const char *detail; // A static sentence for people.
};

#endif
