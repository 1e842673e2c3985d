// SPDX-License-Identifier: Apache-2.0
//
// The ELF reader. Sizes and offsets in the file have 64 bits, so sums are checked for overflow
// before they are used.

#include "worker/stacks/elf_names.h"

#include "worker/stacks/mangled.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define ELF_MAX_SYMBOLS (1u << 22) // libtorch, not stripped, has half a million symbols.
#define ELF_NAME_BYTES 1024 // Names of C++ with many template arguments are long.
#define ELF_SYMBOLS_READ 256 // Symbols of one read.
// Most times that a function is found to contain a wanted address. In real files each address has a
// few such functions. A file made so that every function contains every address would take minutes.
#define ELF_MAX_MATCHES 65536

struct elf_table {
    uint64_t symbols; // Offset in the file.
    uint64_t count;
    uint64_t strings;
    uint64_t strings_bytes;
    uint32_t matches; // Matches so far; at most ELF_MAX_MATCHES.
};

static bool elf_read(int fd, uint64_t offset, void *to, size_t bytes)
{
    uint64_t end;
    size_t done = 0;
    if (__builtin_add_overflow(offset, (uint64_t)bytes, &end) || end > INT64_MAX)
        return false;
    while (done < bytes) {
        const ssize_t got = pread(fd, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        done += (size_t)got;
    }
    return true;
}

// Reads the header. Returns true if the file is for 64 bits and for this machine's byte order.
static bool elf_header(int fd, Elf64_Ehdr *header)
{
    const unsigned char order =
        __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;
    return elf_read(fd, 0, header, sizeof(*header)) &&
           memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 &&
           header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_ident[EI_DATA] == order;
}

bool elf_names_has_segments(int fd, const Elf64_Phdr *segments, uint32_t count)
{
    Elf64_Ehdr header;
    Elf64_Phdr found[ELF_MAX_SEGMENTS];
    if (count == 0 || count > ELF_MAX_SEGMENTS || !elf_header(fd, &header) ||
        header.e_phnum != count || header.e_phentsize != sizeof(found[0]))
        return false;
    return elf_read(fd, header.e_phoff, found, count * sizeof(found[0])) &&
           memcmp(found, segments, count * sizeof(found[0])) == 0;
}

static bool elf_section(int fd, const Elf64_Ehdr *header, uint32_t index, Elf64_Shdr *section)
{
    uint64_t offset;
    if (index >= header->e_shnum || header->e_shentsize != sizeof(*section) ||
        __builtin_add_overflow(header->e_shoff, (uint64_t)index * sizeof(*section), &offset))
        return false;
    return elf_read(fd, offset, section, sizeof(*section));
}

static bool elf_find_table(int fd, struct elf_table *table)
{
    Elf64_Ehdr header;
    Elf64_Shdr section, chosen = {.sh_type = SHT_NULL}, strings;
    if (!elf_header(fd, &header))
        return false;
    for (uint32_t i = 0; i < header.e_shnum && chosen.sh_type != SHT_SYMTAB; i++) {
        if (!elf_section(fd, &header, i, &section))
            return false;
        if (section.sh_type == SHT_SYMTAB || section.sh_type == SHT_DYNSYM)
            chosen = section;
    }
    if (chosen.sh_type == SHT_NULL || chosen.sh_entsize != sizeof(Elf64_Sym) ||
        !elf_section(fd, &header, chosen.sh_link, &strings) || strings.sh_type != SHT_STRTAB)
        return false;
    *table = (struct elf_table){
        .symbols = chosen.sh_offset,
        .count = chosen.sh_size / sizeof(Elf64_Sym),
        .strings = strings.sh_offset,
        .strings_bytes = strings.sh_size,
    };
    if (table->count > ELF_MAX_SYMBOLS)
        table->count = ELF_MAX_SYMBOLS;
    return true;
}

// Reads a name, and makes one of C++ readable. Unprintable bytes become '?', and a long name is
// cut.
static bool elf_name(int fd, const struct elf_table *table, uint32_t at,
                     char name[LOCKSTEP_SYMBOL_BYTES])
{
    char whole[ELF_NAME_BYTES];
    size_t bytes = sizeof(whole) - 1;
    uint64_t offset;
    if (at >= table->strings_bytes || __builtin_add_overflow(table->strings, (uint64_t)at, &offset))
        return false;
    if (bytes > table->strings_bytes - at)
        bytes = (size_t)(table->strings_bytes - at);
    if (!elf_read(fd, offset, whole, bytes))
        return false;
    whole[bytes] = '\0';
    for (char *c = whole; *c != '\0'; c++) {
        if (*c <= ' ' || *c > '~')
            *c = '?';
    }
    mangled_read(whole, name, LOCKSTEP_SYMBOL_BYTES);
    return name[0] != '\0';
}

// Returns the last part of a name if compilers add such parts: ".isra.0" of "f.isra.0". NULL: the
// name has no such part.
static char *elf_last_part(char *name)
{
    static const char *const parts[] = {"constprop", "part", "isra",       "cold",
                                        "lto_priv",  "llvm", "localalias", "clone"};
    char *dot = strrchr(name, '.');
    if (dot && dot[1] != '\0' && strspn(dot + 1, "0123456789") == strlen(dot + 1)) {
        *dot = '\0';
        char *before = strrchr(name, '.');
        *dot = '.';
        dot = before;
    }
    for (size_t i = 0; dot && dot != name && i < sizeof(parts) / sizeof(parts[0]); i++) {
        const size_t length = strlen(parts[i]);
        if (strncmp(dot + 1, parts[i], length) == 0 &&
            (dot[1 + length] == '\0' || dot[1 + length] == '.'))
            return dot;
    }
    return NULL;
}

void elf_name_cut(char *name)
{
    for (char *part; (part = elf_last_part(name));)
        *part = '\0';
}

static size_t elf_underscores(const char *name)
{
    return strspn(name, "_");
}

// Takes a function's name if it is the best so far. A function that begins later is narrower, so it
// is better. Of several names for one function, the name with the fewest underscores is best known:
// read, not __GI___libc_read.
static void elf_offer(int fd, const struct elf_table *table, const Elf64_Sym *symbol,
                      struct elf_want *want)
{
    char name[LOCKSTEP_SYMBOL_BYTES];
    const bool named = want->name[0] != '\0';
    if (named && symbol->st_value < want->start)
        return;
    if (!elf_name(fd, table, symbol->st_name, name))
        return;
    if (named && symbol->st_value == want->start &&
        elf_underscores(name) >= elf_underscores(want->name))
        return;
    want->start = symbol->st_value;
    memcpy(want->name, name, sizeof(name));
}

// Returns the index of the first want whose address is not below `address`.
static uint32_t elf_lower_bound(const struct elf_want *wants, uint32_t count, uint64_t address)
{
    uint32_t low = 0;
    while (count > 0) {
        const uint32_t half = count / 2;
        if (wants[low + half].address < address) {
            low += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return low;
}

static void elf_match(int fd, struct elf_table *table, const Elf64_Sym *symbol,
                      struct elf_want *wants, uint32_t count)
{
    const unsigned type = ELF64_ST_TYPE(symbol->st_info);
    uint64_t end;
    if ((type != STT_FUNC && type != STT_GNU_IFUNC) || symbol->st_shndx == SHN_UNDEF ||
        __builtin_add_overflow(symbol->st_value, symbol->st_size, &end))
        return;
    for (uint32_t i = elf_lower_bound(wants, count, symbol->st_value);
         i < count && wants[i].address < end && table->matches < ELF_MAX_MATCHES; i++) {
        table->matches++;
        elf_offer(fd, table, symbol, &wants[i]);
    }
}

bool elf_names(int fd, struct elf_want *wants, uint32_t count)
{
    struct elf_table table;
    Elf64_Sym symbols[ELF_SYMBOLS_READ];
    if (!elf_find_table(fd, &table))
        return false;
    for (uint64_t done = 0; done < table.count;) {
        const uint64_t left = table.count - done;
        const size_t part = left < ELF_SYMBOLS_READ ? (size_t)left : ELF_SYMBOLS_READ;
        uint64_t offset;
        if (__builtin_add_overflow(table.symbols, done * sizeof(symbols[0]), &offset) ||
            !elf_read(fd, offset, symbols, part * sizeof(symbols[0])))
            return false;
        for (size_t i = 0; i < part; i++)
            elf_match(fd, &table, &symbols[i], wants, count);
        done += part;
    }
    return true;
}
