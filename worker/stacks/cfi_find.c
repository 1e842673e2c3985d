// SPDX-License-Identifier: Apache-2.0
//
// Finds the rules that hold at an address: the object in the loader's list, the function in the
// sorted table of .eh_frame_hdr, and the rules by running the instructions of its CIE and FDE.
// Every length, count and register number is checked before it is used, and every loop ends when
// its reader ends.

#include "worker/stacks/cfi_find.h"

#include "worker/stacks/cfi.h"

#include "worker/stacks/cfi_reader.h"

#include <link.h>
#include <string.h>

#define CFI_STATES 8 // Most states that DW_CFA_remember_state can save.
#define CFI_CIE_BYTES (1u << 16)
#define CFI_FDE_BYTES (1u << 24)

// DW_EH_PE_*: the encoding of a pointer.
enum {
    POINTER_OMITTED = 0xff,
    POINTER_FORM = 0x0f,
    POINTER_BASE = 0x70,
    POINTER_ABSOLUTE = 0x00,
    POINTER_FROM_HERE = 0x10, // pcrel
    POINTER_TABLE = 0x3b, // datarel, sdata4: the only supported encoding of a sorted table.
};

// ---- Objects -----------------------------------------------------------------------------------

struct cfi_search {
    uintptr_t code;
    uintptr_t header; // .eh_frame_hdr of the object at `code`; 0: none.
    uintptr_t header_end;
};

static int object_visit(struct dl_phdr_info *info, size_t bytes, void *context)
{
    struct cfi_search *search = context;
    bool holds = false;
    uintptr_t header = 0, header_end = 0;
    (void)bytes;
    for (uint32_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD)
            holds |= search->code >= begin && search->code - begin < part->p_memsz;
        if (part->p_type == PT_GNU_EH_FRAME) {
            header = begin;
            header_end = begin + part->p_memsz;
        }
    }
    if (!holds)
        return 0;
    search->header = header;
    search->header_end = header_end;
    return 1;
}

// ---- Functions ---------------------------------------------------------------------------------

static uintptr_t read_pointer(struct cfi_reader *reader, uint8_t encoding)
{
    const uintptr_t here = reader->at;
    uintptr_t value;
    switch (encoding & POINTER_FORM) {
    case 0x00: // absptr
        value = (uintptr_t)reader_unsigned(reader, sizeof(uintptr_t));
        break;
    case 0x01:
        value = (uintptr_t)reader_uleb(reader);
        break;
    case 0x02:
    case 0x03:
    case 0x04:
        value = (uintptr_t)reader_unsigned(reader, 1u << ((encoding & POINTER_FORM) - 1));
        break;
    case 0x09:
        value = (uintptr_t)reader_sleb(reader);
        break;
    case 0x0a:
    case 0x0b:
    case 0x0c:
        value = (uintptr_t)reader_signed(reader, 1u << ((encoding & POINTER_FORM) - 9));
        break;
    default:
        reader->bad = true;
        return 0;
    }
    if ((encoding & POINTER_BASE) == POINTER_FROM_HERE)
        return here + value;
    if ((encoding & POINTER_BASE) != POINTER_ABSOLUTE)
        reader->bad = true;
    return value;
}

// Reads an entry of the sorted table: the beginning of a function, and its FDE. Both are stored
// relative to the header.
static bool table_entry(const struct cfi_search *search, uintptr_t table, uint64_t index,
                        bool resident, uintptr_t entry[2])
{
    struct cfi_reader reader;
    reader_init(&reader, table + index * 8, search->header_end, resident);
    entry[0] = search->header + (uintptr_t)reader_signed(&reader, 4);
    entry[1] = search->header + (uintptr_t)reader_signed(&reader, 4);
    return !reader.bad;
}

// Returns the FDE of the last function that begins at or below the address; 0: none.
static uintptr_t find_fde(const struct cfi_search *search, bool resident)
{
    struct cfi_reader reader;
    uintptr_t entry[2] = {0, 0}, fde = 0;
    reader_init(&reader, search->header, search->header_end, resident);
    const uint8_t version = reader_byte(&reader);
    const uint8_t frame_encoding = reader_byte(&reader);
    const uint8_t count_encoding = reader_byte(&reader);
    const uint8_t table_encoding = reader_byte(&reader);
    if (reader.bad || version != 1 || frame_encoding == POINTER_OMITTED ||
        count_encoding == POINTER_OMITTED || table_encoding != POINTER_TABLE)
        return 0;
    (void)read_pointer(&reader, frame_encoding);
    const uint64_t count = read_pointer(&reader, count_encoding);
    const uintptr_t table = reader.at;
    if (reader.bad || count > (search->header_end - table) / 8)
        return 0;
    uint64_t low = 0, high = count;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (!table_entry(search, table, middle, resident, entry))
            return 0;
        if (entry[0] > search->code) {
            high = middle;
        } else {
            fde = entry[1];
            low = middle + 1;
        }
    }
    return fde;
}

// ---- Rules -------------------------------------------------------------------------------------

struct cfi_cie {
    uint64_t code_factor;
    int64_t data_factor;
    uint8_t pointers; // Encoding of the addresses in the CIE's FDEs.
    bool augmented; // True if the CIE's FDEs have augmentation data.
    uintptr_t begin, end; // The instructions of the CIE.
};

// Reads the head of a CIE or FDE. Afterwards the reader contains the rest of the CIE or FDE. *id is
// 0 for a CIE; for an FDE its CIE begins *id bytes before *id_at.
static bool read_head(struct cfi_reader *reader, uintptr_t at, uint64_t most, bool resident,
                      uint32_t *id, uintptr_t *id_at)
{
    reader_init(reader, at, at + 12, resident);
    uint64_t length = reader_unsigned(reader, 4);
    if (length == UINT32_MAX)
        length = reader_unsigned(reader, 8);
    if (reader->bad || length < 4 || length > most)
        return false;
    reader_init(reader, reader->at, reader->at + length, resident);
    *id_at = reader->at;
    *id = (uint32_t)reader_unsigned(reader, 4);
    return !reader->bad;
}

// Reads the data that the letters after 'z' announce.
static void read_augmentation(struct cfi_reader *reader, const char *letters, struct cfi_cie *cie,
                              struct cfi_function *function)
{
    for (; *letters != '\0' && !reader->bad; letters++) {
        if (*letters == 'R')
            cie->pointers = reader_byte(reader);
        else if (*letters == 'P')
            (void)read_pointer(reader, reader_byte(reader) & 0x7f);
        else if (*letters == 'L')
            (void)reader_byte(reader);
        else if (*letters == 'S')
            function->signal = true;
        else if (*letters != 'B' && *letters != 'G') // On aarch64: how return addresses are signed.
            reader->bad = true;
    }
}

static bool read_cie(uintptr_t at, bool resident, struct cfi_cie *cie,
                     struct cfi_function *function)
{
    struct cfi_reader reader;
    char letters[8] = "";
    uintptr_t id_at;
    uint32_t id;
    size_t count = 0;
    if (!read_head(&reader, at, CFI_CIE_BYTES, resident, &id, &id_at) || id != 0)
        return false;
    const uint8_t version = reader_byte(&reader);
    for (char c = (char)reader_byte(&reader); c != '\0'; c = (char)reader_byte(&reader)) {
        if (count == sizeof(letters) - 1)
            return false;
        letters[count++] = c;
    }
    cie->code_factor = reader_uleb(&reader);
    cie->data_factor = reader_sleb(&reader);
    function->return_register =
        (uint32_t)(version == 1 ? reader_byte(&reader) : reader_uleb(&reader));
    cie->pointers = POINTER_ABSOLUTE;
    cie->augmented = letters[0] == 'z';
    if ((version != 1 && version != 3) || function->return_register >= CFI_REGISTERS ||
        (letters[0] != '\0' && !cie->augmented))
        return false;
    cie->begin = reader.at;
    if (cie->augmented) {
        const uint64_t bytes = reader_uleb(&reader);
        cie->begin = reader.at + bytes;
        if (bytes > reader.end - reader.at)
            return false;
        read_augmentation(&reader, letters + 1, cie, function);
    }
    cie->end = reader.end;
    return !reader.bad;
}

// The state of running the instructions of a CIE or FDE.
struct cfi_run {
    struct cfi_reader reader;
    const struct cfi_cie *cie;
    struct cfi_function *function;
    // The rules after the CIE's instructions; NULL while the CIE's instructions run.
    const struct cfi_function *initial;
    uintptr_t location;
    uint32_t depth;
    struct cfi_function remembered[CFI_STATES];
};

static void run_rule(struct cfi_run *run, uint64_t number, enum cfi_kind kind, int64_t offset)
{
    if (number < CFI_REGISTERS)
        run->function->rules[number] = (struct cfi_rule){.kind = kind, .offset = offset};
}

static void run_expression(struct cfi_run *run, enum cfi_kind kind)
{
    const uint64_t number = reader_uleb(&run->reader);
    const uintptr_t at = run->reader.at;
    reader_skip(&run->reader, reader_uleb(&run->reader));
    if (number < CFI_REGISTERS)
        run->function->rules[number] = (struct cfi_rule){.kind = kind, .expression = at};
}

static void run_restore(struct cfi_run *run, uint64_t number)
{
    if (!run->initial)
        run->reader.bad = true;
    else if (number < CFI_REGISTERS)
        run->function->rules[number] = run->initial->rules[number];
}

static void run_cfa(struct cfi_run *run, uint64_t number, int64_t offset)
{
    run->function->cfa_register = number < CFI_REGISTERS ? (uint32_t)number : CFI_REGISTERS;
    run->function->cfa_offset = offset;
    run->function->cfa_expression = 0;
}

static void run_state(struct cfi_run *run, bool remember)
{
    if (remember ? run->depth == CFI_STATES : run->depth == 0)
        run->reader.bad = true;
    else if (remember)
        run->remembered[run->depth++] = *run->function;
    else
        *run->function = run->remembered[--run->depth];
}

static int64_t run_factored(struct cfi_run *run, int64_t value)
{
    return (int64_t)((uint64_t)value * (uint64_t)run->cie->data_factor);
}

static void run_advance(struct cfi_run *run, uint64_t delta)
{
    run->location += (uintptr_t)(delta * run->cie->code_factor);
}

// Runs an instruction that sets the rule of a register. Returns false if it is another instruction.
static bool run_register(struct cfi_run *run, uint8_t instruction)
{
    struct cfi_reader *reader = &run->reader;
    uint64_t number;
    switch (instruction) {
    case 0x05: // DW_CFA_offset_extended
        number = reader_uleb(reader);
        run_rule(run, number, CFI_AT, run_factored(run, (int64_t)reader_uleb(reader)));
        return true;
    case 0x06: // DW_CFA_restore_extended
        run_restore(run, reader_uleb(reader));
        return true;
    case 0x07: // DW_CFA_undefined
        run_rule(run, reader_uleb(reader), CFI_UNDEFINED, 0);
        return true;
    case 0x08: // DW_CFA_same_value
        run_rule(run, reader_uleb(reader), CFI_SAME, 0);
        return true;
    case 0x09: // DW_CFA_register
        number = reader_uleb(reader);
        run_rule(run, number, CFI_REGISTER, (int64_t)reader_uleb(reader));
        return true;
    case 0x10: // DW_CFA_expression
        run_expression(run, CFI_EXPRESSION_AT);
        return true;
    case 0x11: // DW_CFA_offset_extended_sf
        number = reader_uleb(reader);
        run_rule(run, number, CFI_AT, run_factored(run, reader_sleb(reader)));
        return true;
    case 0x14: // DW_CFA_val_offset
        number = reader_uleb(reader);
        run_rule(run, number, CFI_IS, run_factored(run, (int64_t)reader_uleb(reader)));
        return true;
    case 0x15: // DW_CFA_val_offset_sf
        number = reader_uleb(reader);
        run_rule(run, number, CFI_IS, run_factored(run, reader_sleb(reader)));
        return true;
    case 0x16: // DW_CFA_val_expression
        run_expression(run, CFI_EXPRESSION_IS);
        return true;
    default:
        return false;
    }
}

// Runs an instruction that sets the CFA. Returns false if it is another instruction.
static bool run_frame(struct cfi_run *run, uint8_t instruction)
{
    struct cfi_reader *reader = &run->reader;
    uint64_t number;
    switch (instruction) {
    case 0x0c: // DW_CFA_def_cfa
        number = reader_uleb(reader);
        run_cfa(run, number, (int64_t)reader_uleb(reader));
        return true;
    case 0x0d: // DW_CFA_def_cfa_register
        run_cfa(run, reader_uleb(reader), run->function->cfa_offset);
        return true;
    case 0x0e: // DW_CFA_def_cfa_offset
        run->function->cfa_offset = (int64_t)reader_uleb(reader);
        return true;
    case 0x0f: // DW_CFA_def_cfa_expression
        run->function->cfa_expression = reader->at;
        reader_skip(reader, reader_uleb(reader));
        return true;
    case 0x12: // DW_CFA_def_cfa_sf
        number = reader_uleb(reader);
        run_cfa(run, number, run_factored(run, reader_sleb(reader)));
        return true;
    case 0x13: // DW_CFA_def_cfa_offset_sf
        run->function->cfa_offset = run_factored(run, reader_sleb(reader));
        return true;
    default:
        return false;
    }
}

static void run_other(struct cfi_run *run, uint8_t instruction)
{
    struct cfi_reader *reader = &run->reader;
    switch (instruction) {
    case 0x00: // DW_CFA_nop
    case 0x2d: // On aarch64: from here on the return address is signed.
        return;
    case 0x01: // DW_CFA_set_loc
        run->location = read_pointer(reader, run->cie->pointers);
        return;
    case 0x02: // DW_CFA_advance_loc1, _loc2 and _loc4
    case 0x03:
    case 0x04:
        run_advance(run, reader_unsigned(reader, 1u << (instruction - 2)));
        return;
    case 0x0a: // DW_CFA_remember_state
    case 0x0b:
        run_state(run, instruction == 0x0a);
        return;
    case 0x2e: // DW_CFA_GNU_args_size
        (void)reader_uleb(reader);
        return;
    default:
        reader->bad = true;
    }
}

// Runs instructions until one applies only after the address. Returns false if an instruction is
// bad.
static bool run_instructions(struct cfi_run *run, uintptr_t code)
{
    while (reader_more(&run->reader) && run->location <= code) {
        const uint8_t instruction = reader_byte(&run->reader);
        const uint8_t low = instruction & 0x3f;
        switch (instruction >> 6) {
        case 1: // DW_CFA_advance_loc
            run_advance(run, low);
            break;
        case 2: // DW_CFA_offset
            run_rule(run, low, CFI_AT, run_factored(run, (int64_t)reader_uleb(&run->reader)));
            break;
        case 3: // DW_CFA_restore
            run_restore(run, low);
            break;
        default:
            if (!run_register(run, instruction) && !run_frame(run, instruction))
                run_other(run, instruction);
        }
    }
    return !run->reader.bad;
}

static bool read_fde(uintptr_t fde, uintptr_t code, bool resident, struct cfi_function *function)
{
    struct cfi_run run = {.function = function};
    struct cfi_cie cie;
    uintptr_t id_at;
    uint32_t id;
    if (!read_head(&run.reader, fde, CFI_FDE_BYTES, resident, &id, &id_at) || id == 0 ||
        !read_cie(id_at - id, resident, &cie, function))
        return false;
    run.cie = &cie;
    function->begin = read_pointer(&run.reader, cie.pointers);
    function->end = function->begin + read_pointer(&run.reader, cie.pointers & POINTER_FORM);
    if (cie.augmented)
        reader_skip(&run.reader, reader_uleb(&run.reader));
    if (run.reader.bad || code < function->begin || code >= function->end)
        return false;
    const struct cfi_reader own = run.reader;
    reader_init(&run.reader, cie.begin, cie.end, resident);
    if (!run_instructions(&run, UINTPTR_MAX))
        return false;
    const struct cfi_function initial = *function;
    run.reader = own;
    run.initial = &initial;
    run.location = function->begin;
    return run_instructions(&run, code);
}

bool cfi_find(uintptr_t code, bool exact, bool resident, struct cfi_function *function)
{
#if defined(__x86_64__) || defined(__aarch64__)
    struct cfi_search search = {.code = code - !exact};
    memset(function, 0, sizeof(*function));
    if (dl_iterate_phdr(object_visit, &search) == 0 || search.header == 0)
        return false;
    const uintptr_t fde = find_fde(&search, resident);
    return fde != 0 && read_fde(fde, search.code, resident, function);
#else
    (void)code;
    (void)exact;
    (void)resident;
    (void)function;
    return false;
#endif
}
