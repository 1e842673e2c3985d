// SPDX-License-Identifier: Apache-2.0
//
// The walk. Each step asks cfi.h for the caller. If a needed register is unknown, it is nearly
// always the frame pointer: functions that use a frame pointer (debug builds, variable arrays,
// aligned stacks) have saved the caller's frame pointer, and the functions that they called have
// not changed it. For such a function unwind.c *searches* the stack: it takes each aligned address
// further out as the value of the register, and makes the step with that value. The result is
// believed
//
// - if the instruction before the return address calls the beginning of this function, directly or
//   through a pointer that can be read (a PLT), or calls a function that jumps there: then the
//   return address is proven;
// - else, if the instruction is any call, and the next step also leads to an address after a call:
//   the first such address is taken as a guess. That happens for functions that are called through
//   a pointer. It is no guess if the thread begins in that caller. A call that is known to be of
//   another function is the last choice: that one may jump here by way of a third one.
//
// A proven address is preferred to a guess that is nearer, because the memory of a frame may hold
// old return addresses.

#include "worker/stacks/unwind.h"

#include "worker/stacks/cfi_find.h"

#include "worker/stacks/cfi.h"
#include "worker/stacks/peek.h"

#include <string.h>

#define UNWIND_SEARCH_BYTES (64 * 1024) // How far a search goes.
// Alignment of frame pointers, according to the calling conventions of both machines.
#define UNWIND_ALIGN 16
// Most bytes from the beginning of a function without information to its system call.
#define UNWIND_LEAF_BYTES 256
#define UNWIND_WORDS 512 // Words of the stack in one read.
#define UNWIND_JUMP_BYTES 1024 // How far a function is searched for a jump to another one.

enum proof {
    PROOF_NONE, // The address is no return address.
    PROOF_OTHER, // The instruction before the address calls another function.
    PROOF_CALL, // The instruction before the address is a call, and it is not known of what.
    PROOF_CALLEE, // The instruction before the address calls this function.
};

struct unwind {
    bool resident;
    struct cfi_registers registers;
    struct cfi_function function; // The function at registers.code.
};

// ---- Calls -------------------------------------------------------------------------------------

#if defined(__x86_64__)

static bool peek_code(const struct unwind *walk, uintptr_t at, void *to, size_t bytes)
{
    return walk->resident ? peek_resident(at, to, bytes) : peek(at, to, bytes);
}

static int32_t displacement(const uint8_t *bytes)
{
    int32_t value;
    memcpy(&value, bytes, sizeof(value));
    return value;
}

// Returns the address that an entry of a procedure linkage table jumps to: [endbr64] [bnd] jmp
// *displacement(%rip). 0: the code is no such entry.
static uintptr_t linkage_target(const struct unwind *walk, uintptr_t at)
{
    static const uint8_t endbr[] = {0xf3, 0x0f, 0x1e, 0xfa};
    uint8_t code[16];
    uintptr_t target = 0;
    size_t i = 0;
    if (!peek_code(walk, at, code, sizeof(code)))
        return 0;
    if (memcmp(code, endbr, sizeof(endbr)) == 0)
        i += sizeof(endbr);
    if (code[i] == 0xf2)
        i++;
    if (code[i] != 0xff || code[i + 1] != 0x25)
        return 0;
    at += i + 6 + (uintptr_t)(intptr_t)displacement(code + i + 2);
    return peek_code(walk, at, &target, sizeof(target)) ? target : 0;
}

// True if an indirect call ends here: 0xff with /2, of 2, 3, 4, 6 or 7 bytes.
static bool indirect_call(const uint8_t before[8])
{
    static const uint8_t sizes[] = {2, 3, 4, 6, 7};
    for (size_t i = 0; i < sizeof(sizes); i++) {
        const uint8_t *call = before + 8 - sizes[i];
        if (call[0] == 0xff && (call[1] >> 3 & 7) == 2)
            return true;
    }
    return false;
}

// True if the function that begins here ends with a jump to [callee, last]: jmp or a conditional
// jump, with a displacement. Compilers make one of a last call.
static bool jumps_to(const struct unwind *walk, uintptr_t begin, uintptr_t callee, uintptr_t last)
{
    uint8_t code[UNWIND_JUMP_BYTES];
    struct cfi_function function;
    if (!cfi_find(begin, true, walk->resident, &function) || function.begin != begin)
        return false;
    const size_t size = function.end - begin < sizeof(code) ? function.end - begin : sizeof(code);
    if (!peek_code(walk, begin, code, size))
        return false;
    for (size_t i = 1; i + sizeof(int32_t) <= size; i++) {
        const bool jump = code[i - 1] == 0xe9;
        const bool conditional = i >= 2 && code[i - 2] == 0x0f && code[i - 1] >> 4 == 8;
        const uintptr_t to =
            begin + i + sizeof(int32_t) + (uintptr_t)(intptr_t)displacement(code + i);
        if ((jump || conditional) && to >= callee && to <= last)
            return true;
    }
    return false;
}

// Finds out whether an address is a return address, and of a call of the function that begins in
// [callee, last].
static enum proof call_proof(const struct unwind *walk, uintptr_t address, uintptr_t callee,
                             uintptr_t last)
{
    uint8_t before[8];
    if (!peek_code(walk, address - sizeof(before), before, sizeof(before)))
        return PROOF_NONE;
    const bool direct = before[3] == 0xe8; // call displacement
    const bool pointer = before[2] == 0xff && before[3] == 0x15; // call *displacement(%rip)
    if (!direct && !pointer)
        return indirect_call(before) ? PROOF_CALL : PROOF_NONE;
    const uintptr_t to = address + (uintptr_t)(intptr_t)displacement(before + 4);
    uintptr_t target = to;
    if (pointer && !peek_code(walk, to, &target, sizeof(target)))
        return PROOF_NONE;
    const uintptr_t linked = direct ? linkage_target(walk, to) : 0;
    if (linked != 0)
        target = linked;
    const bool calls = target >= callee && target <= last;
    return calls || jumps_to(walk, target, callee, last) ? PROOF_CALLEE : PROOF_OTHER;
}

#else

// Always PROOF_NONE: a call of aarch64 does not put its return address on the stack, so there is
// nothing to search for.
static enum proof call_proof(const struct unwind *walk, uintptr_t address, uintptr_t callee,
                             uintptr_t last)
{
    (void)walk;
    (void)address;
    (void)callee;
    (void)last;
    return PROOF_NONE;
}

#endif

// ---- Search ------------------------------------------------------------------------------------

// Words of the stack, read in blocks, because a search looks at thousands of words.
struct words {
    uintptr_t at; // Address of words[0]; 0: nothing was read yet.
    size_t count;
    uintptr_t words[UNWIND_WORDS];
};

// Returns a word of the stack; 0 if it cannot be read.
static uintptr_t words_get(struct words *words, uintptr_t at)
{
    if (words->at == 0 || at < words->at || at - words->at >= words->count * sizeof(at)) {
        words->at = at;
        words->count = UNWIND_WORDS;
        while (words->count > 0 && !peek(at, words->words, words->count * sizeof(at)))
            words->count /= 2; // Near the end of the stack a shorter read may succeed.
    }
    return words->count > 0 ? words->words[(at - words->at) / sizeof(at)] : 0;
}

// True if the word in the place of the return address could be a code address, assuming that the
// register is `at`. This test saves most of the tries.
static bool words_hope(struct words *words, const struct cfi_function *function, uintptr_t at)
{
    const struct cfi_rule *rule = &function->rules[function->return_register];
    if (function->cfa_expression != 0 || rule->kind != CFI_AT)
        return true;
    at += (uintptr_t)(function->cfa_offset + rule->offset);
    const uintptr_t word = words_get(words, at);
    return word >= UNWIND_SEARCH_BYTES && at - word + UNWIND_SEARCH_BYTES > 2 * UNWIND_SEARCH_BYTES;
}

// True if the caller is further out on the stack. A signal handler is an exception: it may have a
// stack of its own.
static bool walk_outward(const struct unwind *walk, const struct cfi_registers *caller)
{
    return walk->function.signal || caller->value[CFI_STACK] > walk->registers.value[CFI_STACK];
}

// Makes the step with an assumed value of a register. Returns how well the result is proven.
static enum proof walk_try(const struct unwind *walk, uint32_t number, uintptr_t value,
                           struct cfi_registers *caller)
{
    struct cfi_registers trial = walk->registers;
    uint32_t missing;
    trial.known |= UINT64_C(1) << number;
    trial.value[number] = value;
    if (cfi_caller(&walk->function, &trial, caller, &missing) != CFI_CALLER ||
        !walk_outward(walk, caller))
        return PROOF_NONE;
    return call_proof(walk, caller->code, walk->function.begin, walk->function.begin);
}

// True if a caller whose only proof is a call instruction has another such caller, or is where the
// thread begins (*begins).
static bool walk_goes_on(const struct unwind *walk, const struct cfi_registers *caller,
                         bool *begins)
{
    struct unwind next = {.resident = walk->resident, .registers = *caller};
    struct cfi_registers further;
    uint32_t missing;
    *begins = false;
    if (!cfi_find(caller->code, caller->exact, walk->resident, &next.function))
        return false;
    switch (cfi_caller(&next.function, caller, &further, &missing)) {
    case CFI_OUTERMOST:
        *begins = true;
        return true;
    case CFI_CALLER:
        return walk_outward(&next, &further) && call_proof(walk, further.code, next.function.begin,
                                                           next.function.begin) != PROOF_NONE;
    case CFI_UNKNOWN:
    case CFI_LOST:
        break;
    }
    return false;
}

// Finds the caller although a register is unknown. Returns false if no address of the stack leads
// to a caller.
static bool walk_search(const struct unwind *walk, uint32_t number, struct cfi_registers *caller,
                        bool *guessed)
{
    const uintptr_t stack = walk->registers.value[CFI_STACK];
    const uintptr_t first = (stack + UNWIND_ALIGN - 1) / UNWIND_ALIGN * UNWIND_ALIGN;
    struct words words = {.at = 0};
    struct cfi_registers found;
    enum proof best = PROOF_NONE;
    bool begins = false;
    if (number != CFI_FRAME || walk->function.signal)
        return false;
    for (uintptr_t at = first; at - first < UNWIND_SEARCH_BYTES; at += UNWIND_ALIGN) {
        const bool hope = words_hope(&words, &walk->function, at);
        if (words.at != 0 && words.count == 0)
            break; // The stack ends here.
        if (!hope)
            continue;
        const enum proof proof = walk_try(walk, number, at, &found);
        if (proof <= best || (proof != PROOF_CALLEE && !walk_goes_on(walk, &found, &begins)))
            continue;
        *caller = found;
        *guessed = proof == PROOF_OTHER || (proof == PROOF_CALL && (best != PROOF_NONE || !begins));
        if (!*guessed)
            return true;
        best = proof;
    }
    return best != PROOF_NONE;
}

// ---- Walk --------------------------------------------------------------------------------------

// Finds the caller of a function without call frame information that makes a system call, such as
// glibc's clone(). Such functions are short and do not change the stack pointer.
static bool walk_leaf(const struct unwind *walk, struct cfi_registers *caller)
{
    const uintptr_t stack = walk->registers.value[CFI_STACK], code = walk->registers.code;
    *caller = (struct cfi_registers){.known = UINT64_C(1) << CFI_STACK};
    caller->value[CFI_STACK] = stack + sizeof(stack);
    return walk->registers.exact && peek(stack, &caller->code, sizeof(caller->code)) &&
           call_proof(walk, caller->code, code - UNWIND_LEAF_BYTES, code) == PROOF_CALLEE;
}

// Goes to the caller. Returns false if there is no caller, or if the caller is not known;
// addresses->whole says which.
static bool walk_on(struct unwind *walk, struct stack_addresses *addresses)
{
    struct cfi_registers caller;
    uint32_t missing;
    bool guessed = false;
    if (!cfi_find(walk->registers.code, walk->registers.exact, walk->resident, &walk->function)) {
        if (!walk_leaf(walk, &caller))
            return false;
        walk->registers = caller;
        return true;
    }
    const enum cfi_step step = cfi_caller(&walk->function, &walk->registers, &caller, &missing);
    addresses->whole = step == CFI_OUTERMOST;
    if (step == CFI_OUTERMOST || step == CFI_LOST)
        return false;
    if (step == CFI_UNKNOWN && !walk_search(walk, missing, &caller, &guessed))
        return false;
    if (!walk_outward(walk, &caller))
        return false;
    if (guessed && addresses->sure == LOCKSTEP_STACK_FRAMES)
        addresses->sure = addresses->count;
    walk->registers = caller;
    return true;
}

void unwind(uintptr_t code, uintptr_t stack, bool resident, struct stack_addresses *addresses)
{
    struct unwind walk = {.resident = resident, .registers = {.code = code, .exact = true}};
    addresses->count = 0;
    addresses->sure = LOCKSTEP_STACK_FRAMES;
    addresses->whole = false;
    walk.registers.known = UINT64_C(1) << CFI_STACK;
    walk.registers.value[CFI_STACK] = stack;
    do {
        if (addresses->count == LOCKSTEP_STACK_FRAMES) {
            addresses->whole = true;
            return;
        }
        addresses->code[addresses->count++] = walk.registers.code;
    } while (walk_on(&walk, addresses));
}

bool unwind_begins(uintptr_t code, bool resident)
{
    const struct cfi_registers none = {.code = code};
    struct cfi_registers caller;
    struct cfi_function function;
    uint32_t missing;
    if (CFI_STACK == 0)
        return true;
    return cfi_find(code, false, resident, &function) &&
           cfi_caller(&function, &none, &caller, &missing) == CFI_OUTERMOST;
}
