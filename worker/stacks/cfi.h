// SPDX-License-Identifier: Apache-2.0
//
// Call frame information (DWARF 5, section 6.4, as .eh_frame has it): how to get from the registers
// in a function to the registers in its caller. The .eh_frame_hdr of the object that is loaded at
// an address leads to it. All of it is read with peek.h, so an object that is being unloaded or has
// wrong tables gives a wrong answer or none, but never a crash. Registers have the numbers of
// DWARF, and each may be unknown. For x86-64 and aarch64; elsewhere nothing is found. Any thread;
// allocates nothing, and takes the lock of the loader's list for a moment.

#ifndef WORKER_STACKS_CFI_H
#define WORKER_STACKS_CFI_H

#include <stdbool.h>
#include <stdint.h>

#define CFI_REGISTERS 33

#if defined(__x86_64__)
#define CFI_FRAME 6 // rbp
#define CFI_STACK 7 // rsp
#elif defined(__aarch64__)
#define CFI_FRAME 29
#define CFI_STACK 31
#else
#define CFI_FRAME 0
#define CFI_STACK 0
#endif

// The registers of one activation.
struct cfi_registers {
    uintptr_t code; // The place in the code.
    bool exact; // True if code is the next instruction; false if it is a return address.
    uint64_t known; // Bit n is 1 if register n is known.
    uintptr_t value[CFI_REGISTERS];
};

enum cfi_kind {
    CFI_SAME = 0, // The function has not changed the register.
    CFI_UNDEFINED, // The caller's value is lost. For the return address: there is no caller.
    CFI_AT, // The caller's value is saved at CFA + offset.
    CFI_IS, // The caller's value is CFA + offset.
    CFI_REGISTER, // The caller's value is in register `offset`.
    CFI_EXPRESSION_AT, // The value is saved at the result of the expression at `expression`.
    CFI_EXPRESSION_IS, // The value is the result of that expression.
};

struct cfi_rule {
    enum cfi_kind kind;
    int64_t offset;
    uintptr_t expression;
};

// A function, and its rules at one address.
struct cfi_function {
    uintptr_t begin, end;
    bool signal; // True if the kernel made this frame for a signal handler.
    uint32_t return_register; // Number of the column of the return address.
    uint32_t
        cfa_register; // The CFA is this register plus cfa_offset, unless cfa_expression is set.
    int64_t cfa_offset;
    uintptr_t cfa_expression; // 0: none.
    struct cfi_rule rules[CFI_REGISTERS];
};

enum cfi_step {
    CFI_CALLER, // The registers of the caller were found.
    CFI_OUTERMOST, // There is no caller: a thread or the program begins here.
    CFI_UNKNOWN, // An unknown register is needed: *missing.
    CFI_LOST, // There is no information that can be understood.
};

// Finds the registers of the caller from the registers in a function.
enum cfi_step cfi_caller(const struct cfi_function *function, const struct cfi_registers *registers,
                         struct cfi_registers *caller, uint32_t *missing);

#endif
