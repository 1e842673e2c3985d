// SPDX-License-Identifier: Apache-2.0
//
// Writes and reads the text of the files of lockstep_layout_save and lockstep_session_save.
// docs/saving.md describes the format. save.c opens, closes and replaces the files. Runs on the
// trainer's thread.
//
// A file is read in two passes: the first checks everything and changes nothing, the second applies
// the content to the session. Files identify modules and parameters by their names. The modules and
// parameters in a file must be those that are registered.

#include "worker/api/saved.h"

#include "base/hash64.h"
#include "base/parse.h"
#include "base/text.h"
#include "base/utf8.h"
#include "worker/kernels/kernels.h"
#include "worker/session/module/sets.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define SAVED_VERSION 3 // Version 1 had no tuning, version 2 no buckets on devices.
#define SAVED_WORDS 4 // The most words that a line has.

static const char *const saved_kinds[] = {"layout", "session"};

// ---- Writing -----------------------------------------------------------------------------------

// Writes a name. Spaces separate words, so spaces, control characters and '%' in a name are written
// as '%' and two hexadecimal digits.
static void saved_name(FILE *file, const char *name)
{
    for (const unsigned char *at = (const unsigned char *)name; *at != '\0'; at++) {
        if (*at <= ' ' || *at == '%' || *at == 0x7f)
            fprintf(file, "%%%02x", *at);
        else
            fputc(*at, file);
    }
    fputc('\n', file);
}

static void saved_write_set(const struct lockstep_module *module,
                            const struct bucket_layout *layout, FILE *file)
{
    fprintf(file, "set %" PRIu32 " %" PRIu32 "\n", layout->bucket_count, layout->order_count);
    for (uint32_t b = 0; b < layout->bucket_count; b++) {
        const struct bucket *bucket = &layout->buckets[b];
        fprintf(file, "bucket %" PRIu32 "%s\n", bucket->count, bucket->device ? " devices" : "");
        for (uint32_t i = 0; i < bucket->count; i++) {
            const struct tensor *tensor = &module->parameters[layout->order[bucket->first + i]];
            fprintf(file, "parameter %s %" PRIu64 " ", dtype_name(tensor->gradient_dtype),
                    tensor->elements);
            saved_name(file, tensor->name);
        }
    }
}

// Iterates over the learned sets, least recently used first. Returns the set after `before`, or the
// first set if `before` is NULL. NULL: there is no further set.
static const struct module_set *saved_next_set(const struct lockstep_module *module,
                                               const struct module_set *before)
{
    const struct module_set *next = NULL;
    for (const struct module_set *set = module->sets.all;
         set < module->sets.all + LOCKSTEP_MAX_SETS; set++) {
        const bool later =
            !before || set->used > before->used || (set->used == before->used && set > before);
        if (set->hash != 0 && set->learned && later && (!next || set->used < next->used))
            next = set;
    }
    return next;
}

static void saved_write_module(struct lockstep_module *module, FILE *file)
{
    const struct module_set *set = NULL;
    module->sets.set->used = module->session->step.number;
    fprintf(file, "module ");
    saved_name(file, module->name);
    while ((set = saved_next_set(module, set)))
        saved_write_set(module, &set->layout, file);
}

static int saved_compare_counters(const void *a, const void *b)
{
    const uint64_t x = ((const struct counter *)a)->hash;
    const uint64_t y = ((const struct counter *)b)->hash;
    return x < y ? -1 : x > y;
}

// Writes the counters whose total is not 0. A counter with total 0 may not exist on other ranks,
// and all ranks write the same file.
static void saved_write_counters(struct lockstep_session *session, FILE *file)
{
    struct counter counters[COUNTER_ENTRIES];
    mutex_lock(&session->mutex);
    memcpy(counters, session->counters.table, sizeof(counters));
    mutex_unlock(&session->mutex);
    qsort(counters, COUNTER_ENTRIES, sizeof(counters[0]), saved_compare_counters);
    for (uint32_t i = 0; i < COUNTER_ENTRIES; i++) {
        if (counters[i].hash != 0 && counters[i].total != 0)
            fprintf(file, "counter %" PRIu64 " %" PRId64 "\n", counters[i].hash, counters[i].total);
    }
}

void saved_write(struct lockstep_session *session, enum saved_kind kind, FILE *file)
{
    const struct training *training = &session->training;
    mutex_lock(&session->mutex); // A death may change the world meanwhile.
    struct tuning tuning = session->world.tuning;
    const uint32_t world_size = session->world.tuned_size;
    const uint32_t chunk_bytes = session->world.chunk_bytes;
    // Loaded tuning comes into force in lockstep_start only, and that may not have been called yet.
    if (training->loaded_world == world_size) {
        tuning.doubling_bytes = training->loaded_doubling_bytes;
        tuning.halving_bytes = training->loaded_halving_bytes;
    }
    mutex_unlock(&session->mutex);
    fprintf(file, "lockstep-saved %d\nkind %s\n", SAVED_VERSION, saved_kinds[kind]);
    fprintf(file, "world_size %" PRIu32 "\nchunk_bytes %" PRIu32 "\n", world_size, chunk_bytes);
    fprintf(file, "tuning %" PRIu64 " %" PRIu64 "\n", tuning.doubling_bytes, tuning.halving_bytes);
    if (kind == SAVED_SESSION) {
        // A step that was opened and not run has used up its number: see uneven_skip.
        const bool skips = session->step.finished || session->step.skips;
        fprintf(file, "step %" PRIu64 "\n", session->step.number + (skips ? 1 : 0));
        saved_write_counters(session, file);
    }
    for (uint32_t m = 0; m < session->common_count; m++)
        saved_write_module(session->modules[m], file);
}

// ---- Lines -------------------------------------------------------------------------------------

struct saved_reader {
    struct lockstep_session *session;
    enum saved_kind kind;
    const char *path; // The file's path, for error texts.
    const char *at;
    const char *end;
    bool takes; // True in the second pass, which applies the content.
    uint32_t line; // Number of the present line, from 1.
    char text[LOCKSTEP_SAVED_LINE_BYTES];
    char *words[SAVED_WORDS];
    uint32_t word_count; // Words of the present line; 0: the text is at its end.

    // The set that is being read.
    struct bucket_parameter *shapes; // [most parameters of a module]
    uint32_t *words_of_layout; // [1 + 2 * most parameters of a module]
    uint32_t parameter; // Index of the last parameter that was read.
    uint64_t sets[LOCKSTEP_MAX_SETS]; // [set_count]: hashes of the module's sets that were read.
    uint32_t set_count;
};

static int saved_fault(const struct saved_reader *reader, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static int saved_fault(const struct saved_reader *reader, const char *format, ...)
{
    char bytes[LOCKSTEP_TEXT_BYTES];
    struct text text;
    va_list arguments;
    text_init(&text, bytes, sizeof(bytes));
    va_start(arguments, format);
    text_append_v(&text, format, arguments);
    va_end(arguments);
    return error_set(LOCKSTEP_E_CONFIG, "%s, line %" PRIu32 ": %s", reader->path, reader->line,
                     bytes);
}

static void saved_split(struct saved_reader *reader)
{
    char *rest = reader->text;
    while (rest && reader->word_count < SAVED_WORDS) {
        reader->words[reader->word_count++] = rest;
        rest = strchr(rest, ' ');
        if (rest)
            *rest++ = '\0';
    }
    if (rest)
        reader->word_count = SAVED_WORDS + 1;
}

// Reads the next line and splits it into words.
static int saved_advance(struct saved_reader *reader)
{
    const char *newline = memchr(reader->at, '\n', (size_t)(reader->end - reader->at));
    const size_t size = !newline ? 0 : (size_t)(newline - reader->at);
    reader->word_count = 0;
    if (reader->at == reader->end)
        return 0;
    reader->line++;
    if (!newline || size >= sizeof(reader->text) || memchr(reader->at, '\0', size))
        return saved_fault(reader, "this is no line of a saved file");
    memcpy(reader->text, reader->at, size);
    reader->text[size] = '\0';
    reader->at = newline + 1;
    saved_split(reader);
    return 0;
}

static bool saved_is(const struct saved_reader *reader, const char *keyword, uint32_t words)
{
    return reader->word_count == words && strcmp(reader->words[0], keyword) == 0;
}

// Expects "keyword number" in the present line, with a number of at most `most`. Goes on to the
// next line.
static int saved_number(struct saved_reader *reader, const char *keyword, uint64_t most,
                        uint64_t *number)
{
    if (!saved_is(reader, keyword, 2) || !parse_u64(reader->words[1], number) || *number > most)
        return saved_fault(reader, "'%s' and a number up to %" PRIu64 " are expected here", keyword,
                           most);
    return saved_advance(reader);
}

// Expects a "bucket" line: how many parameters a bucket has, and whether they are on devices.
static int saved_bucket(struct saved_reader *reader, uint64_t most, uint64_t *count, bool *device)
{
    *device = saved_is(reader, "bucket", 3) && strcmp(reader->words[2], "devices") == 0;
    if (*device)
        reader->word_count = 2;
    return saved_number(reader, "bucket", most, count);
}

static int saved_digit(char digit)
{
    const char *const digits = "0123456789abcdef";
    const char *found = digit == '\0' ? NULL : strchr(digits, digit);
    return !found ? -1 : (int)(found - digits);
}

// Decodes in place a name that saved_name has written.
static int saved_unescape(const struct saved_reader *reader, char *name)
{
    char *to = name;
    for (const char *from = name; *from != '\0'; from++) {
        if (*from != '%') {
            *to++ = *from;
            continue;
        }
        const int high = saved_digit(from[1]);
        const int low = high < 0 ? -1 : saved_digit(from[2]);
        if (low < 0 || high * 16 + low == 0)
            return saved_fault(reader, "'%%' in a name is followed by two hexadecimal digits");
        *to++ = (char)(high * 16 + low);
        from += 2;
    }
    *to = '\0';
    if (to == name || to - name >= LOCKSTEP_NAME_BYTES || !utf8_valid(name, (size_t)(to - name)))
        return saved_fault(reader, "this is no name");
    return 0;
}

// ---- Sets --------------------------------------------------------------------------------------

// Finds the parameter that the present line names. Searches downwards from the last one found,
// because most learned orders run from the last parameter to the first.
static int saved_find_parameter(struct saved_reader *reader, const struct lockstep_module *module)
{
    const uint32_t count = module->parameter_count;
    uint64_t elements;
    if (!saved_is(reader, "parameter", 4) || !parse_u64(reader->words[2], &elements))
        return saved_fault(reader, "a parameter with dtype, elements and name is expected here");
    if (saved_unescape(reader, reader->words[3]) < 0)
        return LOCKSTEP_E_CONFIG;
    for (uint32_t i = 1; i <= count; i++) {
        const uint32_t p = (reader->parameter + count - i) % count;
        const struct tensor *tensor = &module->parameters[p];
        if (strcmp(tensor->name, reader->words[3]) != 0)
            continue;
        if (strcmp(dtype_name(tensor->gradient_dtype), reader->words[1]) != 0 ||
            tensor->elements != elements || !dtype_is_float(tensor->gradient_dtype))
            return saved_fault(reader,
                               "parameter '%s' of module '%s' has %" PRIu64 " elements of %s, and "
                               "the file was saved with another",
                               tensor->name, module->name, tensor->elements,
                               dtype_name(tensor->gradient_dtype));
        reader->parameter = p;
        return 0;
    }
    return saved_fault(reader, "module '%s' has no parameter '%s': the file is of other modules",
                       module->name, reader->words[3]);
}

static int saved_read_bucket(struct saved_reader *reader, const struct lockstep_module *module,
                             uint32_t total, uint32_t *order, uint32_t *filled)
{
    uint64_t count;
    bool device;
    int status = saved_bucket(reader, total - *filled, &count, &device);
    for (uint64_t i = 0; i < count && status == 0; i++) {
        status = saved_find_parameter(reader, module);
        if (status < 0)
            return status;
        if (reader->shapes[reader->parameter].trainable)
            return saved_fault(reader, "the set names parameter '%s' twice", reader->words[3]);
        reader->shapes[reader->parameter].trainable = true;
        reader->shapes[reader->parameter].device = device;
        order[(*filled)++] = reader->parameter;
        status = saved_advance(reader);
    }
    return status;
}

// Checks the layout that was read. In the second pass, installs it in the module.
static int saved_take_set(struct saved_reader *reader, struct lockstep_module *module,
                          uint32_t word_count)
{
    struct bucket_layout layout = {0};
    char text[LOCKSTEP_TEXT_BYTES];
    const uint64_t hash = sets_hash(reader->shapes, module->parameter_count);
    int status = 0;
    for (uint32_t i = 0; i < reader->set_count; i++) {
        if (reader->sets[i] == hash)
            return saved_fault(reader, "module '%s' has the same set twice", module->name);
    }
    reader->sets[reader->set_count++] = hash;
    if (!sets_allocate_layout(&layout, module->parameter_count))
        status = error_set(LOCKSTEP_E_SYSTEM, "no memory");
    else if (buckets_decode(reader->words_of_layout, word_count, reader->shapes,
                            module->parameter_count, &layout, text, sizeof(text)) != BUCKET_OK)
        status = saved_fault(reader, "module '%s': %s", module->name, text);
    else if (reader->takes)
        sets_install(module, hash, &layout);
    free(layout.order);
    free(layout.buckets);
    return status;
}

static int saved_read_set(struct saved_reader *reader, struct lockstep_module *module)
{
    uint64_t buckets, parameters;
    uint32_t *words = reader->words_of_layout;
    uint32_t filled = 0;
    int status;
    if (!parse_u64(reader->words[1], &buckets) || !parse_u64(reader->words[2], &parameters) ||
        buckets > parameters)
        return saved_fault(reader, "a set with as many parameters as buckets, or more, is expected "
                                   "here");
    if (parameters > module->parameter_count)
        return saved_fault(reader,
                           "the set has %" PRIu64 " parameters, and module '%s' has %" PRIu32
                           ": the file is of other modules",
                           parameters, module->name, module->parameter_count);
    if (reader->set_count == LOCKSTEP_MAX_SETS)
        return saved_fault(reader, "module '%s' has more than %d sets of parameters", module->name,
                           LOCKSTEP_MAX_SETS);
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        reader->shapes[p] = module->shapes[p];
        reader->shapes[p].trainable = reader->shapes[p].device = false;
    }
    words[0] = (uint32_t)buckets;
    status = saved_advance(reader);
    for (uint32_t b = 0; b < buckets && status == 0; b++) {
        status =
            saved_read_bucket(reader, module, (uint32_t)parameters, words + 1 + buckets, &filled);
        words[1 + b] = filled;
    }
    if (status == 0 && filled != parameters)
        status = saved_fault(reader, "the set of module '%s' has fewer parameters than it says",
                             module->name);
    return status < 0 ? status : saved_take_set(reader, module, 1 + (uint32_t)buckets + filled);
}

// Reads one module. A file has the modules in the order in which they were registered.
static int saved_read_module(struct saved_reader *reader, struct lockstep_module *module)
{
    int status;
    if (!saved_is(reader, "module", 2))
        return saved_fault(reader, "module '%s' is expected here", module->name);
    status = saved_unescape(reader, reader->words[1]);
    if (status == 0 && strcmp(reader->words[1], module->name) != 0)
        status = saved_fault(reader,
                             "module '%s' in the place of '%s': the file is of other modules, or "
                             "they were registered in another order",
                             reader->words[1], module->name);
    reader->set_count = 0;
    reader->parameter = 0;
    if (status == 0)
        status = saved_advance(reader);
    if (status == 0 && reader->takes)
        sets_forget(module);
    while (status == 0 && saved_is(reader, "set", 3))
        status = saved_read_set(reader, module);
    if (reader->takes && !module->sets.set && sets_enter_module(module, 0) < 0)
        status = LOCKSTEP_E_SYSTEM;
    return status;
}

// ---- Head, step and counters -------------------------------------------------------------------

// Reads the payload sizes up to which the algorithms doubling and halving are chosen. They affect
// the bits of the results, so a world of the same size applies them together with the layouts. That
// is the size at lockstep_start: a death may change it before, and not every rank has loaded then.
static int saved_read_tuning(struct saved_reader *reader, uint64_t world_size)
{
    struct lockstep_session *session = reader->session;
    uint64_t doubling, halving;
    if (!saved_is(reader, "tuning", 3) || !parse_u64(reader->words[1], &doubling) ||
        !parse_u64(reader->words[2], &halving))
        return saved_fault(reader, "the tuning with two numbers is expected here");
    if (reader->takes) {
        mutex_lock(&session->mutex);
        session->training.loaded_world = (uint32_t)world_size;
        session->training.loaded_doubling_bytes = doubling;
        session->training.loaded_halving_bytes = halving;
        mutex_unlock(&session->mutex);
    }
    return saved_advance(reader);
}

static int saved_read_head(struct saved_reader *reader)
{
    struct lockstep_session *session = reader->session;
    uint64_t version, world_size, chunk_bytes;
    int status = saved_number(reader, "lockstep-saved", SAVED_VERSION, &version);
    if (status == 0 && !saved_is(reader, "kind", 2))
        status = saved_fault(reader, "the kind of the file is expected here");
    if (status == 0 && strcmp(reader->words[1], saved_kinds[reader->kind]) != 0)
        status = saved_fault(reader, "this is not a file of lockstep_%s_save",
                             saved_kinds[reader->kind]);
    if (status == 0)
        status = saved_advance(reader);
    if (status == 0)
        status = saved_number(reader, "world_size", LOCKSTEP_MAX_WORLD, &world_size);
    if (status == 0)
        status = saved_number(reader, "chunk_bytes", LOCKSTEP_FRAME_BYTES, &chunk_bytes);
    if (status < 0)
        return status;
    mutex_lock(&session->mutex); // A death may change the world meanwhile.
    const uint32_t own_size = session->world.size;
    const uint32_t own_bytes = session->world.chunk_bytes;
    mutex_unlock(&session->mutex);
    if (world_size == own_size && chunk_bytes != own_bytes)
        return error_set(LOCKSTEP_E_CONFIG,
                         "%s was saved with chunks of %" PRIu64 " bytes, and this job has %" PRIu32
                         ": the sums would differ in their last bits; start the coordinator with "
                         "--chunk-bytes %" PRIu64,
                         reader->path, chunk_bytes, own_bytes, chunk_bytes);
    if (world_size != own_size && reader->takes)
        log_event(&reader->session->log, LOG_LEVEL_WARN, "saved_in_another_world",
                  "file=%s saved=%" PRIu64 " world_size=%" PRIu32 " hint=%s", reader->path,
                  world_size, own_size, "sums may differ in their last bits");
    if (version == 1)
        return 0;
    return saved_read_tuning(reader, world_size);
}

static void saved_take_step(struct lockstep_session *session, uint64_t step)
{
    session->step.number = step;
    atomic_store(&session->progress->step, step);
    atomic_store(&session->progress->settled, step);
    mutex_lock(&session->mutex);
    session->step.settled = step;
    memset(&session->counters, 0, sizeof(session->counters));
    mutex_unlock(&session->mutex);
}

static int saved_read_step(struct saved_reader *reader)
{
    struct lockstep_session *session = reader->session;
    struct counter counter = {.settled = true};
    uint64_t step;
    uint64_t before = 0;
    int status = saved_number(reader, "step", INT64_MAX, &step);
    if (status == 0 && reader->takes)
        saved_take_step(session, step);
    for (uint32_t i = 0; status == 0 && saved_is(reader, "counter", 3); i++) {
        if (i == LOCKSTEP_MAX_COUNTERS || !parse_u64(reader->words[1], &counter.hash) ||
            !parse_i64(reader->words[2], &counter.total) || counter.hash <= before)
            return saved_fault(reader, "this is no counter, or one more than %d",
                               LOCKSTEP_MAX_COUNTERS);
        before = counter.hash;
        mutex_lock(&session->mutex);
        if (reader->takes) {
            session->counters.table[i] = counter;
            session->counters.settled = i + 1;
        }
        mutex_unlock(&session->mutex);
        status = saved_advance(reader);
    }
    return status;
}

static int saved_pass(struct saved_reader *reader, const char *bytes, size_t size, bool takes)
{
    const struct lockstep_session *session = reader->session;
    int status;
    reader->at = bytes;
    reader->end = bytes + size;
    reader->line = 0;
    reader->takes = takes;
    status = saved_advance(reader);
    if (status == 0)
        status = saved_read_head(reader);
    if (status == 0 && reader->kind == SAVED_SESSION)
        status = saved_read_step(reader);
    for (uint32_t m = 0; m < session->common_count && status == 0; m++)
        status = saved_read_module(reader, session->modules[m]);
    if (status == 0 && reader->word_count != 0)
        status = saved_fault(reader, "there is more in the file than is registered: it is of other "
                                     "modules");
    return status;
}

int saved_read(struct lockstep_session *session, enum saved_kind kind, const char *path,
               const char *bytes, size_t size)
{
    struct saved_reader *reader = calloc(1, sizeof(*reader));
    uint32_t most = 0;
    int status = LOCKSTEP_E_SYSTEM;
    for (uint32_t m = 0; m < session->common_count; m++) {
        if (session->modules[m]->parameter_count > most)
            most = session->modules[m]->parameter_count;
    }
    if (reader) {
        reader->session = session;
        reader->kind = kind;
        reader->path = path;
        reader->shapes = calloc((size_t)most + 1, sizeof(*reader->shapes));
        reader->words_of_layout = calloc(2 * (size_t)most + 1, sizeof(*reader->words_of_layout));
    }
    if (!reader || !reader->shapes || !reader->words_of_layout)
        status = error_set(LOCKSTEP_E_SYSTEM, "no memory");
    else
        status = saved_pass(reader, bytes, size, false);
    if (status == 0)
        status = saved_pass(reader, bytes, size, true);
    if (reader) {
        free(reader->shapes);
        free(reader->words_of_layout);
    }
    free(reader);
    return status;
}
