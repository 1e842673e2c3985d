// SPDX-License-Identifier: Apache-2.0
//
// Names of C++ functions, as people read them.

#include "protos/limits.h"
#include "worker/stacks/mangled.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

static void expect(const char *name, const char *readable)
{
    char out[LOCKSTEP_SYMBOL_BYTES];
    mangled_read(name, out, sizeof(out));
    assert_string_equal(out, readable);
}

static void names_are_readable(void **state)
{
    (void)state;
    expect("main", "main");
    expect("", "");
    expect("_Z", "_Z");
    expect("_Z3addii", "add");
    expect("_ZL3addii.isra.0", "add");
    expect("_ZN2at6native3addERKNS_6TensorE", "at::native::add");
    expect("_ZN2at6native12_GLOBAL__N_13addERKNS_6TensorE", "at::native::(anonymous)::add");
    expect("_ZNSt6vectorIiSaIiEE9push_backEOi", "std::vector<>::push_back");
    expect("_ZNKSt8functionIFvRKSsEEclES1_", "std::function<>::operator()");
    expect("_ZN5torch8autograd6EngineC2Ev", "torch::autograd::Engine::Engine");
    expect("_ZN5torch8autograd6EngineD0Ev", "torch::autograd::Engine::~Engine");
    expect("_ZN2at11show_configB5cxx11Ev", "at::show_config");
    expect("_ZSt4sortIPiEvT_S1_", "std::sort<>");
    expect("_ZN1a1bILi4ELb1EL5Color2EE1cIJNS_1dEEEEvDpT_", "a::b<>::c<>");
    expect("_ZZN3foo3barEvENKUlvE_clEv", "foo::bar...");
    expect("_ZN3fooUlvE_4_FUNEv", "foo...");
}

// Only the beginning of a long name fits. With its arguments it would be seven times as long.
static void long_names_keep_what_is_readable(void **state)
{
    (void)state;
    expect("_ZN4grpc8internal"
           "12CallOpSetRunINS_16ClientReadBufferIN6google8protobuf7MessageEEENS_11CallNoOpTwoILi2EE"
           "ENS_11CallNoOpTwoILi3EEENS_11CallNoOpTwoILi4EEENS_11CallNoOpTwoILi5EEENS_11CallNoOpTwo"
           "ILi6EEEE8finalizeEPPvPb",
           "grpc::internal::CallOpSetRun<>::finalize");
}

// Every beginning of a name, and every name with one other character, ends in some text.
static void damaged_names_do_no_harm(void **state)
{
    static const char name[] = "_ZZN1a1bILi4ELb1EL5Color2EE1cIJNS_1dEEEC2IFvT0_EEEvDpT_St4sortE9z";
    static const char others[] = "0129ZNIELSTCD_ac";
    char out[16];
    (void)state;
    for (size_t i = 0; i < sizeof(name) - 1; i++) {
        // In memory of its own, so that a sanitizer sees what is read behind its end.
        char *copy = strdup(name);
        assert_non_null(copy);
        for (const char *other = others; *other != '\0'; other++) {
            copy[i] = *other;
            mangled_read(copy, out, sizeof(out));
            assert_in_range(strlen(out), 1, sizeof(out) - 1);
        }
        copy[i] = '\0';
        mangled_read(copy, out, sizeof(out));
        free(copy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_readable),
        cmocka_unit_test(long_names_keep_what_is_readable),
        cmocka_unit_test(damaged_names_do_no_harm),
    };
    return cmocka_run_group_tests_name("mangled", tests, NULL, NULL);
}
