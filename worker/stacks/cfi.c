// SPDX-License-Identifier: Apache-2.0
//
// Applies the rules of call frame information. cfi_find.c finds and reads the rules.

#include "worker/stacks/cfi.h"

#include "worker/stacks/cfi_reader.h"

#include <signal.h>
#include <stddef.h>
#include <ucontext.h>

#define CFI_DEPTH 16 // Most values on the stack of an expression; compilers need three.

// Registers whose values a function preserves for its caller. All other registers are lost.
#if defined(__x86_64__)
#define CFI_SAVED UINT64_C(0x1f048) // rbx, rbp, r12 to r15, and the return address.
#elif defined(__aarch64__)
#define CFI_SAVED UINT64_C(0x7ff80000) // x19 to x30
#else
#define CFI_SAVED UINT64_C(0)
#endif

// ---- Registers ---------------------------------------------------------------------------------

static bool register_get(const struct cfi_registers *registers, uint64_t number, uintptr_t *value,
                         uint32_t *missing)
{
    if (number >= CFI_REGISTERS || (registers->known >> number & 1) == 0) {
        *missing = number < CFI_REGISTERS ? (uint32_t)number : CFI_REGISTERS;
        return false;
    }
    *value = registers->value[number];
    return true;
}

static void register_set(struct cfi_registers *registers, uint32_t number, uintptr_t value)
{
    registers->known |= UINT64_C(1) << number;
    registers->value[number] = value;
}

// ---- Expressions -------------------------------------------------------------------------------

// The operations of DWARF that are supported: those that gcc, clang and the C library's authors
// use.
enum {
    DW_OP_DEREF = 0x06,
    DW_OP_CONST1U = 0x08,
    DW_OP_CONST1S = 0x09,
    DW_OP_CONST2U = 0x0a,
    DW_OP_CONST2S = 0x0b,
    DW_OP_CONST4U = 0x0c,
    DW_OP_CONST4S = 0x0d,
    DW_OP_CONSTU = 0x10,
    DW_OP_CONSTS = 0x11,
    DW_OP_AND = 0x1a,
    DW_OP_MINUS = 0x1c,
    DW_OP_PLUS = 0x22,
    DW_OP_PLUS_UCONST = 0x23,
    DW_OP_LIT0 = 0x30,
    DW_OP_LIT31 = 0x4f,
    DW_OP_BREG0 = 0x70,
    DW_OP_BREG31 = 0x8f,
};

struct expression {
    struct cfi_reader reader;
    const struct cfi_registers *registers;
    uint32_t *missing;
    unsigned depth;
    uintptr_t values[CFI_DEPTH];
};

static void expression_push(struct expression *expression, uintptr_t value)
{
    if (expression->depth == CFI_DEPTH)
        expression->reader.bad = true;
    else
        expression->values[expression->depth++] = value;
}

static uintptr_t expression_pop(struct expression *expression)
{
    if (expression->depth > 0)
        return expression->values[--expression->depth];
    expression->reader.bad = true;
    return 0;
}

// Computes an operation that takes one or two values and gives one value.
static void expression_compute(struct expression *expression, uint8_t operation)
{
    const uintptr_t last = expression_pop(expression);
    uintptr_t result = 0;
    switch (operation) {
    case DW_OP_DEREF:
        if (!peek(last, &result, sizeof(result)))
            expression->reader.bad = true;
        break;
    case DW_OP_PLUS_UCONST:
        result = last + (uintptr_t)reader_uleb(&expression->reader);
        break;
    case DW_OP_AND:
        result = expression_pop(expression) & last;
        break;
    case DW_OP_MINUS:
        result = expression_pop(expression) - last;
        break;
    case DW_OP_PLUS:
        result = expression_pop(expression) + last;
        break;
    default:
        expression->reader.bad = true;
    }
    expression_push(expression, result);
}

static void expression_register(struct expression *expression, uint32_t number)
{
    uintptr_t value = 0;
    const int64_t offset = reader_sleb(&expression->reader);
    if (!register_get(expression->registers, number, &value, expression->missing))
        expression->reader.bad = true;
    expression_push(expression, value + (uintptr_t)offset);
}

static void expression_operation(struct expression *expression, uint8_t operation)
{
    struct cfi_reader *reader = &expression->reader;
    static const uint8_t sizes[] = {1, 2, 4};
    if (operation >= DW_OP_LIT0 && operation <= DW_OP_LIT31)
        expression_push(expression, operation - DW_OP_LIT0);
    else if (operation >= DW_OP_BREG0 && operation <= DW_OP_BREG31)
        expression_register(expression, operation - DW_OP_BREG0);
    else if (operation >= DW_OP_CONST1U && operation <= DW_OP_CONST4S && operation % 2 == 0)
        expression_push(expression,
                        reader_unsigned(reader, sizes[(operation - DW_OP_CONST1U) / 2]));
    else if (operation >= DW_OP_CONST1U && operation <= DW_OP_CONST4S)
        expression_push(expression,
                        (uintptr_t)reader_signed(reader, sizes[(operation - DW_OP_CONST1S) / 2]));
    else if (operation == DW_OP_CONSTU)
        expression_push(expression, (uintptr_t)reader_uleb(reader));
    else if (operation == DW_OP_CONSTS)
        expression_push(expression, (uintptr_t)reader_sleb(reader));
    else
        expression_compute(expression, operation);
}

// Computes an expression. In memory an expression is its number of bytes, and then these bytes.
static bool expression_value(uintptr_t at, const uintptr_t *cfa,
                             const struct cfi_registers *registers, uintptr_t *value,
                             uint32_t *missing)
{
    struct expression expression = {.registers = registers, .missing = missing};
    struct cfi_reader *reader = &expression.reader;
    reader_init(reader, at, UINTPTR_MAX, false);
    const uint64_t bytes = reader_uleb(reader);
    if (reader->bad || bytes > CFI_WINDOW)
        return false;
    reader_init(reader, reader->at, reader->at + bytes, false);
    if (cfa)
        expression_push(&expression, *cfa);
    while (reader_more(reader))
        expression_operation(&expression, reader_byte(reader));
    *value = expression_pop(&expression);
    return !reader->bad;
}

// ---- Steps -------------------------------------------------------------------------------------

static bool function_cfa(const struct cfi_function *function, const struct cfi_registers *registers,
                         uintptr_t *cfa, uint32_t *missing)
{
    if (function->cfa_expression != 0)
        return expression_value(function->cfa_expression, NULL, registers, cfa, missing);
    if (!register_get(registers, function->cfa_register, cfa, missing))
        return false;
    *cfa += (uintptr_t)function->cfa_offset;
    return true;
}

// Computes the value of a register in the caller. Returns false if it is unknown.
static bool function_register(const struct cfi_function *function, uint32_t number, uintptr_t cfa,
                              const struct cfi_registers *registers, uintptr_t *value)
{
    const struct cfi_rule *rule = &function->rules[number];
    uintptr_t at = cfa + (uintptr_t)rule->offset;
    uint32_t missing;
    switch (rule->kind) {
    case CFI_SAME:
        return (CFI_SAVED >> number & 1) != 0 && register_get(registers, number, value, &missing);
    case CFI_UNDEFINED:
        return false;
    case CFI_IS:
        *value = at;
        return true;
    case CFI_REGISTER:
        return register_get(registers, (uint64_t)rule->offset, value, &missing);
    case CFI_EXPRESSION_IS:
        return expression_value(rule->expression, &cfa, registers, value, &missing);
    case CFI_EXPRESSION_AT:
        if (!expression_value(rule->expression, &cfa, registers, &at, &missing))
            return false;
        break;
    case CFI_AT:
        break;
    }
    return peek(at, value, sizeof(*value));
}

// Reads the registers that the kernel saved on the handler's stack; the handler returns to this
// frame.
static enum cfi_step cfi_interrupted(const struct cfi_registers *registers,
                                     struct cfi_registers *caller)
{
    ucontext_t context;
    uint32_t missing;
    uintptr_t at;
    if (!register_get(registers, CFI_STACK, &at, &missing))
        return CFI_LOST;
#if defined(__x86_64__)
    static const int order[] = {REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI,
                                REG_RBP, REG_RSP, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                REG_R12, REG_R13, REG_R14, REG_R15};
    if (!peek(at, &context, offsetof(ucontext_t, uc_sigmask)))
        return CFI_LOST;
    for (uint32_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
        register_set(caller, i, (uintptr_t)context.uc_mcontext.gregs[order[i]]);
    caller->code = (uintptr_t)context.uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    if (!peek(at + sizeof(siginfo_t), &context, offsetof(ucontext_t, uc_mcontext.__reserved)))
        return CFI_LOST;
    for (uint32_t i = 0; i < CFI_STACK; i++)
        register_set(caller, i, (uintptr_t)context.uc_mcontext.regs[i]);
    register_set(caller, CFI_STACK, (uintptr_t)context.uc_mcontext.sp);
    caller->code = (uintptr_t)context.uc_mcontext.pc;
#else
    (void)context;
    return CFI_LOST;
#endif
    caller->exact = true;
    return CFI_CALLER;
}

// Removes the signature that aarch64 may put in the unused bits of a return address.
static uintptr_t return_address(uintptr_t value)
{
#if defined(__aarch64__)
    return value & ((UINT64_C(1) << 48) - 1);
#else
    return value;
#endif
}

enum cfi_step cfi_caller(const struct cfi_function *function, const struct cfi_registers *registers,
                         struct cfi_registers *caller, uint32_t *missing)
{
    const uint32_t column = function->return_register;
    uintptr_t cfa, value;
    *caller = (struct cfi_registers){.known = 0};
    *missing = CFI_REGISTERS;
    if (function->signal)
        return cfi_interrupted(registers, caller);
    if (function->rules[column].kind == CFI_UNDEFINED)
        return CFI_OUTERMOST;
    if (!function_cfa(function, registers, &cfa, missing))
        return *missing < CFI_REGISTERS ? CFI_UNKNOWN : CFI_LOST;
    for (uint32_t i = 0; i < CFI_REGISTERS; i++)
        if (function_register(function, i, cfa, registers, &value))
            register_set(caller, i, value);
    if (function->rules[CFI_STACK].kind == CFI_SAME)
        register_set(caller, CFI_STACK, cfa);
    if ((caller->known >> column & 1) == 0)
        return CFI_LOST;
    caller->code = return_address(caller->value[column]);
    return caller->code == 0 ? CFI_OUTERMOST : CFI_CALLER;
}
