// SPDX-License-Identifier: Apache-2.0
//
// Calls a function of the test after each read of a memory area, so that the test can change the
// memory between two reads, like a hostile process that shares the memory. The pages are protected:
// a read faults, the fault handler unprotects the pages for a single step of the CPU, and the trap
// handler calls the test's function. x86-64 Linux, one thread, one area at a time.

#ifndef LOCKSTEP_TESTS_BETWEEN_READS_H
#define LOCKSTEP_TESTS_BETWEEN_READS_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define BETWEEN_READS 1
#else
#define BETWEEN_READS 0
#endif

#define BETWEEN_TRAP_FLAG 0x100

static struct {
    uint8_t *memory; // Whole pages.
    size_t bytes;
    // Called after each read, with the address that was read. It may write to the memory.
    void (*read)(const void *address);
    const void *address;
    struct sigaction fault;
    struct sigaction trap;
} between;

static inline void between_protect(int protection)
{
    (void)mprotect(between.memory, between.bytes, protection);
}

static inline void between_fault(int signal, siginfo_t *info, void *context)
{
    ucontext_t *machine = context;
    const uint8_t *address = info->si_addr;
    (void)signal;
    if (address < between.memory || address >= between.memory + between.bytes) {
        (void)sigaction(SIGSEGV, &between.fault, NULL);
        return;
    }
    between.address = address;
    between_protect(PROT_READ | PROT_WRITE);
    machine->uc_mcontext.gregs[REG_EFL] |= BETWEEN_TRAP_FLAG;
}

static inline void between_step(int signal, siginfo_t *info, void *context)
{
    ucontext_t *machine = context;
    (void)signal;
    (void)info;
    machine->uc_mcontext.gregs[REG_EFL] &= ~(greg_t)BETWEEN_TRAP_FLAG;
    between.read(between.address);
    between_protect(PROT_NONE);
}

static inline void between_begin(void *memory, size_t bytes, void (*read)(const void *address))
{
    struct sigaction fault = {.sa_sigaction = between_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    struct sigaction step = {.sa_sigaction = between_step, .sa_flags = SA_SIGINFO};
    between.memory = memory;
    between.bytes = bytes;
    between.read = read;
    (void)sigaction(SIGSEGV, &fault, &between.fault);
    (void)sigaction(SIGTRAP, &step, &between.trap);
    between_protect(PROT_NONE);
}

static inline void between_end(void)
{
    between_protect(PROT_READ | PROT_WRITE);
    (void)sigaction(SIGSEGV, &between.fault, NULL);
    (void)sigaction(SIGTRAP, &between.trap, NULL);
}

#endif
