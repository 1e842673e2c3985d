// SPDX-License-Identifier: Apache-2.0
//
// How often each group was made: the table grows up to its limit, and forgets nothing.

#include "worker/session/names.h"

#include "base/hash64.h"
#include "worker/session/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

static uint64_t hash_of(uint64_t number)
{
    return hash64(&number, sizeof(number));
}

static void makings_are_counted(void **state)
{
    struct lockstep_session *session = calloc(1, sizeof(*session));
    struct name_use *use = NULL;
    (void)state;
    assert_non_null(session);
    session->works.names = calloc(SESSION_NAME_PLACES, sizeof(*session->works.names));
    assert_non_null(session->works.names);
    mutex_init(&session->mutex);
    mutex_lock(&session->mutex);
    assert_int_equal(names_uses_locked(session, hash_of(0)), 0);
    for (uint32_t i = 0; i < SESSION_MAX_MADE; i++) {
        assert_int_equal(names_made_locked(session, hash_of(i), &use), 0);
        assert_int_equal(use->uses, 0);
        use->uses = i % 5 + 1;
    }
    assert_int_equal(names_made_locked(session, hash_of(SESSION_MAX_MADE), &use),
                     LOCKSTEP_E_INVALID);
    assert_int_equal(names_uses_locked(session, hash_of(SESSION_MAX_MADE)), 0);
    for (uint32_t i = 0; i < SESSION_MAX_MADE; i += 7) {
        assert_int_equal(names_made_locked(session, hash_of(i), &use), 0);
        assert_int_equal(use->uses, i % 5 + 1);
        assert_int_equal(names_uses_locked(session, hash_of(i)), i % 5 + 1);
    }
    mutex_unlock(&session->mutex);
    mutex_fini(&session->mutex);
    free(session->works.made);
    free(session->works.names);
    free(session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(makings_are_counted)};
    return cmocka_run_group_tests_name("names", tests, NULL, NULL);
}
