// SPDX-License-Identifier: Apache-2.0
//
// See process.h.

#include "server/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

// The kernel sends this signal when the thread that started this process ends. The parent may live
// on with other threads, so the handler checks the parent. The signal also ends the signal thread.
#define SIGNAL_LOOK SIGUSR1

#define PARENT_CHECK_S 1

// ---- signals ----------------------------------------------------------------------------------

static void signal_set(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGNAL_LOOK);
}

void process_block_signals(void)
{
    sigset_t set;
    signal_set(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    // If a peer has closed its end, write must fail instead of ending the process.
    signal(SIGPIPE, SIG_IGN);
}

static void received(struct process_signals *signals, int number)
{
    const char *name = number == SIGTERM ? "SIGTERM" : "SIGINT";
    log_event(signals->log, LOG_LEVEL_INFO, "signal", "name=%s", name);
    if (signals->draining)
        _exit(128 + number);
    signals->draining = true;
    signals->drain(signals->context, name);
}

static void check_parent(struct process_signals *signals)
{
    if (signals->parent == 0 || getppid() == signals->parent)
        return;
    log_event(signals->log, LOG_LEVEL_WARN, "parent_ended", "pid=%d", (int)signals->parent);
    signals->parent = 0;
    if (signals->orphaned) {
        signals->orphaned(signals->context);
        return;
    }
    if (!signals->draining)
        signals->drain(signals->context, "the parent has ended");
    signals->draining = true;
}

// Returns true for SIGTERM and SIGINT, but while a parent is watched only if they come from it or,
// as Ctrl-C does, from the kernel.
static bool is_end(const struct process_signals *signals, const siginfo_t *info)
{
    if (info->si_signo != SIGTERM && info->si_signo != SIGINT)
        return false;
    return signals->parent == 0 || info->si_code == SI_KERNEL || info->si_pid == signals->parent;
}

static void wait_for_signals(void *context)
{
    static const struct timespec second = {.tv_sec = PARENT_CHECK_S};
    struct process_signals *signals = context;
    siginfo_t info;
    sigset_t set;
    signal_set(&set);
    while (!atomic_load(&signals->stopping)) {
        int number = sigtimedwait(&set, &info, signals->parent ? &second : NULL);
        if (number > 0 && is_end(signals, &info))
            received(signals, number);
        check_parent(signals);
    }
}

int process_signals_start(struct process_signals *signals)
{
    return thread_start(&signals->thread, "signals", wait_for_signals, signals);
}

void process_signals_stop(struct process_signals *signals)
{
    atomic_store(&signals->stopping, true);
    pthread_kill(signals->thread.id, SIGNAL_LOOK);
    thread_join(&signals->thread);
}

pid_t process_watch_parent(pid_t parent)
{
    pid_t now = getppid();
    if (parent == 0)
        parent = now;
    prctl(PR_SET_PDEATHSIG, SIGNAL_LOOK);
    signal(SIGHUP, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);
    return getppid() == parent ? parent : -1; // The parent may have ended before prctl took effect.
}

// ---- port file --------------------------------------------------------------------------------

int process_write_ports(const char *path, uint16_t grpc, uint16_t http, char *error,
                        size_t error_bytes)
{
    char name[PATH_MAX];
    struct stat about;
    const char *reason = "not a regular file";
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode))
        goto refused; // A device or a pipe would be replaced by a file, and removed at the end.
    int size = snprintf(name, sizeof(name), "%s.%d", path, (int)getpid());
    errno = ENAMETOOLONG;
    if (size < (int)sizeof(name))
        unlink(name); // Removes the temporary file of a process that died.
    FILE *file = size < (int)sizeof(name) ? fopen(name, "wxe") : NULL;
    if (!file)
        goto failed;
    int written = fprintf(file, "grpc=%u http=%u\n", grpc, http);
    int closed = fclose(file);
    if (written > 0 && closed == 0 && rename(name, path) == 0)
        return 0;
    int saved = errno;
    unlink(name);
    errno = saved;
failed:
    reason = strerror(errno);
refused:
    snprintf(error, error_bytes,
             "cannot write the port file '%s' (%s): choose another path with "
             "--port-file",
             path, reason);
    return -1;
}
