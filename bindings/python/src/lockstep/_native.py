# SPDX-License-Identifier: Apache-2.0
# Written by tools/python-declarations from include/lockstep/lockstep.json: `make header-json`.
"""What lockstep.h declares, for ctypes. The manual of all names is lockstep.h."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER
from enum import IntEnum
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, TypedDict, Union


VERSION = "0.1.0"
VERSION_MAJOR = 0
VERSION_MINOR = 1
VERSION_PATCH = 0
PARAMETER_FROZEN = 1
"""The parameter is not trained until lockstep_module_freeze says otherwise."""
PARAMETER_SHARED = 2
"""Tied weights: the parameter is a second name of an earlier one, the owner, in the same module
or in an earlier module."""
WAIT_FOREVER = 4294967295
MAX_GROUPS = 64
"""Open groups of one session."""
ANY_SOURCE = 4294967295
"""As the peer of a RECEIVE: any other member of the group."""


class Status(IntEnum):
    """Each status is named for what the caller does next."""

    OK = 0
    DEFERRED = 1
    """Not a failure: this contribution counts in a later step."""
    FINISHED = 2
    E_INVALID = -1
    """Fix the program: this call was wrong."""
    E_UNSUPPORTED = -2
    """Do without: this build or this machine cannot."""
    E_CONFIG = -3
    """Fix the configuration or the environment."""
    E_UNREACHABLE = -4
    """Check address, network, and whether the job runs already."""
    E_TIMEOUT = -5
    """The stated time passed; waiting on may help."""
    E_MISMATCH = -6
    """Ranks run different programs: make them equal."""
    E_UNUSED = -7
    """A gradient was not produced: the text says which; go on."""
    E_PEER_LOST = -8
    """A worker is gone: restart from the last checkpoint."""
    E_CLOSED = -9
    """Aborted, or a blocking collective's time was over: stop using it."""
    E_SYSTEM = -10
    """The operating system refused; the text says what."""
    E_FORKED = -11
    """The session belongs to the parent process."""
    E_CHANGED = -12
    """The world changed, and the session goes on: call again."""


class OnFailure(IntEnum):
    """enum lockstep_on_failure."""

    ERROR = 0
    """A lost worker ends the step with an error on every rank."""
    CONTINUE = 1
    """Survivors finish the step: see lockstep_world_change."""


class Uneven(IntEnum):
    """How the job ends if ranks have data for different numbers of steps; see
    lockstep_step_begin."""

    NONE = 0
    """All ranks make equally many steps."""
    ALL = 1
    """Steps go on until every rank is exhausted."""
    FIRST = 2
    """All ranks stop when the first one is exhausted."""


class Unplanned(IntEnum):
    """Treatment of a call that is not in the plan of its step."""

    EXTEND = 0
    """All ranks run the call at the end of the step."""
    FAIL = 1
    """E_MISMATCH on every rank at lockstep_step_end."""
    DEFER = 2
    """The call counts later: "Deferred calls" below."""


class Order(IntEnum):
    """Outcome if ranks wait (lockstep_call_wait) for their calls in different orders, so that
    each waits for a call that another rank has not made."""

    ERROR = 0
    """E_MISMATCH on every rank, at once; the text names both sides."""
    ZERO_DEFER = 1
    """A wait gives up the calls that are planned before its own call and that this rank has not
    made yet: the other ranks go on without them."""


class Sum(IntEnum):
    """The order in which the contributions of ranks are added."""

    FAST = 0
    """The order of the fastest algorithm: docs/numbers.md."""
    RANKS = 1


class TransportKind(IntEnum):
    """enum lockstep_transport_kind."""

    AUTO = 0
    """Memory between ranks of one host that can share it; else TCP."""
    TCP = 1
    LOOPBACK = 2
    """Ranks are sessions of one process: for tests."""


class LogLevel(IntEnum):
    """enum lockstep_log_level."""

    ERROR = 0
    WARN = 1
    INFO = 2
    DEBUG = 3


class Dtype(IntEnum):
    """Element types."""

    FLOAT32 = 1
    FLOAT64 = 2
    INT32 = 3
    INT64 = 4
    FLOAT16 = 5
    """Added in float32, rounded to 16 bits once for each rank it passes."""
    BFLOAT16 = 6
    """Added and rounded like LOCKSTEP_FLOAT16."""
    UINT8 = 7
    INT8 = 8
    INT16 = 9
    UINT16 = 10
    UINT32 = 11
    UINT64 = 12
    BOOL = 13
    """A byte: 0 is false, every other value is true."""


class BufferPolicy(IntEnum):
    """enum lockstep_buffer_policy."""

    AT_START = 0
    """Broadcast by lockstep_start, then left alone."""
    IGNORE = 1
    """Never touched; only its declaration is compared."""
    BROADCAST = 2
    """Gets the value of the root."""
    MEAN = 3
    """Mean over ranks, each counts as 1; floating point."""
    SUM = 4
    """Sum over ranks."""


class GradientKind(IntEnum):
    """enum lockstep_gradient_kind."""

    MEAN = 0
    """Mean over this rank's samples: result is sum(w g) / sum(w)."""
    SUM = 1
    """Sum over this rank's samples: result is sum(g) / sum(w)."""


class UnusedPolicy(IntEnum):
    """Outcome if a parameter that is not declared unused was reported by no call of the step on
    some rank."""

    ERROR = 0
    """E_UNUSED on every rank at step_end, with the names."""
    WARN = 1
    """One line in the log of every rank; step_end returns OK."""
    ACCEPT = 2
    """OK; only counted in the report."""


class AbortPolicy(IntEnum):
    """Effect of lockstep_call_abort on the step."""

    ERROR = 0
    """E_UNUSED on every rank at step_end, naming rank and module."""
    ACCEPT = 1
    """OK: the mean is over ranks that did not give up; only counted."""


class Wire(IntEnum):
    """How gradients are represented between ranks."""

    SAME = 0
    """As they are: 16-bit floats are rounded once for each rank passed."""
    BFLOAT16 = 1
    """float32 travels as bfloat16: half the bytes."""
    FLOAT32 = 2
    """16-bit floats travel as float32, and are rounded once in all."""


class Op(IntEnum):
    """enum lockstep_op."""

    SUM = 0
    MEAN = 1
    """Floating point only; every rank counts as 1."""
    MIN = 2
    MAX = 3
    OR = 4
    """Bitwise; not for floating point."""
    PRODUCT = 5
    AND = 6
    """Bitwise; not for floating point."""
    XOR = 7
    """Bitwise; not for floating point."""


class CollectiveKind(IntEnum):
    """What a collective does."""

    ALLREDUCE = 1
    BROADCAST = 2
    BARRIER = 3
    REDUCE = 4
    REDUCE_SCATTER = 5
    GATHER = 6
    SCATTER = 7
    ALL_GATHER = 8
    ALL_TO_ALL = 9
    SEND = 10
    RECEIVE = 11


class MetricKind(IntEnum):
    """What becomes of the values of a metric in one step."""

    SUM = 1
    MEAN = 2
    """Their sum, divided by their number; every value counts alike."""
    MIN = 3
    MAX = 4


# Enums by their names in C.
ENUMS: Dict[str, Any] = {
    "lockstep_status": Status,
    "lockstep_on_failure": OnFailure,
    "lockstep_uneven": Uneven,
    "lockstep_unplanned": Unplanned,
    "lockstep_order": Order,
    "lockstep_sum": Sum,
    "lockstep_transport_kind": TransportKind,
    "lockstep_log_level": LogLevel,
    "lockstep_dtype": Dtype,
    "lockstep_buffer_policy": BufferPolicy,
    "lockstep_gradient_kind": GradientKind,
    "lockstep_unused_policy": UnusedPolicy,
    "lockstep_abort_policy": AbortPolicy,
    "lockstep_wire": Wire,
    "lockstep_op": Op,
    "lockstep_collective_kind": CollectiveKind,
    "lockstep_metric_kind": MetricKind,
}


class Struct(ctypes.Structure):
    """A struct that begins as its initializer in lockstep.h says."""

    INITIAL: Dict[str, int] = {}

    def __init__(self, **values: Any) -> None:
        super().__init__(**{**self.INITIAL, **values})


lockstep_log_sink = CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p)
"""Receives one logfmt line without a newline."""


class lockstep_config(Struct):
    """The configuration of a session."""

    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("coordinator", ctypes.c_char_p),
        ("job", ctypes.c_char_p),
        ("world_size", ctypes.c_uint32),
        ("world_min", ctypes.c_uint32),
        ("world_max", ctypes.c_uint32),
        ("world_window_ms", ctypes.c_uint32),
        ("rank_hint", ctypes.c_int32),
        ("open_timeout_ms", ctypes.c_uint32),
        ("advertise", ctypes.c_char_p),
        ("data_ports", ctypes.c_char_p),
        ("host_id", ctypes.c_char_p),
        ("transport", ctypes.c_uint32),
        ("on_failure", ctypes.c_uint32),
        ("bucket_first_bytes", ctypes.c_size_t),
        ("bucket_bytes", ctypes.c_size_t),
        ("bucket_last_bytes", ctypes.c_size_t),
        ("log", lockstep_log_sink),
        ("log_context", ctypes.c_void_p),
        ("log_level", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("root", ctypes.c_uint32),
        ("uneven", ctypes.c_uint32),
        ("engine_cpus", ctypes.c_char_p),
        ("engine_nice", ctypes.c_int32),
        ("trace_dir", ctypes.c_char_p),
        ("order", ctypes.c_uint32),
        ("unplanned", ctypes.c_uint32),
        ("trainer_threads", ctypes.c_uint32),
        ("wait_while_open", ctypes.c_uint32),
        ("halt_timeout_ms", ctypes.c_uint32),
        ("tls_dir", ctypes.c_char_p),
        ("device", ctypes.c_char_p),
        ("data_encryption", ctypes.c_char_p),
        ("sum", ctypes.c_uint32),
        ("virtual_ranks", ctypes.c_uint32),
        ("gradient_norm", ctypes.c_uint32),
    ]
    INITIAL = {
        "struct_bytes": 224,
        "rank_hint": -1,
        "log_level": 1,
    }


class SessionOptions(TypedDict, total=False):
    """The options that struct lockstep_config has."""

    coordinator: Optional[str]
    """"host:port" or "unix:/path", or up to 8 of these, separated by commas: each is tried in
    turn, and a name is looked up at every attempt."""
    job: Optional[str]
    """At most 63 letters, digits, '-', '_' and '.', but not "." or ".."."""
    world_size: int
    """The exact number of workers."""
    world_min: int
    """With world_size 0: the fewest workers to start with."""
    world_max: int
    """With world_size 0: the most workers; 0: world_min."""
    world_window_ms: int
    """How long to wait for one more worker once world_min are there."""
    rank_hint: int
    """The rank wished for; negative: none."""
    open_timeout_ms: int
    """How long lockstep_open waits for the world."""
    advertise: Optional[str]
    """Address at which the other workers reach this one: "10.0.0.7", "fd00::7", an interface
    ("eth0"), or a network in which this host has an address ("10.0.0.0/8")."""
    data_ports: Optional[str]
    """Ports to listen on, "20000-20099"."""
    host_id: Optional[str]
    """Equal on workers that share memory."""
    transport: Union[TransportKind, str]
    on_failure: Union[OnFailure, str]
    """Equal on all ranks."""
    bucket_first_bytes: int
    """Cap of the first bucket of each dtype."""
    bucket_bytes: int
    """Cap of the other buckets."""
    bucket_last_bytes: int
    """Approximate size of the last bucket."""
    log_level: Union[LogLevel, str]
    root: int
    """The rank whose values lockstep_start gives to all ranks."""
    uneven: Union[Uneven, str]
    """Equal on all ranks."""
    engine_cpus: Optional[str]
    """Processors on which the engine's thread may run: "3" or "2-3,7"."""
    engine_nice: int
    """Nice value of the engine's thread."""
    trace_dir: Optional[str]
    """Directory for a file that says where this worker's trainer is and what its last 2,048
    events were, also after it was killed: lockstep trace FILE."""
    order: Union[Order, str]
    """Equal on all ranks."""
    unplanned: Union[Unplanned, str]
    """Equal on all ranks."""
    trainer_threads: int
    """Number of threads of this rank that may be in lockstep_call_wait at a time."""
    wait_while_open: int
    """1: lockstep_call_wait may wait for something that needs the end of a call which is open
    here, because another thread will end it."""
    halt_timeout_ms: int
    """The coordinator tells ranks that wait for each other."""
    tls_dir: Optional[str]
    """Directory with tls.crt, tls.key and ca.crt."""
    device: Optional[str]
    """The GPUs of this rank, whose memory may hold parameters, gradients and buffers: "none"
    no GPU; "cuda:0"    CUDA's device of this number, in its primary context; "cuda:0,1"  the
    same, and further devices for further replicas of modules, at most 16; "auto"      the
    device of the context that is current on the thread that calls lockstep_open, if CUDA's
    driver is in the process, else none."""
    data_encryption: Optional[str]
    """"tls": traffic between workers over a network is encrypted."""
    sum: Union[Sum, str]
    """LOCKSTEP_SUM_FAST or LOCKSTEP_SUM_RANKS, equal on all ranks."""
    virtual_ranks: int
    """Number of virtual ranks, at most 64."""
    gradient_norm: int
    """1: the report of each step has the norm of all gradients (report.gradient_norm), which
    costs reading them once more."""


class lockstep_parameter(Struct):
    """A trained tensor."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_uint32),
        ("dims", ctypes.c_uint32),
        ("shape", POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
        ("gradient", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("strides", POINTER(ctypes.c_int64)),
        ("ready_count", ctypes.c_uint64),
        ("gradient_dtype", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]
    INITIAL = {
        "dtype": 1,
    }


class lockstep_buffer(Struct):
    """Other state of a module, such as running statistics."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_uint32),
        ("dims", ctypes.c_uint32),
        ("shape", POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
        ("policy", ctypes.c_uint32),
        ("strides", POINTER(ctypes.c_int64)),
        ("every", ctypes.c_uint64),
    ]
    INITIAL = {
        "dtype": 1,
    }


class lockstep_module_config(Struct):
    """Describes a module."""

    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("parameter_bytes", ctypes.c_size_t),
        ("buffer_bytes", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("parameters", POINTER(lockstep_parameter)),
        ("parameter_count", ctypes.c_uint32),
        ("buffers", POINTER(lockstep_buffer)),
        ("buffer_count", ctypes.c_uint32),
        ("gradient_kind", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
        ("calls_per_step", ctypes.c_uint64),
        ("ignore", POINTER(ctypes.c_char_p)),
        ("ignore_count", ctypes.c_uint64),
        ("replicas", ctypes.c_uint64),
        ("separate_calls", ctypes.c_uint32),
        ("on_abort", ctypes.c_uint32),
        ("wire", ctypes.c_uint32),
        ("float16_exponent", ctypes.c_int32),
        ("bucket_first_bytes", ctypes.c_size_t),
        ("bucket_bytes", ctypes.c_size_t),
        ("bucket_last_bytes", ctypes.c_size_t),
        ("means_on_demand", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("group", ctypes.c_void_p),
    ]
    INITIAL = {
        "struct_bytes": 160,
        "parameter_bytes": 72,
        "buffer_bytes": 56,
    }


class ModuleOptions(TypedDict, total=False):
    """The options that struct lockstep_module_config has."""

    gradient_kind: Union[GradientKind, str]
    unused: Union[UnusedPolicy, str]
    calls_per_step: int
    """Backward passes of this module in a step, at most 256."""
    replicas: int
    """Copies of this module in this process, at most 16."""
    separate_calls: int
    """1: every call of calls_per_step has gradient memory of its own and travels by itself when
    it is ready."""
    on_abort: Union[AbortPolicy, str]
    wire: Union[Wire, str]
    float16_exponent: int
    """-14 to 0: float16 gradients travel multiplied by 2 to this power, so that their sum does
    not overflow."""
    bucket_first_bytes: int
    """Caps of this module's buckets, as in struct lockstep_config."""
    bucket_bytes: int
    bucket_last_bytes: int
    means_on_demand: int
    """1: a mean that has no place in a step is written to memory of the library, and
    lockstep_module_means says where it is."""
    group: Any
    """The group whose members have this module; NULL: all ranks."""


class lockstep_step_options(Struct):
    """Options of one step."""

    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("phase", ctypes.c_char_p),
        ("weight", ctypes.c_uint64),
        ("accumulate", ctypes.c_uint32),
        ("exhausted", ctypes.c_uint32),
        ("keep_weight", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]
    INITIAL = {
        "struct_bytes": 40,
        "weight": 1,
    }


class StepOptions(TypedDict, total=False):
    """The options that struct lockstep_step_options has."""

    phase: Optional[str]
    """Label of steps that run the same modules, at most 255 bytes."""
    weight: int
    """Samples behind this rank's gradients in this step, at most 2^48."""
    accumulate: int
    """1: nothing is synchronized yet, see lockstep_step_begin."""
    exhausted: int
    """1: this rank has no data for this step or any later one."""
    keep_weight: int
    """1, with exhausted: this rank contributes zeros with `weight`, so the divisor of the mean
    stays as it was while this rank had data."""


class lockstep_step_view(Struct):
    """Facts about the step that lockstep_step_begin has begun."""

    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("step", ctypes.c_uint64),
        ("generation", ctypes.c_uint64),
        ("rank", ctypes.c_uint32),
        ("world_size", ctypes.c_uint32),
        ("learning", ctypes.c_uint32),
        ("exhausted", ctypes.c_uint32),
        ("changed", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]
    INITIAL = {
        "struct_bytes": 48,
    }


class StepView(NamedTuple):
    """Facts about the step that lockstep_step_begin has begun."""

    step: int
    """From 1."""
    generation: int
    """From 1; 0 in a world of one without a coordinator."""
    rank: int
    world_size: int
    learning: int
    """1: the order of this phase is learned in this step."""
    exhausted: int
    """Number of ranks without data."""
    changed: int
    """1: the world has changed since the last step began on this rank: see
    lockstep_world_change."""
    reserved: int
    """0."""


class lockstep_change(Struct):
    """The last change of the world."""

    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("changes", ctypes.c_uint64),
        ("step", ctypes.c_uint64),
        ("generation", ctypes.c_uint64),
        ("rank", ctypes.c_uint32),
        ("world_size", ctypes.c_uint32),
        ("rank_before", ctypes.c_uint32),
        ("world_size_before", ctypes.c_uint32),
        ("lost_count", ctypes.c_uint32),
        ("lost", ctypes.c_uint32 * 16),
        ("text", ctypes.c_char * 256),
    ]
    INITIAL = {
        "struct_bytes": 376,
    }


class WorldChange(NamedTuple):
    """The last change of the world."""

    changes: int
    """Number of changes so far."""
    step: int
    """The step that the ranks finished in the new world; or the next step, if none was open."""
    generation: int
    """The new generation."""
    rank: int
    """This rank's number in the new world, and the new size."""
    world_size: int
    rank_before: int
    """The same of the world before."""
    world_size_before: int
    lost_count: int
    """Number of ranks that were lost, or had closed their sessions."""
    lost: Tuple[int, ...]
    """The first of them: their numbers in the world before."""
    text: str
    """Which rank was lost last, and why, with its number at that time."""


class lockstep_report(Struct):
    """Report of one step."""

    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("step", ctypes.c_uint64),
        ("first_ready_us", ctypes.c_uint64),
        ("last_ready_us", ctypes.c_uint64),
        ("first_wire_us", ctypes.c_uint64),
        ("last_wire_us", ctypes.c_uint64),
        ("end_us", ctypes.c_uint64),
        ("done_us", ctypes.c_uint64),
        ("bytes_sent", ctypes.c_uint64),
        ("bytes_received", ctypes.c_uint64),
        ("bytes_copied", ctypes.c_uint64),
        ("weight_total", ctypes.c_uint64),
        ("buckets", ctypes.c_uint32),
        ("zero_filled", ctypes.c_uint32),
        ("control_messages", ctypes.c_uint32),
        ("learning", ctypes.c_uint32),
        ("unused", ctypes.c_uint64),
        ("in_flight_us", ctypes.c_uint64),
        ("overlap_us", ctypes.c_uint64),
        ("exposed_us", ctypes.c_uint64),
        ("runs", ctypes.c_uint64),
        ("aborted", ctypes.c_uint64),
        ("extended", ctypes.c_uint64),
        ("deferred", ctypes.c_uint64),
        ("gradient_norm", ctypes.c_double),
    ]
    INITIAL = {
        "struct_bytes": 184,
    }


class Report(NamedTuple):
    """Report of one step."""

    step: int
    first_ready_us: int
    """First lockstep_grad_ready."""
    last_ready_us: int
    """Last lockstep_grad_ready."""
    first_wire_us: int
    """First byte of gradient data handed to the network."""
    last_wire_us: int
    """Last byte of gradient data received."""
    end_us: int
    """lockstep_step_end was called."""
    done_us: int
    """lockstep_step_end had all results."""
    bytes_sent: int
    """On the data plane, headers included."""
    bytes_received: int
    bytes_copied: int
    """Results that were copied to their place: because no rank used some gradients of their
    chunk, because they are float32 and travel as bfloat16, or because ranks of a host
    exchanged them through shared slots, as private memory."""
    weight_total: int
    """Sum of the weights of the last bucket of the step's order: of all ranks, else of a group."""
    buckets: int
    """Number of buckets that travelled."""
    zero_filled: int
    """Number of these buckets that this rank contributed as zeros, because it did not call their
    module in time for them."""
    control_messages: int
    """Sent to or received from the coordinator, without heartbeats."""
    learning: int
    """1: it was a learning step."""
    unused: int
    """Gradients that were not produced: parameters, counted on each rank."""
    in_flight_us: int
    """Time during which at least one bucket was in flight."""
    overlap_us: int
    """Part of in_flight_us before lockstep_step_end was called."""
    exposed_us: int
    """done_us - end_us: the time that the trainer waited."""
    runs: int
    """Runs of gradient memory that travelled; one for each bucket at best."""
    aborted: int
    """Calls given up, counted on each rank."""
    extended: int
    """Calls outside the plan that all ranks have run."""
    deferred: int
    """Buckets of this rank whose contribution counts in a later step."""
    gradient_norm: int
    """With config.gradient_norm: the L2 norm of the averaged gradients of all modules, that is
    the root of the sum of the squares of all elements, computed in float64."""


class lockstep_collective(Struct):
    """A collective."""

    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("kind", ctypes.c_uint32),
        ("group", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("input_counts", POINTER(ctypes.c_uint64)),
        ("input_offsets", POINTER(ctypes.c_uint64)),
        ("output_counts", POINTER(ctypes.c_uint64)),
        ("output_offsets", POINTER(ctypes.c_uint64)),
        ("dtype", ctypes.c_uint32),
        ("op", ctypes.c_uint32),
        ("root", ctypes.c_uint32),
        ("peer", ctypes.c_uint32),
        ("tag", ctypes.c_uint32),
        ("weight", ctypes.c_uint64),
        ("sender", POINTER(ctypes.c_uint32)),
    ]
    INITIAL = {
        "struct_bytes": 128,
        "kind": 1,
        "dtype": 1,
        "weight": 1,
    }


class lockstep_devices(Struct):
    """CUDA's driver, NCCL, and the kernels of this library."""

    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("count", ctypes.c_uint32),
        ("driver_version", ctypes.c_uint32),
        ("nccl_version", ctypes.c_uint32),
        ("driver_text", ctypes.c_char * 256),
        ("nccl_text", ctypes.c_char * 256),
        ("kernels", ctypes.c_char * 128),
    ]
    INITIAL = {
        "struct_bytes": 664,
    }


class lockstep_device(Struct):
    """One device."""

    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("name", ctypes.c_char * 64),
        ("uuid", ctypes.c_uint8 * 16),
        ("capability", ctypes.c_uint32),
        ("multiprocessors", ctypes.c_uint32),
        ("problem", ctypes.c_char * 256),
    ]
    INITIAL = {
        "struct_bytes": 352,
    }


# The enum of each option that has one.
OPTION_ENUMS: Dict[str, Any] = {
    "lockstep_config.transport": TransportKind,
    "lockstep_config.on_failure": OnFailure,
    "lockstep_config.log_level": LogLevel,
    "lockstep_config.uneven": Uneven,
    "lockstep_config.order": Order,
    "lockstep_config.unplanned": Unplanned,
    "lockstep_config.sum": Sum,
    "lockstep_module_config.gradient_kind": GradientKind,
    "lockstep_module_config.unused": UnusedPolicy,
    "lockstep_module_config.on_abort": AbortPolicy,
    "lockstep_module_config.wire": Wire,
}


# Size, alignment, and the offset and size of each field.
LAYOUT: Dict[Any, Tuple[int, int, Dict[str, Tuple[int, int]]]] = {
    lockstep_config: (224, 8, {
        "struct_bytes": (0, 8),
        "coordinator": (8, 8),
        "job": (16, 8),
        "world_size": (24, 4),
        "world_min": (28, 4),
        "world_max": (32, 4),
        "world_window_ms": (36, 4),
        "rank_hint": (40, 4),
        "open_timeout_ms": (44, 4),
        "advertise": (48, 8),
        "data_ports": (56, 8),
        "host_id": (64, 8),
        "transport": (72, 4),
        "on_failure": (76, 4),
        "bucket_first_bytes": (80, 8),
        "bucket_bytes": (88, 8),
        "bucket_last_bytes": (96, 8),
        "log": (104, 8),
        "log_context": (112, 8),
        "log_level": (120, 4),
        "reserved": (124, 4),
        "root": (128, 4),
        "uneven": (132, 4),
        "engine_cpus": (136, 8),
        "engine_nice": (144, 4),
        "trace_dir": (152, 8),
        "order": (160, 4),
        "unplanned": (164, 4),
        "trainer_threads": (168, 4),
        "wait_while_open": (172, 4),
        "halt_timeout_ms": (176, 4),
        "tls_dir": (184, 8),
        "device": (192, 8),
        "data_encryption": (200, 8),
        "sum": (208, 4),
        "virtual_ranks": (212, 4),
        "gradient_norm": (216, 4),
    }),
    lockstep_parameter: (72, 8, {
        "name": (0, 8),
        "dtype": (8, 4),
        "dims": (12, 4),
        "shape": (16, 8),
        "data": (24, 8),
        "gradient": (32, 8),
        "flags": (40, 4),
        "strides": (48, 8),
        "ready_count": (56, 8),
        "gradient_dtype": (64, 4),
        "reserved": (68, 4),
    }),
    lockstep_buffer: (56, 8, {
        "name": (0, 8),
        "dtype": (8, 4),
        "dims": (12, 4),
        "shape": (16, 8),
        "data": (24, 8),
        "policy": (32, 4),
        "strides": (40, 8),
        "every": (48, 8),
    }),
    lockstep_module_config: (160, 8, {
        "struct_bytes": (0, 8),
        "parameter_bytes": (8, 8),
        "buffer_bytes": (16, 8),
        "name": (24, 8),
        "parameters": (32, 8),
        "parameter_count": (40, 4),
        "buffers": (48, 8),
        "buffer_count": (56, 4),
        "gradient_kind": (60, 4),
        "unused": (64, 4),
        "calls_per_step": (72, 8),
        "ignore": (80, 8),
        "ignore_count": (88, 8),
        "replicas": (96, 8),
        "separate_calls": (104, 4),
        "on_abort": (108, 4),
        "wire": (112, 4),
        "float16_exponent": (116, 4),
        "bucket_first_bytes": (120, 8),
        "bucket_bytes": (128, 8),
        "bucket_last_bytes": (136, 8),
        "means_on_demand": (144, 4),
        "reserved": (148, 4),
        "group": (152, 8),
    }),
    lockstep_step_options: (40, 8, {
        "struct_bytes": (0, 8),
        "phase": (8, 8),
        "weight": (16, 8),
        "accumulate": (24, 4),
        "exhausted": (28, 4),
        "keep_weight": (32, 4),
        "reserved": (36, 4),
    }),
    lockstep_step_view: (48, 8, {
        "struct_bytes": (0, 8),
        "step": (8, 8),
        "generation": (16, 8),
        "rank": (24, 4),
        "world_size": (28, 4),
        "learning": (32, 4),
        "exhausted": (36, 4),
        "changed": (40, 4),
        "reserved": (44, 4),
    }),
    lockstep_change: (376, 8, {
        "struct_bytes": (0, 8),
        "changes": (8, 8),
        "step": (16, 8),
        "generation": (24, 8),
        "rank": (32, 4),
        "world_size": (36, 4),
        "rank_before": (40, 4),
        "world_size_before": (44, 4),
        "lost_count": (48, 4),
        "lost": (52, 64),
        "text": (116, 256),
    }),
    lockstep_report: (184, 8, {
        "struct_bytes": (0, 8),
        "step": (8, 8),
        "first_ready_us": (16, 8),
        "last_ready_us": (24, 8),
        "first_wire_us": (32, 8),
        "last_wire_us": (40, 8),
        "end_us": (48, 8),
        "done_us": (56, 8),
        "bytes_sent": (64, 8),
        "bytes_received": (72, 8),
        "bytes_copied": (80, 8),
        "weight_total": (88, 8),
        "buckets": (96, 4),
        "zero_filled": (100, 4),
        "control_messages": (104, 4),
        "learning": (108, 4),
        "unused": (112, 8),
        "in_flight_us": (120, 8),
        "overlap_us": (128, 8),
        "exposed_us": (136, 8),
        "runs": (144, 8),
        "aborted": (152, 8),
        "extended": (160, 8),
        "deferred": (168, 8),
        "gradient_norm": (176, 8),
    }),
    lockstep_collective: (128, 8, {
        "struct_bytes": (0, 8),
        "kind": (8, 4),
        "group": (16, 8),
        "name": (24, 8),
        "input": (32, 8),
        "output": (40, 8),
        "count": (48, 8),
        "input_counts": (56, 8),
        "input_offsets": (64, 8),
        "output_counts": (72, 8),
        "output_offsets": (80, 8),
        "dtype": (88, 4),
        "op": (92, 4),
        "root": (96, 4),
        "peer": (100, 4),
        "tag": (104, 4),
        "weight": (112, 8),
        "sender": (120, 8),
    }),
    lockstep_devices: (664, 8, {
        "struct_bytes": (0, 8),
        "count": (8, 4),
        "driver_version": (12, 4),
        "nccl_version": (16, 4),
        "driver_text": (20, 256),
        "nccl_text": (276, 256),
        "kernels": (532, 128),
    }),
    lockstep_device: (352, 8, {
        "struct_bytes": (0, 8),
        "name": (8, 64),
        "uuid": (72, 16),
        "capability": (88, 4),
        "multiprocessors": (92, 4),
        "problem": (96, 256),
    }),
}


# The return type and the parameter types of each function.
FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "lockstep_status_name": (ctypes.c_char_p, [
        ctypes.c_int,  # status
    ]),
    "lockstep_error_text": (ctypes.c_char_p, [
    ]),
    "lockstep_version": (ctypes.c_char_p, [
    ]),
    "lockstep_log_to_fd": (None, [
        ctypes.c_void_p,  # context
        ctypes.c_uint32,  # level
        ctypes.c_char_p,  # line
    ]),
    "lockstep_open": (ctypes.c_int, [
        POINTER(lockstep_config),  # config
        POINTER(ctypes.c_void_p),  # session
    ]),
    "lockstep_config_check": (ctypes.c_int, [
        POINTER(lockstep_config),  # config
    ]),
    "lockstep_world": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        POINTER(ctypes.c_uint32),  # rank
        POINTER(ctypes.c_uint32),  # world_size
    ]),
    "lockstep_leaves": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        POINTER(ctypes.c_uint32),  # first
        POINTER(ctypes.c_uint32),  # count
        POINTER(ctypes.c_uint32),  # total
    ]),
    "lockstep_close": (ctypes.c_int, [
        ctypes.c_void_p,  # session
    ]),
    "lockstep_abort": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_char_p,  # reason
    ]),
    "lockstep_module_register": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        POINTER(lockstep_module_config),  # config
        POINTER(ctypes.c_void_p),  # module
    ]),
    "lockstep_module_close": (ctypes.c_int, [
        ctypes.c_void_p,  # module
    ]),
    "lockstep_module_gradients": (ctypes.c_int, [
        ctypes.c_void_p,  # module
        POINTER(ctypes.c_void_p),  # gradients
        ctypes.c_uint32,  # count
    ]),
    "lockstep_parameter_move": (ctypes.c_int, [
        ctypes.c_void_p,  # module
        ctypes.c_uint32,  # parameter
        ctypes.c_void_p,  # data
        ctypes.c_void_p,  # gradient
    ]),
    "lockstep_buffer_move": (ctypes.c_int, [
        ctypes.c_void_p,  # module
        ctypes.c_uint32,  # buffer
        ctypes.c_void_p,  # data
    ]),
    "lockstep_module_freeze": (ctypes.c_int, [
        ctypes.c_void_p,  # module
        POINTER(ctypes.c_uint32),  # parameters
        ctypes.c_uint32,  # count
        ctypes.c_uint32,  # frozen
    ]),
    "lockstep_phase_unused": (ctypes.c_int, [
        ctypes.c_void_p,  # module
        ctypes.c_char_p,  # phase
        POINTER(ctypes.c_uint32),  # parameters
        ctypes.c_uint32,  # count
    ]),
    "lockstep_start": (ctypes.c_int, [
        ctypes.c_void_p,  # session
    ]),
    "lockstep_step_begin": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        POINTER(lockstep_step_options),  # options
        POINTER(lockstep_step_view),  # view
    ]),
    "lockstep_world_change": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        POINTER(lockstep_change),  # change
    ]),
    "lockstep_uneven_set": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_uint32,  # uneven
    ]),
    "lockstep_call_begin": (ctypes.c_int, [
        ctypes.c_void_p,  # module
        POINTER(ctypes.c_void_p),  # call
    ]),
    "lockstep_grad_ready": (ctypes.c_int, [
        ctypes.c_void_p,  # module
        ctypes.c_void_p,  # call
        ctypes.c_uint32,  # parameter
        ctypes.c_void_p,  # gradient
        ctypes.c_void_p,  # stream
    ]),
    "lockstep_replica_ready": (ctypes.c_int, [
        ctypes.c_void_p,  # module
        ctypes.c_void_p,  # call
        ctypes.c_uint32,  # replica
        ctypes.c_uint32,  # parameter
        ctypes.c_void_p,  # gradient
        ctypes.c_void_p,  # stream
    ]),
    "lockstep_call_current": (ctypes.c_int, [
        ctypes.c_void_p,  # module
        POINTER(ctypes.c_void_p),  # call
    ]),
    "lockstep_call_end": (ctypes.c_int, [
        ctypes.c_void_p,  # call
    ]),
    "lockstep_call_unused": (ctypes.c_int, [
        ctypes.c_void_p,  # call
        POINTER(ctypes.c_uint32),  # parameters
        ctypes.c_uint32,  # count
    ]),
    "lockstep_call_abort": (ctypes.c_int, [
        ctypes.c_void_p,  # call
    ]),
    "lockstep_call_wait": (ctypes.c_int, [
        ctypes.c_void_p,  # call
        ctypes.c_uint32,  # timeout_ms
    ]),
    "lockstep_call_next": (ctypes.c_int, [
        ctypes.c_void_p,  # call
        ctypes.c_uint32,  # timeout_ms
        POINTER(ctypes.c_uint32),  # bucket
    ]),
    "lockstep_bucket_parameters": (ctypes.c_int, [
        ctypes.c_void_p,  # module
        ctypes.c_uint32,  # bucket
        POINTER(POINTER(ctypes.c_uint32)),  # parameters
        POINTER(ctypes.c_uint32),  # count
    ]),
    "lockstep_step_end": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_void_p,  # stream
    ]),
    "lockstep_step_wait": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_void_p,  # stream
        ctypes.c_uint32,  # timeout_ms
    ]),
    "lockstep_step_report": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_uint64,  # step
        ctypes.c_uint32,  # timeout_ms
        POINTER(lockstep_report),  # report
    ]),
    "lockstep_module_usage": (ctypes.c_int, [
        ctypes.c_void_p,  # module
        POINTER(ctypes.c_uint32),  # ranks
        ctypes.c_uint32,  # count
    ]),
    "lockstep_module_used": (ctypes.c_int, [
        ctypes.c_void_p,  # module
        POINTER(ctypes.c_uint8),  # used
        ctypes.c_uint32,  # count
    ]),
    "lockstep_module_means": (ctypes.c_int, [
        ctypes.c_void_p,  # module
        ctypes.c_uint32,  # call
        POINTER(ctypes.c_void_p),  # means
        ctypes.c_uint32,  # count
    ]),
    "lockstep_allreduce": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_char_p,  # name
        ctypes.c_void_p,  # data
        ctypes.c_uint64,  # count
        ctypes.c_uint32,  # dtype
        ctypes.c_uint32,  # op
        ctypes.c_uint32,  # timeout_ms
    ]),
    "lockstep_broadcast": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_char_p,  # name
        ctypes.c_void_p,  # data
        ctypes.c_uint64,  # count
        ctypes.c_uint32,  # dtype
        ctypes.c_uint32,  # root
        ctypes.c_uint32,  # timeout_ms
    ]),
    "lockstep_barrier": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_char_p,  # name
        ctypes.c_uint32,  # timeout_ms
    ]),
    "lockstep_allreduce_async": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_char_p,  # name
        ctypes.c_void_p,  # data
        ctypes.c_uint64,  # count
        ctypes.c_uint32,  # dtype
        ctypes.c_uint32,  # op
        POINTER(ctypes.c_void_p),  # work
    ]),
    "lockstep_broadcast_async": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_char_p,  # name
        ctypes.c_void_p,  # data
        ctypes.c_uint64,  # count
        ctypes.c_uint32,  # dtype
        ctypes.c_uint32,  # root
        POINTER(ctypes.c_void_p),  # work
    ]),
    "lockstep_barrier_async": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_char_p,  # name
        POINTER(ctypes.c_void_p),  # work
    ]),
    "lockstep_work_wait": (ctypes.c_int, [
        ctypes.c_void_p,  # work
        ctypes.c_uint32,  # timeout_ms
    ]),
    "lockstep_work_notify": (ctypes.c_int, [
        ctypes.c_void_p,  # work
        CFUNCTYPE(None, ctypes.c_void_p),  # function
        ctypes.c_void_p,  # context
    ]),
    "lockstep_session_fd": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        POINTER(ctypes.c_int),  # fd
    ]),
    "lockstep_group_create": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        POINTER(ctypes.c_uint32),  # ranks
        ctypes.c_uint32,  # count
        ctypes.c_char_p,  # name
        POINTER(ctypes.c_void_p),  # group
    ]),
    "lockstep_group_world": (ctypes.c_int, [
        ctypes.c_void_p,  # group
        POINTER(ctypes.c_uint32),  # rank
        POINTER(ctypes.c_uint32),  # size
    ]),
    "lockstep_group_close": (ctypes.c_int, [
        ctypes.c_void_p,  # group
    ]),
    "lockstep_collective_run": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        POINTER(lockstep_collective),  # what
        ctypes.c_uint32,  # timeout_ms
    ]),
    "lockstep_collective_begin": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        POINTER(lockstep_collective),  # what
        POINTER(ctypes.c_void_p),  # work
    ]),
    "lockstep_collective_wait": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        POINTER(lockstep_collective),  # what
        ctypes.c_uint32,  # timeout_ms
        POINTER(ctypes.c_void_p),  # work
    ]),
    "lockstep_counter_add": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_char_p,  # name
        ctypes.c_int64,  # delta
    ]),
    "lockstep_counter_read": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_char_p,  # name
        POINTER(ctypes.c_int64),  # total
    ]),
    "lockstep_metric_add": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_char_p,  # name
        ctypes.c_uint32,  # kind
        ctypes.c_double,  # value
    ]),
    "lockstep_metric_read": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_char_p,  # name
        POINTER(ctypes.c_double),  # value
        POINTER(ctypes.c_uint64),  # count
    ]),
    "lockstep_mark": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_char_p,  # text
    ]),
    "lockstep_pause": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_char_p,  # reason
        ctypes.c_uint64,  # expected_ms
    ]),
    "lockstep_resume": (ctypes.c_int, [
        ctypes.c_void_p,  # session
    ]),
    "lockstep_state_check": (ctypes.c_int, [
        ctypes.c_void_p,  # session
    ]),
    "lockstep_state_hash": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        POINTER(ctypes.c_uint64),  # hash
    ]),
    "lockstep_state_sync": (ctypes.c_int, [
        ctypes.c_void_p,  # session
    ]),
    "lockstep_layout_save": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_char_p,  # path
    ]),
    "lockstep_layout_load": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_char_p,  # path
    ]),
    "lockstep_session_save": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_char_p,  # path
    ]),
    "lockstep_session_load": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_char_p,  # path
    ]),
    "lockstep_alloc": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_size_t,  # bytes
        POINTER(ctypes.c_void_p),  # memory
    ]),
    "lockstep_free": (ctypes.c_int, [
        ctypes.c_void_p,  # session
        ctypes.c_void_p,  # memory
    ]),
    "lockstep_devices_find": (ctypes.c_int, [
        POINTER(lockstep_devices),  # devices
    ]),
    "lockstep_device_describe": (ctypes.c_int, [
        ctypes.c_uint32,  # index
        POINTER(lockstep_device),  # device
    ]),
}
