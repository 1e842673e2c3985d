// SPDX-License-Identifier: Apache-2.0
// lockstep.hpp: lockstep.h for C++17. Handles are objects that close themselves, failures are
// exceptions, and element types follow from pointers. Nothing here does what lockstep.h cannot do,
// and lockstep.h is the manual: Blocks, Threads and Owns are as there.
//
//     lockstep::session session;                         // joins the job
//     lockstep::description line("line");
//     line.parameter("w", &w, {}, &gradient);
//     lockstep::module module(session, line);
//     session.start();
//     for (every batch) {
//         lockstep::step step(session);
//         lockstep::call call(step, module);             // backward begins
//         call.ready(0);                                 // for each parameter
//         call.end();
//         step.end();                                    // gradients are averaged now
//         ... optimizer ...
//     }
//
// A function of lockstep.h that is not here takes the handle of an object:
// lockstep::check(lockstep_parameter_move(module.get(), 0, data, gradient));
//
// Objects. session, module, group, work and memory can be moved and not copied. step and call stay
// where they are made. The session outlives everything that was made from it.
//
// Failures. A function that fails throws lockstep::error, with the status and the text of
// lockstep_error_text. Destructors throw nothing: call close() or end() to see a failure.
//
// Leaving a step. A call or a step whose end() did not succeed is given up when its scope is left,
// by an exception or by any other way:
//
// - The call is given up (lockstep_call_abort). The step is ended, which waits for the other ranks.
//   With LOCKSTEP_ABORT_ERROR they get LOCKSTEP_E_UNUSED for this step. The session goes on.
// - If no call of the step was given up, the other ranks could not be told that the step is not
//   whole. The session is then aborted: the other ranks get LOCKSTEP_E_PEER_LOST. They get the
//   text of an exception only if a catch inside the step calls session.abort(error.what()).
//
// To go on after an exception without giving up, catch it before the scope ends.
#ifndef LOCKSTEP_LOCKSTEP_HPP
#define LOCKSTEP_LOCKSTEP_HPP

#include <lockstep/lockstep.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#ifndef __cpp_exceptions
#error "lockstep.hpp reports failures as exceptions: use lockstep/lockstep.h without them"
#endif

namespace lockstep
{

// ---- Failures -----------------------------------------------------------------------------------

// A function of the library has failed. what() is the text of lockstep_error_text.
class error : public std::runtime_error
{
  public:
    error(int status, const std::string &text) : std::runtime_error(text), status_(status) {}

    // LOCKSTEP_E_PEER_LOST and others: what the caller does next.
    lockstep_status status() const noexcept { return static_cast<lockstep_status>(status_); }
    const char *name() const noexcept { return lockstep_status_name(status_); }

  private:
    int status_;
};

// Throws the failure that a function of lockstep.h has just returned on this thread. Returns the
// status if it is none.
inline lockstep_status check(int status)
{
    if (status < 0)
        throw error(status, lockstep_error_text());
    return static_cast<lockstep_status>(status);
}

namespace detail
{

// Like check, but also returns LOCKSTEP_E_TIMEOUT: nothing is lost, wait again.
inline lockstep_status check_wait(int status)
{
    return status == LOCKSTEP_E_TIMEOUT ? LOCKSTEP_E_TIMEOUT : check(status);
}

// What a function of lockstep.h writes behind its last argument.
template <class T, class Function, class... Arguments>
T written(Function function, Arguments... arguments)
{
    T made{};
    check(function(arguments..., &made));
    return made;
}

inline uint32_t size_of(const std::vector<uint32_t> &list)
{
    return static_cast<uint32_t>(list.size());
}

// Owns a handle and closes it.
template <class Handle, int (*close_handle)(Handle *)> class owner
{
  public:
    Handle *get() const noexcept { return handle_.get(); }
    // Closes the handle, as the destructor does, and throws if that fails.
    void close()
    {
        check(close_handle(handle_.get()));
        static_cast<void>(handle_.release());
    }

  protected:
    explicit owner(Handle *handle) noexcept : handle_(handle) {}

  private:
    struct closer {
        void operator()(Handle *handle) const noexcept { static_cast<void>(close_handle(handle)); }
    };
    std::unique_ptr<Handle, closer> handle_;
};

struct memory_closer {
    lockstep_session *session = nullptr;
    void operator()(void *memory) const noexcept
    {
        static_cast<void>(lockstep_free(session, memory));
    }
};

// Memory of a work in flight is the library's, so the work is waited for.
struct work_closer {
    void operator()(lockstep_work *work) const noexcept
    {
        static_cast<void>(lockstep_work_wait(work, LOCKSTEP_WAIT_FOREVER));
    }
};

template <class T> constexpr lockstep_dtype dtype()
{
    static_assert(std::is_arithmetic_v<T>, "specialize lockstep::dtype_of for this element type");
    constexpr bool is_signed = std::is_signed_v<T>;
    if constexpr (std::is_same_v<T, bool>)
        return LOCKSTEP_BOOL;
    else if constexpr (std::is_floating_point_v<T>) {
        static_assert(sizeof(T) == 4 || sizeof(T) == 8, "the library has no long double");
        return sizeof(T) == 4 ? LOCKSTEP_FLOAT32 : LOCKSTEP_FLOAT64;
    } else if constexpr (sizeof(T) == 1)
        return is_signed ? LOCKSTEP_INT8 : LOCKSTEP_UINT8;
    else if constexpr (sizeof(T) == 2)
        return is_signed ? LOCKSTEP_INT16 : LOCKSTEP_UINT16;
    else if constexpr (sizeof(T) == 4)
        return is_signed ? LOCKSTEP_INT32 : LOCKSTEP_UINT32;
    else
        return is_signed ? LOCKSTEP_INT64 : LOCKSTEP_UINT64;
}

// The type T in a place from which it is not deduced, so that nullptr fits.
template <class T> struct identity {
    using type = T;
};
template <class T> using same = typename identity<T>::type;

} // namespace detail

// The element type of the library for T. For a type of 16-bit floats:
//     template <> inline constexpr lockstep_dtype lockstep::dtype_of<half> = LOCKSTEP_FLOAT16;
template <class T> inline constexpr lockstep_dtype dtype_of = detail::dtype<T>();

// Memory of session::allocate.
template <class T> using memory = std::unique_ptr<T[], detail::memory_closer>;

// ---- Collectives --------------------------------------------------------------------------------

// Describes a collective of any kind, for session::run, group::run, or begin for work that goes on.
// Set further fields of the result: op, root, peer, tag, counts, offsets, weight. `name` is read by
// run and begin: lockstep::collective<float>(LOCKSTEP_ALL_GATHER, "x", part, whole, 3).
template <class T>
lockstep_collective collective(lockstep_collective_kind kind, const char *name,
                               const detail::same<T> *input, detail::same<T> *output,
                               uint64_t count)
{
    lockstep_collective made = LOCKSTEP_COLLECTIVE_INIT;
    made.kind = kind;
    made.name = name;
    made.input = input;
    made.output = output;
    made.count = count;
    made.dtype = dtype_of<T>;
    return made;
}
template <class T>
lockstep_collective allreduce(const char *name, T *data, uint64_t count,
                              lockstep_op op = LOCKSTEP_SUM)
{
    lockstep_collective made = collective<T>(LOCKSTEP_ALLREDUCE, name, nullptr, data, count);
    made.op = op;
    return made;
}
template <class T>
lockstep_collective broadcast(const char *name, T *data, uint64_t count, uint32_t root = 0)
{
    lockstep_collective made = collective<T>(LOCKSTEP_BROADCAST, name, nullptr, data, count);
    made.root = root;
    return made;
}
inline lockstep_collective barrier(const char *name)
{
    return collective<float>(LOCKSTEP_BARRIER, name, nullptr, nullptr, 0);
}

// A collective in flight. Its memory is borrowed until wait() returns true or throws. The
// destructor waits, too.
class work
{
  public:
    explicit work(lockstep_work *handle) noexcept : handle_(handle) {}

    lockstep_work *get() const noexcept { return handle_.get(); }

    // False if the work is still in flight after timeout_ms; 0 only asks.
    bool wait(uint32_t timeout_ms = LOCKSTEP_WAIT_FOREVER)
    {
        const int status = lockstep_work_wait(handle_.get(), timeout_ms);
        if (status != LOCKSTEP_E_TIMEOUT)
            static_cast<void>(handle_.release()); // The library has freed it.
        return detail::check_wait(status) != LOCKSTEP_E_TIMEOUT;
    }

  private:
    std::unique_ptr<lockstep_work, detail::work_closer> handle_;
};

// ---- The session --------------------------------------------------------------------------------

class session : public detail::owner<lockstep_session, lockstep_close>
{
  public:
    // Joins the job that the environment names.
    session() : session(nullptr) {}
    explicit session(const lockstep_config &config) : session(&config) {}

    void abort(const char *reason = nullptr) { check(lockstep_abort(get(), reason)); }
    // How the world has changed (config.on_failure LOCKSTEP_ON_FAILURE_CONTINUE).
    lockstep_change world_change() const
    {
        lockstep_change made = LOCKSTEP_CHANGE_INIT;
        check(lockstep_world_change(get(), &made));
        return made;
    }

    uint32_t rank() const { return world().first; }
    uint32_t world_size() const { return world().second; }
    // The leaves of this rank: `count` of them from `first`, of `total` in the job.
    struct leaf_range {
        uint32_t first;
        uint32_t count;
        uint32_t total;
    };
    leaf_range leaves() const
    {
        leaf_range made{};
        check(lockstep_leaves(get(), &made.first, &made.count, &made.total));
        return made;
    }
    void start() { check(lockstep_start(get())); }
    // What happens from the next step on when ranks run out of data.
    void uneven(lockstep_uneven rule) { check(lockstep_uneven_set(get(), rule)); }

    void run(lockstep_collective what, uint32_t timeout_ms = LOCKSTEP_WAIT_FOREVER)
    {
        check(lockstep_collective_run(get(), &what, timeout_ms));
    }
    [[nodiscard]] work begin(lockstep_collective what)
    {
        return work(detail::written<lockstep_work *>(lockstep_collective_begin, get(), &what));
    }

    // `count` elements, all zero bytes.
    template <class T> memory<T> allocate(std::size_t count)
    {
        static_assert(std::is_trivially_copyable_v<T>, "tensors hold plain elements");
        if (count > std::numeric_limits<std::size_t>::max() / sizeof(T))
            throw std::bad_array_new_length();
        void *made = detail::written<void *>(lockstep_alloc, get(), count * sizeof(T));
        return memory<T>(static_cast<T *>(made), detail::memory_closer{get()});
    }

    void counter_add(const char *name, int64_t delta)
    {
        check(lockstep_counter_add(get(), name, delta));
    }
    int64_t counter_read(const char *name) const
    {
        return detail::written<int64_t>(lockstep_counter_read, get(), name);
    }
    void metric_add(const char *name, lockstep_metric_kind kind, double value)
    {
        check(lockstep_metric_add(get(), name, kind, value));
    }
    // The value, and the number of values behind it if `count` is given.
    double metric_read(const char *name, uint64_t *count = nullptr) const
    {
        double value = 0;
        check(lockstep_metric_read(get(), name, &value, count));
        return value;
    }
    void mark(const char *text) { check(lockstep_mark(get(), text)); }
    void pause(const char *reason, uint64_t expected_ms)
    {
        check(lockstep_pause(get(), reason, expected_ms));
    }
    void resume() { check(lockstep_resume(get())); }

    void state_check() { check(lockstep_state_check(get())); }
    void state_sync() { check(lockstep_state_sync(get())); }
    uint64_t state_hash() const { return detail::written<uint64_t>(lockstep_state_hash, get()); }
    void layout_save(const char *path) { check(lockstep_layout_save(get(), path)); }
    void layout_load(const char *path) { check(lockstep_layout_load(get(), path)); }
    void save(const char *path) { check(lockstep_session_save(get(), path)); }
    void load(const char *path) { check(lockstep_session_load(get(), path)); }

    // Of the step that finished last.
    lockstep_report report(uint64_t step) const
    {
        lockstep_report made = LOCKSTEP_REPORT_INIT;
        check(lockstep_step_report(get(), step, 0, &made));
        return made;
    }

  private:
    explicit session(const lockstep_config *config)
        : owner(detail::written<lockstep_session *>(lockstep_open, config))
    {
    }
    std::pair<uint32_t, uint32_t> world() const
    {
        std::pair<uint32_t, uint32_t> made;
        check(lockstep_world(get(), &made.first, &made.second));
        return made;
    }
};

// Ranks that make collectives among themselves.
class group : public detail::owner<lockstep_group, lockstep_group_close>
{
  public:
    group(session &of, const std::vector<uint32_t> &ranks, const char *name)
        : owner(detail::written<lockstep_group *>(lockstep_group_create, of.get(), ranks.data(),
                                                  detail::size_of(ranks), name)),
          session_(of.get())
    {
    }

    uint32_t rank() const { return world().first; }
    uint32_t size() const { return world().second; }

    void run(lockstep_collective what, uint32_t timeout_ms = LOCKSTEP_WAIT_FOREVER)
    {
        what.group = get();
        check(lockstep_collective_run(session_, &what, timeout_ms));
    }
    [[nodiscard]] work begin(lockstep_collective what)
    {
        what.group = get();
        return work(detail::written<lockstep_work *>(lockstep_collective_begin, session_, &what));
    }

  private:
    std::pair<uint32_t, uint32_t> world() const
    {
        std::pair<uint32_t, uint32_t> made;
        check(lockstep_group_world(get(), &made.first, &made.second));
        return made;
    }

    lockstep_session *session_;
};

// ---- Modules ------------------------------------------------------------------------------------

// What a module consists of. Owns names and shapes; the tensors stay the trainer's.
class description
{
  public:
    explicit description(std::string name) { config.name = keep(std::move(name)); }
    description(description &&) = default;
    description &operator=(description &&) = default;

    // Everything but parameters and buffers. A module of a group has config.group = group.get().
    lockstep_module_config config = LOCKSTEP_MODULE_INIT;

    // The next parameter or buffer. The reference is valid until the next call of this function.
    template <class T>
    lockstep_parameter &parameter(std::string name, T *data, std::vector<int64_t> shape,
                                  detail::same<T> *gradient = nullptr)
    {
        lockstep_parameter made = LOCKSTEP_PARAMETER_INIT;
        place(made, std::move(name), data, std::move(shape));
        made.gradient = gradient;
        return parameters_.emplace_back(made);
    }
    // The same with a gradient of another type than the value's.
    template <class T, class Gradient>
    lockstep_parameter &mixed_parameter(std::string name, T *data, std::vector<int64_t> shape,
                                        Gradient *gradient)
    {
        lockstep_parameter &made = parameter(std::move(name), data, std::move(shape));
        made.gradient = gradient;
        made.gradient_dtype = static_cast<uint32_t>(dtype_of<Gradient>);
        return made;
    }
    template <class T>
    lockstep_buffer &buffer(std::string name, T *data, std::vector<int64_t> shape,
                            lockstep_buffer_policy policy = LOCKSTEP_BUFFER_AT_START)
    {
        lockstep_buffer made = LOCKSTEP_BUFFER_INIT;
        place(made, std::move(name), data, std::move(shape));
        made.policy = policy;
        return buffers_.emplace_back(made);
    }

    // For lockstep_module_register; valid as long as the description does not change. With
    // config.replicas the parameters are those of all replicas.
    lockstep_module_config made() const
    {
        const uint64_t replicas = config.replicas ? config.replicas : 1;
        if (parameters_.size() % replicas != 0)
            throw error(LOCKSTEP_E_INVALID,
                        "module '" + std::string(config.name) + "' has " +
                            std::to_string(parameters_.size()) + " parameters for " +
                            std::to_string(replicas) +
                            " replicas: give each replica all its parameters, replica by replica");
        lockstep_module_config all = config;
        all.parameters = parameters_.data();
        all.parameter_count = static_cast<uint32_t>(parameters_.size() / replicas);
        all.buffers = buffers_.data();
        all.buffer_count = static_cast<uint32_t>(buffers_.size());
        return all;
    }

  private:
    const char *keep(std::string text) { return names_.emplace_back(std::move(text)).c_str(); }
    template <class Tensor, class T>
    void place(Tensor &tensor, std::string name, T *data, std::vector<int64_t> shape)
    {
        tensor.name = keep(std::move(name));
        tensor.dtype = dtype_of<T>;
        tensor.dims = static_cast<uint32_t>(shape.size());
        tensor.shape = shapes_.emplace_back(std::move(shape)).data();
        tensor.data = data;
    }

    std::deque<std::string> names_; // What is in a deque stays where it is.
    std::deque<std::vector<int64_t>> shapes_;
    std::vector<lockstep_parameter> parameters_;
    std::vector<lockstep_buffer> buffers_;
};

// Parameters that are synchronized together. The destructor closes the module.
class module : public detail::owner<lockstep_module, lockstep_module_close>
{
  public:
    explicit module(session &of, const description &what) : module(of, what.made()) {}
    explicit module(session &of, const lockstep_module_config &config)
        : owner(detail::written<lockstep_module *>(lockstep_module_register, of.get(), &config)),
          count_(config.parameter_count)
    {
    }

    uint32_t parameter_count() const noexcept { return count_; }

    std::vector<void *> gradients()
    {
        std::vector<void *> made(count_);
        check(lockstep_module_gradients(get(), made.data(), count_));
        return made;
    }
    void freeze(const std::vector<uint32_t> &parameters, bool frozen = true)
    {
        check(
            lockstep_module_freeze(get(), parameters.data(), detail::size_of(parameters), frozen));
    }
    std::vector<uint32_t> usage()
    {
        std::vector<uint32_t> ranks(count_);
        check(lockstep_module_usage(get(), ranks.data(), count_));
        return ranks;
    }
    std::vector<uint8_t> used() const
    {
        std::vector<uint8_t> made(count_);
        check(lockstep_module_used(get(), made.data(), count_));
        return made;
    }

    // Where the means of the last step are. nullptr: the parameter has none.
    std::vector<void *> means(uint32_t call = 0)
    {
        std::vector<void *> made(count_);
        check(lockstep_module_means(get(), call, made.data(), count_));
        return made;
    }
    // The parameters in one bucket of the open step: see call::next.
    std::vector<uint32_t> bucket(uint32_t number) const
    {
        const uint32_t *parameters = nullptr;
        uint32_t count = 0;
        check(lockstep_bucket_parameters(get(), number, &parameters, &count));
        return std::vector<uint32_t>(parameters, parameters + count);
    }

  private:
    uint32_t count_;
};

// ---- The step -----------------------------------------------------------------------------------

class step
{
  public:
    explicit step(session &of,
                  const lockstep_step_options &options = lockstep_step_options LOCKSTEP_STEP_INIT)
        : session_(of.get())
    {
        finished_ = check(lockstep_step_begin(session_, &options, &view_)) == LOCKSTEP_FINISHED;
        over_ = finished_;
    }
    step(const step &) = delete;
    step &operator=(const step &) = delete;
    ~step()
    {
        if (over_ && !(refused_ && is_open()))
            return;
        if (given_up_)
            static_cast<void>(lockstep_step_end(session_, nullptr));
        else
            static_cast<void>(lockstep_abort(
                session_, std::uncaught_exceptions() > exceptions_
                              ? "an exception left a step before its end: that rank has its text"
                              : "a step was left before its end"));
    }

    // True if there is no step, because ranks have run out of data (config.uneven).
    bool finished() const noexcept { return finished_; }
    const lockstep_step_view &view() const noexcept { return view_; }

    // Waits until every gradient is averaged on every rank.
    void end(void *stream = nullptr)
    {
        const int status = lockstep_step_end(session_, stream);
        leave(status);
        check(status);
    }
    // The same for at most timeout_ms. False: call it again, or end().
    bool wait(uint32_t timeout_ms, void *stream = nullptr)
    {
        const int status = lockstep_step_wait(session_, stream, timeout_ms);
        leave(status);
        return detail::check_wait(status) != LOCKSTEP_E_TIMEOUT;
    }

  private:
    friend class call;
    // With an open call the library refuses, and the step goes on.
    void leave(int status) noexcept
    {
        over_ = open_calls_ == 0 && status != LOCKSTEP_E_TIMEOUT;
        refused_ = status == LOCKSTEP_E_INVALID;
    }
    // A step that is over has a report.
    bool is_open() const noexcept
    {
        lockstep_report report = LOCKSTEP_REPORT_INIT;
        return lockstep_step_report(session_, view_.step, 0, &report) < 0;
    }

    lockstep_session *session_;
    lockstep_step_view view_ = LOCKSTEP_STEP_VIEW_INIT;
    uint32_t open_calls_ = 0;
    bool finished_ = false;
    bool over_ = false;
    bool refused_ = false; // True if the last end was LOCKSTEP_E_INVALID: the step may be open.
    bool given_up_ = false; // True if a call of this step was given up.
    int exceptions_ = std::uncaught_exceptions(); // When the step began.
};

// A backward pass of a module.
class call
{
  public:
    call(step &of, const module &what) : step_(of), module_(what.get())
    {
        check(lockstep_call_begin(module_, &handle_));
        step_.open_calls_++;
        open_ = true;
    }
    call(const call &) = delete;
    call &operator=(const call &) = delete;
    ~call()
    {
        if (open_)
            static_cast<void>(give_up());
    }

    lockstep_call *get() const noexcept { return handle_; }

    // Several threads may report at once, through the functions of lockstep.h or these.
    void ready(uint32_t parameter, void *gradient = nullptr, void *stream = nullptr) const
    {
        check(lockstep_grad_ready(module_, handle_, parameter, gradient, stream));
    }
    void unused(const std::vector<uint32_t> &parameters)
    {
        check(lockstep_call_unused(handle_, parameters.data(), detail::size_of(parameters)));
    }
    void end()
    {
        check(lockstep_call_end(handle_));
        close();
    }
    // Gives up the call, as the destructor does if end() has not succeeded.
    void abort() { check(give_up()); }

    // Waits for the gradients of this call, after end(). LOCKSTEP_OK, LOCKSTEP_DEFERRED, or
    // LOCKSTEP_E_TIMEOUT after timeout_ms.
    lockstep_status wait(uint32_t timeout_ms = LOCKSTEP_WAIT_FOREVER)
    {
        return detail::check_wait(lockstep_call_wait(handle_, timeout_ms));
    }
    // Waits for the next finished bucket of this call, after end(). LOCKSTEP_OK: `bucket` is its
    // number, for module::bucket. LOCKSTEP_FINISHED: all were handed out. LOCKSTEP_DEFERRED, or
    // LOCKSTEP_E_TIMEOUT after timeout_ms.
    lockstep_status next(uint32_t &bucket, uint32_t timeout_ms = LOCKSTEP_WAIT_FOREVER)
    {
        return detail::check_wait(lockstep_call_next(handle_, timeout_ms, &bucket));
    }

  private:
    int give_up() noexcept
    {
        const int status = lockstep_call_abort(handle_);
        if (status >= 0) {
            step_.given_up_ = true;
            close();
        }
        return status;
    }
    void close() noexcept
    {
        open_ = false;
        step_.open_calls_--;
    }

    step &step_;
    lockstep_module *module_;
    lockstep_call *handle_ = nullptr;
    bool open_ = false;
};

} // namespace lockstep

#endif
