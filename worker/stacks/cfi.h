// SPDX-License-Identifier: Apache-2.0
//
// Call frame information (DWARF 5, section 6.4, in the form of .eh_frame): computes the registers
// in a function's caller from the registers in the function. The .eh_frame_hdr of the object that
// is loaded at an address leads to the information. All of it is read with peek.h. So an object
// that is being unloaded or has wrong tables gives a wrong result or none, but never a crash.
// Registers have DWARF's numbers, and each register may be unknown. For x86-64 and aarch64; on
// other machines nothing is found. Any thread; allocates nothing, and takes the lock of the
// loader's list for a moment.

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

// The registers of one frame.
struct cfi_registers {
    uintptr_t code; // The current address in the code.
    bool exact; // True if code is the next instruction; false if it is a return address.
    uint64_t known; // Bit n is 1 if register n is known.
    uintptr_t value[CFI_REGISTERS];
};

enum cfi_kind {
    CFI_SAME = 0, // The function has not changed the register.
    // The caller's value is lost. If this is the rule of the return address: there is no caller.
    CFI_UNDEFINED,
    CFI_AT, // The caller's value is saved at CFA + offset.
    CFI_IS, // The caller's value is CFA + offset.
    CFI_REGISTER, // The caller's value is in register `offset`.
    CFI_EXPRESSION_AT, // The caller's value is saved at the address that `expression` computes.
    CFI_EXPRESSION_IS, // The caller's value is the result of `expression`.
};

struct cfi_rule {
    enum cfi_kind kind;
    int64_t offset;
    uintptr_t expression;
};

// A function, and its rules at one address in the function.
struct cfi_function {
    uintptr_t begin, end;
    bool signal; // True if the kernel made this frame for a signal handler.
    uint32_t return_register; // DWARF number of the register that holds the return address.
    // The CFA (canonical frame address) is this register plus cfa_offset, unless cfa_expression
    // is set.
    uint32_t cfa_register;
    int64_t cfa_offset;
    uintptr_t cfa_expression; // Address of an expression that computes the CFA; 0: none.
    struct cfi_rule rules[CFI_REGISTERS];
};

enum cfi_step {
    CFI_CALLER, // The registers of the caller were found.
    CFI_OUTERMOST, // There is no caller: a thread or the program begins here.
    CFI_UNKNOWN, // A needed register is unknown; *missing is its number.
    CFI_LOST, // There is no information, or it cannot be understood.
};

// Computes the registers of the caller from the registers in a function.
enum cfi_step cfi_caller(const struct cfi_function *function, const struct cfi_registers *registers,
                         struct cfi_registers *caller, uint32_t *missing);

#endif
