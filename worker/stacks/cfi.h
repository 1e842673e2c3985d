// SPDX-License-Identifier: Apache-2.0
//
// Call frame information (DWARF 5, section 6.4, as .eh_frame has it): how to get from the registers
// in a function to those in its caller. It is found by .eh_frame_hdr of the object that is loaded
// at an address, and read with peek.h only, so that an object that is being unloaded, or one with
// wrong tables, gives a wrong answer or none, and never a crash. Registers have the numbers of
// DWARF. Each of them may be unknown. x86-64 and aarch64; elsewhere nothing is found. Any thread;
// allocates nothing, takes the lock of the loader's list for a moment.

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
    uintptr_t code; // Where it is.
    bool exact; // True if code is the next instruction; false if it is a return address.
    uint64_t known; // Bit n: register n is known.
    uintptr_t value[CFI_REGISTERS];
};

enum cfi_kind {
    CFI_SAME = 0, // The function has not changed it.
    CFI_UNDEFINED, // Its value in the caller is lost. Of the return address: there is no caller.
    CFI_AT, // It is saved at CFA + offset.
    CFI_IS, // It is CFA + offset.
    CFI_REGISTER, // It is in register `offset`.
    CFI_EXPRESSION_AT, // It is saved where the expression at address `expression` says.
    CFI_EXPRESSION_IS, // It is what the expression says.
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
    uint32_t cfa_register; // Unless the CFA is an expression.
    int64_t cfa_offset;
    uintptr_t cfa_expression; // 0: register and offset.
    struct cfi_rule rules[CFI_REGISTERS];
};

enum cfi_step {
    CFI_CALLER, // The registers of the caller are there.
    CFI_OUTERMOST, // There is no caller: a thread or the program begins here.
    CFI_UNKNOWN, // A register that is unknown is needed.
    CFI_LOST, // No information, or none that can be understood.
};

// From the registers in a function to those in its caller. *missing is set with CFI_UNKNOWN.
enum cfi_step cfi_caller(const struct cfi_function *function, const struct cfi_registers *registers,
                         struct cfi_registers *caller, uint32_t *missing);

#endif
