// SPDX-License-Identifier: Apache-2.0
//
// Loads the fake libraries; see fake_gpu.h.
#include "tests/support/fake_gpu.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

// Finds a fake library in build/tests/fake_gpu/. Test programs lie in build/tests/<kind>/ or in a
// folder of it.
static void library_path(const char *name, char *path, size_t bytes)
{
    char program[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    program[length > 0 ? length : 0] = '\0';
    char *tests = NULL;
    for (char *at = strstr(program, "/tests/"); at; at = strstr(at + 1, "/tests/"))
        tests = at;
    if (tests)
        *tests = '\0';
    snprintf(path, bytes, "%.3000s/tests/fake_gpu/%s", program, name);
}

static void library_name(const char *variable, const char *name)
{
    const char *other = getenv("LOCKSTEP_TEST_DEVICES");
    char path[PATH_MAX];
    library_path(name, path, sizeof(path));
    if (other)
        snprintf(path, sizeof(path), "%.3000s/%s", other, name);
    setenv(variable, path, 1);
}

void fake_gpu_name_libraries(void)
{
    library_name("LOCKSTEP_CUDA_LIBRARY", "libcuda-fake.so");
    library_name("LOCKSTEP_NCCL_LIBRARY", "libnccl-fake.so");
}

void fake_gpu_part_hosts(unsigned rank)
{
    char host[24];
    snprintf(host, sizeof(host), "host-%u", rank);
    setenv("NCCL_HOSTID", host, 1);
}

static void *library_open(const char *variable)
{
    void *handle = dlopen(getenv(variable), RTLD_NOW | RTLD_LOCAL);
    if (handle)
        return handle;
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
}

static void function_find(void *library, const char *name, void *function)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "a fake library has no %s\n", name);
        exit(1);
    }
    memcpy(function, &found, sizeof(found));
}

const struct fake_controls *fake_gpu_install(void)
{
    static struct fake_controls controls;
    if (controls.reload)
        return &controls;
    fake_gpu_name_libraries();
    void *cuda = library_open("LOCKSTEP_CUDA_LIBRARY");
    void *nccl = library_open("LOCKSTEP_NCCL_LIBRARY");
    function_find(cuda, "fake_gpu_reload", &controls.reload);
    function_find(cuda, "fake_gpu_calls", &controls.calls);
    function_find(cuda, "fake_gpu_live", &controls.live);
    function_find(cuda, "fake_gpu_complaint", &controls.complaint);
    function_find(cuda, "fake_gpu_hold", &controls.hold);
    function_find(cuda, "fake_gpu_lose", &controls.lose);
    function_find(cuda, "fake_gpu_peek", &controls.peek);
    function_find(nccl, "fake_nccl_reload", &controls.nccl_reload);
    function_find(nccl, "fake_nccl_calls", &controls.nccl_calls);
    function_find(nccl, "fake_nccl_live", &controls.nccl_live);
    function_find(nccl, "fake_nccl_report", &controls.nccl_report);
    return &controls;
}

static void weather_clear(void)
{
    for (size_t i = 0; environ[i];) {
        char name[64];
        const size_t length = strcspn(environ[i], "=");
        if (strncmp(environ[i], "FAKE_", 5) != 0 || length >= sizeof(name)) {
            i++;
            continue;
        }
        memcpy(name, environ[i], length);
        name[length] = '\0';
        unsetenv(name);
    }
}

void fake_gpu_weather(const char *variable, ...)
{
    va_list variables;
    weather_clear();
    va_start(variables, variable);
    for (; variable; variable = va_arg(variables, const char *)) {
        char name[64];
        const size_t length = strcspn(variable, "=");
        if (length >= sizeof(name) || variable[length] != '=')
            abort();
        memcpy(name, variable, length);
        name[length] = '\0';
        setenv(name, variable + length + 1, 1);
    }
    va_end(variables);
    fake_gpu_install()->reload();
    fake_gpu_install()->nccl_reload();
}
