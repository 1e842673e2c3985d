// SPDX-License-Identifier: Apache-2.0
//
// Names of code: of this program, static functions too, of the C library, of the kernel's object
// and of no object at all; and files that were cut, damaged or made to mislead.

#include "base/clock.h"
#include "tests/support/bounds.h"
#include "worker/stacks/elf_names.h"
#include "worker/stacks/symbols.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

__attribute__((noinline)) static int nobody_exports_this(int value)
{
    return value + errno;
}

static struct stack_frame name_of(uintptr_t address, bool files)
{
    struct stack_frame frame;
    memset(&frame, 0x55, sizeof(frame));
    symbols_name(&frame, &address, 1, files);
    return frame;
}

static void test_static_function(void **state)
{
    const uintptr_t address = (uintptr_t)nobody_exports_this;
    (void)state;
    assert_true(nobody_exports_this(1) >= 1);
    const struct stack_frame frame = name_of(address + 1, true);
    assert_string_equal(frame.symbol, "nobody_exports_this");
    assert_string_equal(frame.object, "test_symbols");
    const struct stack_frame first = name_of(address, true);
    assert_string_equal(first.symbol, "nobody_exports_this");
    assert_int_equal(first.offset, frame.offset - 1);
    assert_true(frame.offset < 1u << 30); // The offset is in the file, not in memory.
}

// Parts of a name that a compiler adds are cut off. Parts that belong to the language are kept.
static void test_parts_that_compilers_add(void **state)
{
    static const char *const names[][2] = {
        {"take_rows", "take_rows"},
        {"take_rows.constprop.0", "take_rows"},
        {"take_rows.part.12", "take_rows"},
        {"take_rows.isra.0", "take_rows"},
        {"take_rows.cold", "take_rows"},
        {"take_rows.isra.0.constprop.1.cold", "take_rows"},
        {"take_rows.lto_priv.0.lto_priv.1", "take_rows"},
        {"take_rows.llvm.1234567890", "take_rows"},
        {"take_rows.7", "take_rows.7"},
        {"main.step", "main.step"},
        {"main.part", "main"},
        {"main.particle", "main.particle"},
        {"main.cold.", "main.cold."},
        {".cold", ".cold"},
        {".0", ".0"},
        {".", "."},
        {"", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char name[64];
        snprintf(name, sizeof(name), "%s", names[i][0]);
        elf_name_cut(name);
        assert_string_equal(name, names[i][1]);
    }
}

__attribute__((noinline)) static int variant(int value) __asm__("variant.constprop.0");
static int variant(int value)
{
    return value + errno;
}

static void test_variant_of_a_function(void **state)
{
    (void)state;
    assert_true(variant(1) >= 1);
    const struct stack_frame frame = name_of((uintptr_t)variant + 1, true);
    assert_string_equal(frame.symbol, "variant");
}

static void test_no_file_is_opened(void **state)
{
    (void)state;
    const struct stack_frame frame = name_of((uintptr_t)nobody_exports_this, false);
    assert_string_equal(frame.symbol, "");
    assert_string_equal(frame.object, "test_symbols");
    assert_true(frame.offset > 0);
}

// If the library has several names for a function, the one that people know is chosen.
static void test_function_of_the_c_library(void **state)
{
    // Not the address of a wrapper that a sanitizer puts before it.
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    (void)state;
    assert_non_null(libc);
    const struct stack_frame frame = name_of((uintptr_t)dlsym(libc, "fdopen") + 1, true);
    assert_string_equal(frame.object, "libc.so.6");
    assert_string_equal(frame.symbol, "fdopen");
    dlclose(libc);
}

static void test_no_object(void **state)
{
    (void)state;
    void *generated = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(generated != MAP_FAILED);
    const uintptr_t nowhere[] = {1, 4096, (uintptr_t)generated, UINTPTR_MAX - 1, UINTPTR_MAX};
    for (size_t i = 0; i < sizeof(nowhere) / sizeof(nowhere[0]); i++) {
        const struct stack_frame frame = name_of(nowhere[i], true);
        assert_string_equal(frame.object, "");
        assert_string_equal(frame.symbol, "");
        assert_true(frame.offset == nowhere[i]);
    }
    munmap(generated, 4096);
}

// The kernel's object has a name and no file, also where a file has its name.
static void test_object_of_the_kernel(void **state)
{
    const uintptr_t vdso = getauxval(AT_SYSINFO_EHDR);
    (void)state;
    if (vdso == 0)
        skip();
    const struct stack_frame frame = name_of(vdso + 64, true);
    assert_non_null(strstr(frame.object, "vdso"));
    assert_string_equal(frame.symbol, "");
}

// More addresses than are looked for at once, of two objects in turn, with frames that have no
// address between them.
static void test_many(void **state)
{
    enum {
        MANY = 2048
    };
    static struct stack_frame frames[MANY];
    static uintptr_t addresses[MANY];
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    (void)state;
    for (size_t i = 0; i < MANY; i++) {
        snprintf(frames[i].symbol, sizeof(frames[i].symbol), "python");
        addresses[i] = i % 3 == 0   ? 0
                       : i % 3 == 1 ? (uintptr_t)nobody_exports_this
                                    : (uintptr_t)dlsym(libc, "fdopen");
    }
    symbols_name(frames, addresses, MANY, true);
    for (size_t i = 0; i < MANY; i++)
        assert_string_equal(frames[i].symbol, i % 3 == 0   ? "python"
                                              : i % 3 == 1 ? "nobody_exports_this"
                                                           : "fdopen");
    dlclose(libc);
}

// ---- Files -------------------------------------------------------------------------------------

// A file of three sections: nothing, symbols, names.
struct small_elf {
    Elf64_Ehdr header;
    Elf64_Shdr sections[3];
    Elf64_Sym symbols[6];
    char strings[64];
};

#define SMALL_STRINGS "\0narrow\0wide\0__alias\0data\0bad\tname"

static struct small_elf small_elf(void)
{
    struct small_elf elf = {
        .header = {.e_shoff = offsetof(struct small_elf, sections),
                   .e_shentsize = sizeof(Elf64_Shdr),
                   .e_shnum = 3},
        .sections = {{.sh_type = SHT_NULL},
                     {.sh_type = SHT_SYMTAB,
                      .sh_link = 2,
                      .sh_offset = offsetof(struct small_elf, symbols),
                      .sh_size = sizeof(elf.symbols),
                      .sh_entsize = sizeof(Elf64_Sym)},
                     {.sh_type = SHT_STRTAB,
                      .sh_offset = offsetof(struct small_elf, strings),
                      .sh_size = sizeof(elf.strings)}},
        .symbols = {{.st_name = 8, .st_value = 100, .st_size = 100},
                    {.st_name = 13, .st_value = 120, .st_size = 10},
                    {.st_name = 1, .st_value = 120, .st_size = 10},
                    {.st_name = 21, .st_value = 121, .st_size = 10},
                    {.st_name = 26, .st_value = 300, .st_size = 1},
                    {.st_name = 8, .st_value = UINT64_MAX, .st_size = 1}},
        .strings = SMALL_STRINGS,
    };
    memcpy(elf.header.e_ident, ELFMAG, SELFMAG);
    elf.header.e_ident[EI_CLASS] = ELFCLASS64;
    elf.header.e_ident[EI_DATA] =
        __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;
    for (size_t i = 0; i < 6; i++) {
        elf.symbols[i].st_shndx = 1;
        elf.symbols[i].st_info = ELF64_ST_INFO(STB_LOCAL, i == 3 ? STT_OBJECT : STT_FUNC);
    }
    return elf;
}

static int file_of(const void *bytes, size_t size)
{
    const int fd = memfd_create("elf", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, size), (ssize_t)size);
    return fd;
}

#define WANTS 7
static const uint64_t wanted[WANTS] = {99, 100, 119, 120, 129, 130, 300};

static bool names_of(int fd, char names[WANTS][LOCKSTEP_SYMBOL_BYTES])
{
    struct elf_want wants[WANTS];
    for (size_t i = 0; i < WANTS; i++) {
        names[i][0] = '\0';
        wants[i] = (struct elf_want){.address = wanted[i], .name = names[i]};
    }
    return elf_names(fd, wants, WANTS);
}

static bool names_of_small(const struct small_elf *elf, size_t size,
                           char names[WANTS][LOCKSTEP_SYMBOL_BYTES])
{
    const int fd = file_of(elf, size);
    const bool read = names_of(fd, names);
    close(fd);
    return read;
}

// Sizes decide, the innermost function wins, and of its names the one with fewer underscores.
static void test_table(void **state)
{
    static const char *const expected[WANTS] = {"",       "wide", "wide",    "narrow",
                                                "narrow", "wide", "bad?name"};
    char names[WANTS][LOCKSTEP_SYMBOL_BYTES];
    struct small_elf elf = small_elf();
    (void)state;
    assert_true(names_of_small(&elf, sizeof(elf), names));
    for (size_t i = 0; i < WANTS; i++)
        assert_string_equal(names[i], expected[i]);
    elf.sections[1].sh_type = SHT_DYNSYM; // Stripped.
    assert_true(names_of_small(&elf, sizeof(elf), names));
    assert_string_equal(names[3], "narrow");
}

static void test_impossible_tables(void **state)
{
    char names[WANTS][LOCKSTEP_SYMBOL_BYTES];
    (void)state;
#define REFUSED(change) \
    do { \
        struct small_elf elf = small_elf(); \
        change; \
        assert_false(names_of_small(&elf, sizeof(elf), names)); \
    } while (0)
    REFUSED(elf.header.e_ident[0] = 'M');
    REFUSED(elf.header.e_ident[EI_CLASS] = ELFCLASS32);
    REFUSED(elf.header.e_ident[EI_DATA] ^= 3);
    REFUSED(elf.header.e_shnum = 0);
    REFUSED(elf.header.e_shnum = 1);
    REFUSED(elf.header.e_shentsize = 63);
    REFUSED(elf.header.e_shoff = UINT64_MAX - 64);
    REFUSED(elf.header.e_shoff = INT64_MAX);
    REFUSED(elf.sections[1].sh_type = SHT_PROGBITS);
    REFUSED(elf.sections[1].sh_link = 3);
    REFUSED(elf.sections[1].sh_link = 1);
    REFUSED(elf.sections[1].sh_entsize = 0);
    REFUSED(elf.sections[1].sh_offset = UINT64_MAX);
    REFUSED(elf.sections[1].sh_size = UINT64_MAX);
    REFUSED(elf.sections[2].sh_type = SHT_NOBITS);
#undef REFUSED
    // Names that are not there are no names; the table is a table all the same.
    struct small_elf elf = small_elf();
    elf.sections[2].sh_size = UINT64_MAX;
    elf.sections[2].sh_offset = UINT64_MAX - 1;
    assert_true(names_of_small(&elf, sizeof(elf), names));
    assert_string_equal(names[1], "");
    elf = small_elf();
    elf.symbols[0].st_name = UINT32_MAX;
    assert_true(names_of_small(&elf, sizeof(elf), names));
    assert_string_equal(names[1], "");
    assert_string_equal(names[3], "narrow");
}

// A name without its end, at the end of the file.
static void test_name_is_cut(void **state)
{
    char names[WANTS][LOCKSTEP_SYMBOL_BYTES];
    struct {
        struct small_elf elf;
        char more[LOCKSTEP_SYMBOL_BYTES];
    } file = {.elf = small_elf()};
    (void)state;
    memset(file.elf.strings + 8, 'x', sizeof(file.elf.strings) - 8);
    memset(file.more, 'x', sizeof(file.more));
    assert_true(names_of_small(&file.elf, sizeof(file.elf), names));
    assert_int_equal(strlen(names[1]), sizeof(file.elf.strings) - 8);
    file.elf.sections[2].sh_size += sizeof(file.more);
    assert_true(names_of_small(&file.elf, sizeof(file), names));
    assert_int_equal(strlen(names[1]), LOCKSTEP_SYMBOL_BYTES - 1);
}

static void test_cut_files(void **state)
{
    char names[WANTS][LOCKSTEP_SYMBOL_BYTES];
    const struct small_elf elf = small_elf();
    (void)state;
    for (size_t size = 0; size < sizeof(elf); size++) {
        const bool read = names_of_small(&elf, size, names);
        assert_true(!read || size >= offsetof(struct small_elf, strings));
    }
}

// Every function of four million is around every address, and as good as the last one.
static void test_takes_no_minutes(void **state)
{
    enum {
        PART = 4096,
        PARTS = 1024
    };
    const uint64_t bound_ms = test_bound_ms(2000);
    static Elf64_Sym symbols[PART];
    struct small_elf elf = small_elf();
    char names[WANTS][LOCKSTEP_SYMBOL_BYTES];
    (void)state;
    for (size_t i = 0; i < PART; i++) {
        symbols[i] = elf.symbols[0];
        symbols[i].st_value = 0;
        symbols[i].st_size = 400;
    }
    elf.sections[1].sh_offset = sizeof(elf);
    elf.sections[1].sh_size = PARTS * sizeof(symbols);
    const int fd = file_of(&elf, sizeof(elf));
    for (size_t part = 0; part < PARTS; part++)
        assert_int_equal(write(fd, symbols, sizeof(symbols)), sizeof(symbols));
    const uint64_t began_ms = clock_now_ms();
    assert_true(names_of(fd, names));
    assert_in_range(clock_now_ms() - began_ms, 0, bound_ms);
    assert_string_equal(names[1], "wide");
    close(fd);
}

// Bytes changed at random: whatever comes out, nothing else happens.
static void test_damaged_files(void **state)
{
    uint64_t random = 88172645463325252u;
    char names[WANTS][LOCKSTEP_SYMBOL_BYTES];
    unsigned read = 0;
    (void)state;
    for (int round = 0; round < 3000; round++) {
        struct small_elf elf = small_elf();
        for (unsigned changes = 0; changes < 4; changes++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            ((unsigned char *)&elf)[(random >> 40) % offsetof(struct small_elf, strings)] =
                (unsigned char)(random >> 32);
        }
        read += names_of_small(&elf, sizeof(elf), names);
        for (size_t i = 0; i < WANTS; i++)
            assert_true(strlen(names[i]) < LOCKSTEP_SYMBOL_BYTES);
    }
    assert_true(read > 100 && read < 2900);
}

static void test_segments(void **state)
{
    const int fd = open("/proc/self/exe", O_RDONLY);
    Elf64_Ehdr header;
    Elf64_Phdr segments[ELF_MAX_SEGMENTS];
    (void)state;
    assert_int_equal(pread(fd, &header, sizeof(header), 0), sizeof(header));
    const uint32_t count = header.e_phnum;
    assert_in_range(count, 1, ELF_MAX_SEGMENTS);
    const size_t bytes = count * sizeof(segments[0]);
    assert_int_equal(pread(fd, segments, bytes, (off_t)header.e_phoff), bytes);
    assert_true(elf_names_has_segments(fd, segments, count));
    assert_false(elf_names_has_segments(fd, segments, count - 1));
    assert_false(elf_names_has_segments(fd, segments, 0));
    segments[count / 2].p_filesz++;
    assert_false(elf_names_has_segments(fd, segments, count));
    close(fd);
}

static void copy_file(const char *from, const char *to, size_t change)
{
    static char bytes[1 << 20];
    const int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_EXCL, 0700);
    const ssize_t size = read(in, bytes, sizeof(bytes));
    assert_true(out >= 0 && size > 0 && (size_t)size < sizeof(bytes));
    if (change > 0)
        bytes[change] ^= 1;
    assert_int_equal(write(out, bytes, (size_t)size), size);
    close(in);
    close(out);
}

// Where the last byte of a library's last note is: of its build id.
static size_t last_note(const char *path)
{
    const int fd = open(path, O_RDONLY);
    Elf64_Ehdr header;
    Elf64_Phdr segment;
    size_t at = 0;
    assert_int_equal(pread(fd, &header, sizeof(header), 0), sizeof(header));
    for (size_t i = 0; i < header.e_phnum; i++) {
        const off_t offset = (off_t)(header.e_phoff + i * sizeof(segment));
        assert_int_equal(pread(fd, &segment, sizeof(segment), offset), sizeof(segment));
        if (segment.p_type == PT_NOTE)
            at = segment.p_offset + segment.p_filesz - 1;
    }
    close(fd);
    return at;
}

// A library that was built anew while the old one is in use: its names would be wrong.
static void test_replaced_file(void **state)
{
    char directory[] = "/tmp/lockstep-test-XXXXXX", path[64], other[64];
    Dl_info info;
    (void)state;
    assert_true(dladdr((void *)(uintptr_t)cmocka_set_message_output, &info) != 0);
    const size_t note = last_note(info.dli_fname);
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/loaded.so", directory);
    snprintf(other, sizeof(other), "%s/other.so", directory);
    copy_file(info.dli_fname, path, 0);
    copy_file(info.dli_fname, other, note);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(library);
    const uintptr_t address = (uintptr_t)dlsym(library, "cmocka_set_message_output");
    assert_string_equal(name_of(address, true).symbol, "cmocka_set_message_output");
    assert_int_equal(rename(other, path), 0);
    const struct stack_frame frame = name_of(address, true);
    assert_string_equal(frame.object, "loaded.so");
    assert_string_equal(frame.symbol, "");
    dlclose(library);
    unlink(path);
    rmdir(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_static_function),
        cmocka_unit_test(test_parts_that_compilers_add),
        cmocka_unit_test(test_variant_of_a_function),
        cmocka_unit_test(test_no_file_is_opened),
        cmocka_unit_test(test_function_of_the_c_library),
        cmocka_unit_test(test_no_object),
        cmocka_unit_test(test_object_of_the_kernel),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_impossible_tables),
        cmocka_unit_test(test_name_is_cut),
        cmocka_unit_test(test_cut_files),
        cmocka_unit_test(test_takes_no_minutes),
        cmocka_unit_test(test_damaged_files),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_replaced_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
