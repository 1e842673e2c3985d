// SPDX-License-Identifier: Apache-2.0
//
// The threads that look after jobs of the backend (backend_jobs.h). They run what submit is given.

#pragma once

#include "backend_jobs.h"

namespace
{

// Never blocks: the library calls it.
void engine::submit(std::function<void()> task)
{
    std::lock_guard<std::mutex> guard(task_mutex);
    tasks.push_back(std::move(task));
    task_came.notify_one();
}

void engine::need_thread_locked()
{
    if (idle == 0) {
        idle++;
        std::thread([self = shared_from_this()] { self->attendant(); }).detach();
    }
}

void engine::need_thread()
{
    std::lock_guard<std::mutex> guard(task_mutex);
    need_thread_locked();
}

// No task has come for some time. Waits for jobs in flight, in slices: the trainer may be
// elsewhere, so this is no wait of which the library may say that nothing else follows.
void engine::wait_late()
{
    {
        std::lock_guard<std::mutex> guard(mutex);
        if (watching || ended)
            return;
        watching = true;
    }
    for (const job_ptr &one : all())
        while (!one->done && !one->helped && one->attended && !ended)
            if (one->claim(clock::now() + milliseconds(SLICE_MS))) {
                one->ask(SLICE_MS);
                one->release();
            }
    std::lock_guard<std::mutex> guard(mutex);
    watching = false;
    helpers_changed.notify_all();
}

void engine::attendant()
{
    attending = true;
    pthread_setname_np(pthread_self(), "lockstep-c10d");
    std::unique_lock<std::mutex> lock(task_mutex);
    for (;;) {
        if (tasks.empty()) {
            const bool late = task_came.wait_for(lock, IDLE) == std::cv_status::timeout;
            if (tasks.empty() && (stopping || (late && idle > 1)))
                break;
            if (!late || !tasks.empty())
                continue;
            lock.unlock();
            if (!all().empty())
                submit([self = shared_from_this()] { self->wait_late(); });
            lock.lock();
            continue;
        }
        auto task = std::move(tasks.front());
        tasks.pop_front();
        idle--;
        need_thread_locked();
        lock.unlock();
        task();
        task = nullptr;
        lock.lock();
        idle++;
    }
    idle--;
}

} // namespace
