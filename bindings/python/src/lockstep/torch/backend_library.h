// SPDX-License-Identifier: Apache-2.0
//
// The functions of liblockstep.so and of Python, and PyTorch's exceptions, that the backend in C++
// uses.

#pragma once

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <lockstep/lockstep.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

// The functions of Python's stable ABI that this file uses.
struct _object;
extern "C" {
int PyGILState_Ensure(void);
void PyGILState_Release(int);
int PyErr_CheckSignals(void);
}

// PyTorch's exceptions that Python sees, as torch/csrc/Exceptions.h has them. That header needs
// Python.h. The package tests them when it loads this file.
namespace torch
{
struct PyTorchError : public std::exception {
    explicit PyTorchError(std::string text) : msg(std::move(text)) {}
    virtual _object *python_type() = 0;
    const char *what() const noexcept override
    {
        return msg.c_str();
    }
    std::string msg;
};
} // namespace torch

// The exception that Python has set on this thread is raised.
struct python_error : public std::exception {
    const char *what() const noexcept override
    {
        return message.c_str();
    }
    _object *type = nullptr, *value = nullptr, *traceback = nullptr;
    std::string message = "an exception of a signal handler";
};

namespace
{

using at::Tensor;
using std::chrono::milliseconds;
using clock = std::chrono::steady_clock;
using tensors = std::vector<Tensor>;
using lists = std::vector<tensors>;
using c10d::OpType;

constexpr uint32_t SLICE_MS = 100; // How long a wait keeps the main thread from seeing signals.
// A future of so many bytes has a thread that waits, because a wait does the engine's work. A small
// one is faster by lockstep_work_notify.
constexpr int64_t HELP_BYTES = 1 << 20;
constexpr auto IDLE = std::chrono::seconds(5); // A thread without tasks ends after this time.
constexpr auto CLOSE = std::chrono::seconds(5); // How long the end waits for a wait it has ended.

// The library has 256 collectives in flight at most. Sends and receives have limits of their own,
// because receives that fill all places would keep back the sends that end them.
enum lane {
    COLLECTIVES,
    SENDS,
    RECEIVES,
    LANES
};
constexpr int LIMITS[LANES] = {96, 64, 64};

// --- the library ---------------------------------------------------------------------------------

// Functions of lockstep.h, in the order of the addresses that Python gives.
struct functions {
    decltype(&lockstep_abort) abort;
    decltype(&lockstep_collective_begin) collective_begin;
    decltype(&lockstep_collective_wait) collective_wait;
    decltype(&lockstep_error_text) error_text;
    decltype(&lockstep_group_close) group_close;
    decltype(&lockstep_group_create) group_create;
    decltype(&lockstep_group_world) group_world;
    decltype(&lockstep_work_notify) work_notify;
    decltype(&lockstep_work_wait) work_wait;
    decltype(&lockstep_world) world;
    decltype(&lockstep_world_change) world_change;
} lib;

std::map<int, _object *> exceptions; // The class of each status. Set by load, then constant.

struct failure : public torch::PyTorchError {
    int status;
    failure(int code, const std::string &text) : PyTorchError(text), status(code) {}
    _object *python_type() override
    {
        const auto found = exceptions.find(status);
        return found != exceptions.end() ? found->second : exceptions.at(0);
    }
};

[[noreturn]] void unsupported(const std::string &text)
{
    throw failure(LOCKSTEP_E_UNSUPPORTED, "the backend lockstep has no " + text);
}

constexpr std::pair<at::ScalarType, lockstep_dtype> DTYPES[] = {
    {at::kFloat, LOCKSTEP_FLOAT32}, {at::kDouble, LOCKSTEP_FLOAT64},
    {at::kHalf, LOCKSTEP_FLOAT16},  {at::kBFloat16, LOCKSTEP_BFLOAT16},
    {at::kChar, LOCKSTEP_INT8},     {at::kShort, LOCKSTEP_INT16},
    {at::kInt, LOCKSTEP_INT32},     {at::kLong, LOCKSTEP_INT64},
    {at::kByte, LOCKSTEP_UINT8},    {at::kUInt16, LOCKSTEP_UINT16},
    {at::kUInt32, LOCKSTEP_UINT32}, {at::kUInt64, LOCKSTEP_UINT64},
    {at::kBool, LOCKSTEP_BOOL},
};

// 0: the library does not know elements of this type.
lockstep_dtype dtype_of(at::ScalarType type)
{
    for (const auto &[known, dtype] : DTYPES)
        if (known == type)
            return dtype;
    return lockstep_dtype(0);
}

failure failure_of(int status)
{
    return failure(status, lib.error_text());
}

bool on_main_thread()
{
    return syscall(SYS_gettid) == getpid();
}

// Runs Python's signal handlers. Throws what they raise.
void check_signals()
{
    if (!on_main_thread())
        return;
    const int state = PyGILState_Ensure();
    const int raised = PyErr_CheckSignals();
    PyGILState_Release(state);
    if (raised)
        throw python_error();
}

clock::time_point far()
{
    return clock::now() + std::chrono::hours(24 * 365);
}

} // namespace
