// SPDX-License-Identifier: Apache-2.0
// A file of lockstep_session_save or lockstep_layout_save, in a session with one module.

#include "tests/fuzz/fuzz.h"
#include "worker/api/saved.h"
#include "worker/session/session.h"

#include <string.h>

static struct lockstep_session *saved_session(void)
{
    static struct lockstep_session *session;
    static float values[4][6];
    static const int64_t shape[] = {6};
    static struct lockstep_parameter parameters[4];
    static const char *const names[] = {"a", "b b", "c\"", "d"};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    struct lockstep_module *module;
    if (session)
        return session;
    FUZZ_CHECK(lockstep_open(NULL, &session) == 0);
    for (uint32_t i = 0; i < 4; i++)
        parameters[i] = (struct lockstep_parameter){.name = names[i],
                                                    .dtype = LOCKSTEP_FLOAT32,
                                                    .dims = 1,
                                                    .shape = shape,
                                                    .data = values[i],
                                                    .gradient = values[i]};
    config.name = "m";
    config.parameters = parameters;
    config.parameter_count = 4;
    FUZZ_CHECK(lockstep_module_register(session, &config, &module) == 0);
    return session;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct lockstep_session *session = saved_session();
    char *text = malloc(size + 1);
    FUZZ_CHECK(text != NULL);
    memcpy(text, bytes, size);
    text[size] = '\0';
    for (int kind = SAVED_LAYOUT; kind <= SAVED_SESSION; kind++)
        if (saved_read(session, (enum saved_kind)kind, "file", text, size) < 0)
            FUZZ_CHECK(lockstep_error_text()[0] != '\0');
    free(text);
    return 0;
}
