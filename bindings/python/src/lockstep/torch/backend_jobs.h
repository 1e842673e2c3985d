// SPDX-License-Identifier: Apache-2.0
//
// Jobs of the backend in C++: what is in flight, the threads that look after it, and errors.
//
// A job is one call of c10d. It begins on the thread that calls. A thread that waits for a job does
// the engine's work meanwhile. A job whose future was asked for, or that nobody holds any more, is
// looked after by threads (backend_threads.h), which lockstep_work_notify wakes. For the future of
// a large job such a thread waits, and one waits for a job that is late, because the library must
// know that this rank waits: PyTorch waits for a future without a call of this backend. These
// threads also complete futures, whose callbacks may wait for other jobs, so one of them is always
// idle.
//
// Lock order: engine.mutex -> job.mutex -> engine.task_mutex.

#pragma once

#include "backend_library.h"

namespace
{

// --- jobs ----------------------------------------------------------------------------------------

struct engine;

struct call {
    lockstep_collective what = LOCKSTEP_COLLECTIVE_INIT;
    std::vector<uint64_t> input_counts, output_counts;
};

struct job : std::enable_shared_from_this<job> {
    // Set before the job begins, then constant.
    std::shared_ptr<engine> owner;
    std::shared_ptr<const std::string> name; // The name of the collective.
    const char *text = "";
    OpType type = OpType::UNKNOWN;
    enum lane lane = COLLECTIVES;
    int rank = 0, peer = -1, tag = 0; // peer -1: none, or any.
    lockstep_group *group = nullptr; // NULL: all ranks.
    int size = 0; // Members when the group was made.
    uint32_t sender = UINT32_MAX; // The library writes the sender of a receive from any source.
    uint64_t serial = 0;
    std::optional<at::Device> device; // Where tensors are that are not in host memory.
    std::vector<call> calls;
    tensors result;
    // Memory of the collectives, what is divided by the number of ranks at the end, and copies that
    // are due then: of the job until it is done.
    tensors keep;
    std::vector<Tensor> quotients;
    std::vector<std::pair<Tensor, Tensor>> copies;
    // Guarded by mutex.
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<lockstep_work *> handles;
    size_t begun = 0;
    std::exception_ptr error; // Constant once `done` is true.
    bool claimed = false; // True while a thread may ask the library for the first handle.
    bool notified = false; // True if the first handle will wake a thread.
    std::vector<c10::intrusive_ptr<at::ivalue::Future>> futures;
    // Atomic.
    std::atomic<bool> done{false}; // Set under the mutex.
    std::atomic<bool> helped{false}; // True if a thread waits for the job without a timeout.
    // True if the job completes without a thread that waits for it. Set under the mutex.
    std::atomic<bool> attended{false};

    std::string describe() const;
    void check_members() const;
    bool claim(clock::time_point until);
    void release();
    void arm_locked();
    void attend();
    void ask(uint32_t timeout_ms);
    bool look();
    bool failed_already();
    void complete();
    void help();
    void wait(milliseconds limit);
    c10::intrusive_ptr<at::ivalue::Future> future();
};

using job_ptr = std::shared_ptr<job>;

// The jobs of one session.
struct engine : std::enable_shared_from_this<engine> {
    lockstep_session *session;
    bool has_device;
    std::mutex mutex;
    std::condition_variable helpers_changed;
    std::set<job_ptr> jobs;
    std::deque<job_ptr> waiting[LANES];
    int active[LANES] = {};
    int helpers = 0;
    std::atomic<bool> ended{false}; // Set under the mutex.
    std::mutex task_mutex;
    std::condition_variable task_came;
    std::deque<std::function<void()>> tasks;
    int idle = 0;
    bool stopping = false;
    bool watching = false; // True while a thread is in wait_late. Guarded by mutex.

    void start(const job_ptr &one, bool waits);
    bool begin_locked(const job_ptr &one);
    void pump_locked();
    void ended_one(enum lane lane);
    void forget(const job_ptr &one);
    std::vector<job_ptr> all();
    void look_at_all();
    void drain();
    void stop();
    void submit(std::function<void()> task);
    void need_thread();
    void need_thread_locked();
    void attendant();
    void wait_late();
};

thread_local bool attending = false; // True on threads of engine::attendant.

std::string job::describe() const
{
    if (lane == COLLECTIVES)
        return text;
    return c10::str(text, " of rank ", rank, peer < 0 ? " with any rank" : " with rank ",
                    peer < 0 ? "" : std::to_string(peer), ", tag ", tag, ",");
}

// The number of members that are left. group: NULL for all ranks. 0: it is closed.
int members_of(const engine &owner, const lockstep_group *group)
{
    uint32_t size = 0;
    if (owner.ended)
        return 0;
    const int status =
        group ? lib.group_world(group, nullptr, &size) : lib.world(owner.session, nullptr, &size);
    return status == 0 ? int(size) : 0;
}

// A process group cannot go on after the death of a member, because PyTorch has its ranks and its
// size. what: the call that fails.
[[noreturn]] void member_lost(const engine &owner, const std::string &what)
{
    lockstep_change change = LOCKSTEP_CHANGE_INIT;
    const bool known = lib.world_change(owner.session, &change) == 0 && change.changes > 0;
    // _groups.py has the same text.
    throw failure(
        LOCKSTEP_E_PEER_LOST,
        c10::str(known ? change.text : "the world has changed", "\n", what,
                 ": a process group cannot go on after a death, because its ranks and its "
                 "size are fixed: call torch.distributed.destroy_process_group() and then "
                 "init_process_group() on the ranks that are left, with the numbers of "
                 "lockstep.torch.session(), or start the job again"));
}

// Throws if members have died: those that are left have other numbers than PyTorch knows.
void job::check_members() const
{
    const int now = members_of(*owner, group);
    if (now != 0 && now != size)
        member_lost(*owner, describe());
}

// True if this thread may ask the library. False if the job is done, or if the time is over.
bool job::claim(clock::time_point until)
{
    std::unique_lock<std::mutex> lock(mutex);
    while (!done && claimed)
        if (changed.wait_until(lock, until) == std::cv_status::timeout)
            break;
    if (done || claimed)
        return false;
    claimed = true;
    return true;
}

void job::release()
{
    std::lock_guard<std::mutex> guard(mutex);
    claimed = false;
    arm_locked();
    changed.notify_all();
}

void notify(void *context)
{
    job *one = static_cast<job *>(context);
    one->owner->submit([self = one->shared_from_this()] { self->look(); });
}

// A thread is woken when the first handle is done. The engine keeps the job until then.
void job::arm_locked()
{
    if (!attended || claimed || notified || done || handles.empty())
        return;
    notified = true;
    lib.work_notify(handles.front(), notify, this);
}

void job::attend()
{
    owner->need_thread();
    std::lock_guard<std::mutex> guard(mutex);
    attended = true;
    arm_locked();
}

// The exception of a collective that has ended with this status; NULL: it has its result. After the
// death of a member a result is that of other ranks than PyTorch knows.
std::exception_ptr error_after(const job &one, int status)
{
    const std::exception_ptr failed =
        status < 0 ? std::make_exception_ptr(failure_of(status)) : nullptr;
    if (failed && status != LOCKSTEP_E_CHANGED && status != LOCKSTEP_E_INVALID)
        return failed;
    try {
        one.check_members();
    } catch (...) {
        return std::current_exception();
    }
    return failed;
}

// Waits for the library. The caller has the claim.
void job::ask(uint32_t timeout_ms)
{
    const auto until = clock::now() + milliseconds(timeout_ms);
    while (!done) {
        lockstep_work *first = nullptr;
        {
            std::unique_lock<std::mutex> lock(mutex);
            if (!handles.empty()) {
                first = handles.front();
            } else if (begun < calls.size() && !error) { // Its turn has not come.
                if (timeout_ms == 0 || clock::now() >= until || owner->ended)
                    return;
                changed.wait_for(lock, milliseconds(10));
                continue;
            }
        }
        if (!first) {
            complete();
            return;
        }
        const int status = lib.work_wait(first, timeout_ms);
        if (status == LOCKSTEP_E_TIMEOUT)
            return;
        {
            std::lock_guard<std::mutex> guard(mutex);
            if (!error)
                error = error_after(*this, status);
            handles.pop_front();
            notified = false;
        }
        owner->ended_one(lane);
    }
}

// True if the job is done. Waits for other threads that ask, not for the job.
bool job::look()
{
    if (!done && claim(far())) {
        ask(0);
        release();
    }
    return done;
}

void settle(const c10::intrusive_ptr<at::ivalue::Future> &future, const job &one)
{
    if (one.error)
        future->setErrorIfNeeded(one.error);
    else
        future->markCompleted(at::IValue(one.result));
}

// True if the job has failed and none of its collectives is in flight.
bool job::failed_already()
{
    std::lock_guard<std::mutex> guard(mutex);
    return error && handles.empty();
}

void job::complete()
{
    bool failed;
    {
        std::lock_guard<std::mutex> guard(mutex);
        failed = bool(error);
    }
    try {
        if (!failed && !(quotients.empty() && copies.empty())) {
            at::NoGradGuard no_grad;
            for (Tensor &sum : quotients)
                sum.div_(size, "trunc");
            for (auto &[target, source] : copies)
                target.copy_(source.view(target.sizes()));
            if (device) // The stream of this thread is not that of the caller.
                c10::impl::VirtualGuardImpl(device->type()).getStream(*device).synchronize();
        }
    } catch (...) {
        std::lock_guard<std::mutex> guard(mutex);
        if (!error)
            error = std::current_exception();
    }
    keep.clear();
    quotients.clear();
    copies.clear();
    std::vector<c10::intrusive_ptr<at::ivalue::Future>> left;
    {
        std::lock_guard<std::mutex> guard(mutex);
        done = true;
        left.swap(futures);
        changed.notify_all();
    }
    const auto self = shared_from_this();
    owner->forget(self);
    for (auto &future : left) {
        if (attending)
            settle(future, *this);
        else
            owner->submit([self, future] { settle(future, *self); });
    }
}

// A thread that waits for the job. The library finds ranks that wait for each other only among
// waits without a timeout.
void job::help()
{
    {
        std::lock_guard<std::mutex> guard(owner->mutex);
        if (helped || owner->ended)
            return;
        helped = true;
        owner->helpers++;
    }
    owner->need_thread();
    owner->submit([self = shared_from_this()] {
        if (self->claim(far())) {
            self->ask(LOCKSTEP_WAIT_FOREVER);
            self->release();
        }
        std::lock_guard<std::mutex> guard(self->owner->mutex);
        self->owner->helpers--;
        self->owner->helpers_changed.notify_all();
    });
}

// limit: 0 is none. A timeout, and an exception of a signal handler, leave the job in flight.
void job::wait(milliseconds limit)
{
    const auto began = clock::now();
    const auto until = limit.count() > 0 ? began + limit : far();
    if (!done && !helped && claim(std::min(until, began + milliseconds(SLICE_MS)))) {
        ask(limit.count() > 0 ? uint32_t(std::min<int64_t>(limit.count(), SLICE_MS)) : SLICE_MS);
        release();
    }
    while (!done) {
        check_signals();
        if (clock::now() >= until)
            throw failure(
                LOCKSTEP_E_TIMEOUT,
                c10::str(describe(), ": Timed out after ", double(limit.count()) / 1000,
                         " s; it is still in flight, and has its tensors until it is done"));
        help();
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait_until(lock, std::min(until, clock::now() + milliseconds(SLICE_MS)),
                           [this] { return done.load(); });
    }
    if (error)
        std::rethrow_exception(error);
}

c10::intrusive_ptr<at::ivalue::Future> job::future()
{
    std::vector<at::Device> devices;
    if (device)
        devices.push_back(*device);
    auto made = c10::make_intrusive<at::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), devices);
    bool pending;
    {
        std::lock_guard<std::mutex> guard(mutex);
        pending = !done;
        if (pending)
            futures.push_back(made);
    }
    int64_t bytes = 0;
    for (const Tensor &tensor : result)
        bytes += tensor.is_sparse() ? 0 : int64_t(tensor.nbytes());
    if (!pending)
        settle(made, *this);
    else if (bytes >= HELP_BYTES)
        help();
    else
        attend();
    return made;
}

// --- the engine ----------------------------------------------------------------------------------

// Begins a job, or queues it. waits: the caller waits for it next.
void engine::start(const job_ptr &one, bool waits)
{
    if (one->device) {
        if (!has_device)
            throw failure(LOCKSTEP_E_UNSUPPORTED,
                          c10::str("a tensor is on ", *one->device,
                                   ", and the session of this process has no GPU: set "
                                   "LOCKSTEP_DEVICE=cuda:N, or make a tensor there before "
                                   "torch.distributed.init_process_group"));
        // The library reads inputs at once.
        c10::impl::VirtualGuardImpl(one->device->type()).getStream(*one->device).synchronize();
    }
    one->check_members();
    std::unique_lock<std::mutex> lock(mutex);
    if (ended)
        throw failure(LOCKSTEP_E_CLOSED, "the session is closed: there are no more collectives");
    auto &queued = waiting[one->lane];
    if (one->calls.empty()) {
        lock.unlock();
        one->complete();
    } else if (waits && one->calls.size() == 1 && queued.empty() &&
               active[one->lane] < LIMITS[one->lane]) {
        active[one->lane]++;
        jobs.insert(one);
        one->begun = 1;
        one->claimed = true;
        lock.unlock();
        lockstep_work *work = nullptr;
        const int status = lib.collective_wait(session, &one->calls[0].what, SLICE_MS, &work);
        if (status == LOCKSTEP_E_TIMEOUT) {
            {
                std::lock_guard<std::mutex> guard(one->mutex);
                one->handles.push_back(work);
            }
            one->release();
        } else {
            {
                std::lock_guard<std::mutex> guard(one->mutex);
                if (!one->error)
                    one->error = error_after(*one, status);
            }
            ended_one(one->lane);
            one->complete();
            if (one->error)
                std::rethrow_exception(one->error);
        }
    } else {
        jobs.insert(one);
        if (!queued.empty() || !begin_locked(one)) {
            queued.push_back(one);
            // The jobs before it make place when they are done, also if nobody waits for them.
            for (const job_ptr &other : jobs)
                if (other->lane == one->lane)
                    other->attend();
        } else if (one->failed_already()) {
            jobs.erase(one);
            one->done = true;
            std::rethrow_exception(one->error);
        }
    }
}

// False if some of the job's collectives find no place.
bool engine::begin_locked(const job_ptr &one)
{
    std::lock_guard<std::mutex> guard(one->mutex);
    while (one->begun < one->calls.size() && !one->error) {
        if (active[one->lane] >= LIMITS[one->lane])
            return false;
        one->error = error_after(*one, 0); // A job that was queued may have waited for long.
        if (one->error)
            break;
        lockstep_work *work = nullptr;
        const int status = lib.collective_begin(session, &one->calls[one->begun].what, &work);
        if (status < 0) {
            one->error = error_after(*one, status);
        } else {
            one->begun++;
            one->handles.push_back(work);
            active[one->lane]++;
            one->arm_locked();
        }
        one->changed.notify_all();
    }
    return true;
}

// Begins what is queued and has a place now.
void engine::pump_locked()
{
    for (auto &queued : waiting)
        while (!ended && !queued.empty() && begin_locked(queued.front())) {
            const job_ptr one = queued.front();
            queued.pop_front();
            if (one->failed_already())
                submit([one] { one->look(); });
        }
}

void engine::ended_one(enum lane lane)
{
    std::lock_guard<std::mutex> guard(mutex);
    active[lane]--;
    if (!waiting[lane].empty())
        pump_locked();
}

void engine::forget(const job_ptr &one)
{
    std::lock_guard<std::mutex> guard(mutex);
    jobs.erase(one);
}

std::vector<job_ptr> engine::all()
{
    std::lock_guard<std::mutex> guard(mutex);
    return {jobs.begin(), jobs.end()};
}

void engine::look_at_all()
{
    for (const job_ptr &one : all())
        if (one->claim(clock::now())) {
            one->ask(0);
            one->release();
        }
}

// Waits for jobs that all ranks have begun, so that the session does not close while another rank
// needs this one. Returns after CLOSE at the latest.
void engine::drain()
{
    const auto until = clock::now() + CLOSE;
    for (look_at_all(); !all().empty() && clock::now() < until; look_at_all())
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// The session is about to close: jobs that are not done never will be.
void engine::stop()
{
    {
        std::unique_lock<std::mutex> lock(mutex);
        ended = true;
        for (auto &queued : waiting)
            queued.clear();
        // A helper whose job is done needs no help to end.
        if (helpers > 0 && !jobs.empty())
            lib.abort(session, "the program left a wait");
        helpers_changed.wait_for(lock, CLOSE, [this] { return helpers == 0 && !watching; });
    }
    look_at_all();
    for (const job_ptr &one : all()) {
        // The library may use the job's memory until the session is closed, so the job stays in
        // the set for ever.
        std::vector<c10::intrusive_ptr<at::ivalue::Future>> left;
        {
            std::lock_guard<std::mutex> guard(one->mutex);
            if (one->done) // The job ended meanwhile.
                continue;
            if (!one->error)
                one->error = std::make_exception_ptr(failure(
                    LOCKSTEP_E_CLOSED, one->describe() + " was in flight when the session closed"));
            one->done = true;
            left.swap(one->futures);
            one->changed.notify_all();
        }
        for (auto &future : left)
            settle(future, *one);
    }
    std::lock_guard<std::mutex> guard(task_mutex);
    stopping = true;
    task_came.notify_all();
}

} // namespace
