// SPDX-License-Identifier: Apache-2.0
//
// Finds the object of an address, and opens the object's file. The loader's list is locked only
// while an object is looked for and described; files are opened after that. A file is used only if
// it is the file that was loaded, because a wrong name is worse than none.

#include "worker/stacks/symbols.h"

#include "base/text.h"
#include "worker/stacks/elf_names.h"
#include "worker/support/spare.h"

#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SYMBOLS_NOTE_BYTES 128 // The first bytes of a note; linkers put the build id there.
// Addresses of one object in one pass over its file; more addresses take another pass.
#define SYMBOLS_AT_ONCE 256
#define SYMBOLS_PROGRAM "/proc/thread-self/exe" // Not self: the main thread may have ended.

// An object that is loaded.
struct object {
    char path[PATH_MAX]; // Empty: the program itself.
    uintptr_t base; // Load address: the address in memory of address 0 of the file.
    uintptr_t low, high; // Range of all loaded segments.
    uint32_t segment_count; // 0: the object has more than ELF_MAX_SEGMENTS.
    Elf64_Phdr segments[ELF_MAX_SEGMENTS];
    uint64_t note_at; // Offset in the file of the note with the build id, if there is one.
    size_t note_bytes;
    char note[SYMBOLS_NOTE_BYTES];
};

struct search {
    uintptr_t address;
    struct object *object;
};

static bool object_holds(const struct object *object, uintptr_t address)
{
    return address >= object->low && address < object->high;
}

static void object_extent(const struct dl_phdr_info *info, struct object *object)
{
    object->base = info->dlpi_addr;
    object->low = UINTPTR_MAX;
    object->high = 0;
    for (uint32_t i = 0; i < info->dlpi_phnum; i++) {
        const Elf64_Phdr *segment = &info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + segment->p_vaddr;
        if (segment->p_type != PT_LOAD)
            continue;
        if (begin < object->low)
            object->low = begin;
        if (begin + segment->p_memsz > object->high)
            object->high = begin + segment->p_memsz;
    }
}

// True if this part of the file is in a readable segment in memory.
static bool object_loaded(const struct object *object, const Elf64_Phdr *part)
{
    for (uint32_t i = 0; i < object->segment_count; i++) {
        const Elf64_Phdr *segment = &object->segments[i];
        if (segment->p_type == PT_LOAD && (segment->p_flags & PF_R) != 0 &&
            part->p_vaddr >= segment->p_vaddr && part->p_filesz <= segment->p_filesz &&
            part->p_vaddr - segment->p_vaddr <= segment->p_filesz - part->p_filesz)
            return true;
    }
    return false;
}

// Copies the last note. An earlier note, if there is one, lists requirements on the processor.
static void object_copy_note(struct object *object)
{
    object->note_bytes = 0;
    for (uint32_t i = 0; i < object->segment_count; i++) {
        const Elf64_Phdr *part = &object->segments[i];
        if (part->p_type != PT_NOTE || !object_loaded(object, part))
            continue;
        object->note_at = part->p_offset;
        object->note_bytes =
            part->p_filesz < SYMBOLS_NOTE_BYTES ? part->p_filesz : SYMBOLS_NOTE_BYTES;
        memcpy(object->note, (const char *)object->base + part->p_vaddr, object->note_bytes);
    }
}

// Called for each object, with the loader's list locked. Returns 1 if the object contains the
// address.
static int object_visit(struct dl_phdr_info *info, size_t bytes, void *context)
{
    const struct search *search = context;
    struct object *object = search->object;
    (void)bytes;
    object_extent(info, object);
    if (!object_holds(object, search->address))
        return 0;
    text_copy(object->path, sizeof(object->path), info->dlpi_name);
    object->segment_count = 0;
    if (info->dlpi_phnum <= ELF_MAX_SEGMENTS) {
        object->segment_count = info->dlpi_phnum;
        memcpy(object->segments, info->dlpi_phdr, info->dlpi_phnum * sizeof(object->segments[0]));
    }
    object_copy_note(object);
    return 1;
}

// Opens the object's file. Returns -1 if the file is no longer the one that was loaded.
static int object_open(const struct object *object)
{
    char note[SYMBOLS_NOTE_BYTES];
    struct stat status;
    const char *path = object->path[0] != '\0' ? object->path : SYMBOLS_PROGRAM;
    if (!strchr(path, '/')) // The kernel's own object (vdso) has a name and no file.
        return -1;
    const int fd = spare_open(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return -1;
    const ssize_t bytes = (ssize_t)object->note_bytes;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
        elf_names_has_segments(fd, object->segments, object->segment_count) &&
        (bytes == 0 || pread(fd, note, (size_t)bytes, (off_t)object->note_at) == bytes) &&
        memcmp(note, object->note, (size_t)bytes) == 0)
        return fd;
    spare_close(fd);
    return -1;
}

// Writes the base name of the object's path. Unprintable bytes become '?'.
static void object_name(const struct object *object, char name[LOCKSTEP_OBJECT_BYTES])
{
    char program[PATH_MAX];
    const char *path = object->path;
    if (path[0] == '\0') {
        const ssize_t bytes = readlink(SYMBOLS_PROGRAM, program, sizeof(program) - 1);
        program[bytes > 0 ? bytes : 0] = '\0';
        path = program;
    }
    const char *slash = strrchr(path, '/');
    text_copy(name, LOCKSTEP_OBJECT_BYTES, slash ? slash + 1 : path);
    for (char *c = name; *c != '\0'; c++) {
        if (*c < ' ' || *c > '~')
            *c = '?';
    }
}

// Inserts a wanted address into the sorted list.
static void symbols_insert(struct elf_want *wants, uint32_t count, struct elf_want want)
{
    uint32_t at = count;
    for (; at > 0 && wants[at - 1].address > want.address; at--)
        wants[at] = wants[at - 1];
    wants[at] = want;
}

// Names frames of one object, at most SYMBOLS_AT_ONCE.
static void symbols_of(const struct object *object, struct stack_frame *frames,
                       const uintptr_t *addresses, size_t count, bool files)
{
    struct elf_want wants[SYMBOLS_AT_ONCE];
    char name[LOCKSTEP_OBJECT_BYTES];
    uint32_t wanted = 0;
    object_name(object, name);
    for (size_t i = 0; i < count && wanted < SYMBOLS_AT_ONCE; i++) {
        if (frames[i].object[0] != '\0' || !object_holds(object, addresses[i]))
            continue;
        memcpy(frames[i].object, name, sizeof(name));
        frames[i].offset = addresses[i] - object->base;
        symbols_insert(wants, wanted++,
                       (struct elf_want){.address = frames[i].offset, .name = frames[i].symbol});
    }
    const int fd = files ? object_open(object) : -1;
    if (fd < 0)
        return;
    (void)elf_names(fd, wants, wanted);
    for (uint32_t i = 0; i < wanted; i++)
        elf_name_cut(wants[i].name);
    spare_close(fd);
}

void symbols_name(struct stack_frame *frames, const uintptr_t *addresses, size_t count, bool files)
{
    struct object object;
    for (size_t i = 0; i < count; i++) {
        if (addresses[i] != 0) {
            frames[i].object[0] = frames[i].symbol[0] = '\0';
            frames[i].offset = addresses[i];
        }
    }
    for (size_t i = 0; i < count; i++) {
        struct search search = {.address = addresses[i], .object = &object};
        if (addresses[i] != 0 && frames[i].object[0] == '\0' &&
            dl_iterate_phdr(object_visit, &search) != 0)
            symbols_of(&object, frames + i, addresses + i, count - i, files);
    }
}
