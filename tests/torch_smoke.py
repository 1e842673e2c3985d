#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch on liblockstep through ctypes, against DistributedDataParallel: see docs/pytorch.md."""
import copy, ctypes as c, os, grpc, torch, torch.distributed as dist
from concurrent.futures import ThreadPoolExecutor
from torch.autograd import Variable
STEPS, FLOAT32, INT64, MIN, MAX, FOREVER, TIMEOUT, FORKED = 10, 1, 4, 2, 3, 2**32 - 1, -5, -11
TYPES = {"p": c.c_void_p, "s": c.c_char_p, "u": c.c_uint32, "i": c.c_int, "q": c.c_uint64}
def structure(kinds, names):
    fields = zip(names.split(), map(TYPES.get, kinds))
    return type("structure", (c.Structure,), {"_fields_": list(fields)})
Parameter = structure("siupppu", "name dtype dims shape data gradient flags")
Config = structure("qqqspupuii", "struct_bytes parameter_bytes buffer_bytes name parameters"
                   " parameter_count buffers buffer_count gradient_kind unused")
def check(status):  # ctypes calls it on the thread that made the call, where the text is.
    if status < 0: raise RuntimeError(lib.lockstep_error_text().decode())
path = os.environ.get("LOCKSTEP_TEST_LIB", "build/lib") + "/liblockstep.so"
lib, unchecked, at_end = c.CDLL(path), c.CDLL(path), Variable._execution_engine.queue_callback
lib.lockstep_error_text.restype = c.c_char_p
for line in ("open pp", "world ppp", "close p", "start p", "module_register ppp", "step_begin ppp",
             "call_begin pp", "call_end p", "grad_ready ppupp", "state_hash pp",
             "allreduce pspqiiu"):  # Without argtypes ctypes would cut pointers to 32 bits.
    name, kinds = line.split()
    function = getattr(lib, "lockstep_" + name)
    function.restype, function.argtypes = check, [*map(TYPES.get, kinds)]

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(16, 64), torch.nn.LayerNorm(64)
        self.last, self.scale = torch.nn.Linear(64, 4), torch.nn.Parameter(torch.tensor(1.5))
    def loss(self, x, y):
        x = self.last(torch.tanh(self.norm(self.first(x))))
        return torch.nn.functional.cross_entropy(x * self.scale, y)
    forward = loss  # For the twin: DistributedDataParallel wraps forward, and nothing else.
class Shard(torch.utils.data.Dataset):  # Runs in children of ours, which the DataLoader forks.
    def __len__(self): return 8 * STEPS
    def __getitem__(self, i):
        draw = torch.Generator().manual_seed(1000 * rank.value + i)
        return torch.randn(16, generator=draw), i % 4, unchecked.lockstep_world(session, None, None)

def wrap(net, method):  # A backward pass through what the method returned becomes a call.
    module, call, named = c.c_void_p(), c.c_void_p(), list(net.named_parameters())
    shapes = [(c.c_int64 * p.dim())(*p.shape) for _, p in named]
    table = (Parameter * len(named))(*(
        (name.encode(), FLOAT32, p.dim(), c.addressof(shape), p.data_ptr(), None, 0)
        for (name, p), shape in zip(named, shapes)))
    config = Config(c.sizeof(Config), c.sizeof(Parameter), 40, b"net",  # 40: that of a buffer.
                    c.addressof(table), len(table))
    lib.lockstep_module_register(session, c.byref(config), c.byref(module))
    for i, (_, p) in enumerate(named):
        p.register_post_accumulate_grad_hook(
            lambda p, i=i: lib.lockstep_grad_ready(module, None, i, p.grad.data_ptr(), None))
    def begin(_):
        lib.lockstep_call_begin(module, c.byref(call))
        at_end(lambda: lib.lockstep_call_end(call))
    def wrapped(*arguments, inner=getattr(net, method)):
        (result := inner(*arguments)).register_hook(begin)
        return result
    setattr(net, method, wrapped)
def step(x, y):
    optimizer.zero_grad(set_to_none=True)
    lib.lockstep_step_begin(session, None, None)
    other_thread.submit(net.loss(x, y).backward).result()  # Hooks run there, as with a GPU.
    while (status := unchecked.lockstep_step_wait(session, None, 200)) == TIMEOUT: pass  # Ctrl-C?
    check(status)
    optimizer.step()

echo = {"echo": grpc.unary_unary_rpc_method_handler(lambda request, _: request)}
server = grpc.server(ThreadPoolExecutor(1), [grpc.method_handlers_generic_handler("s", echo)])
channel = grpc.insecure_channel(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
server.start()
assert channel.unary_unary("/s/echo")(b"before", timeout=20) == b"before"
session, rank, world = c.c_void_p(), c.c_uint32(), c.c_uint32()
lib.lockstep_open(None, c.byref(session))
lib.lockstep_world(session, c.byref(rank), c.byref(world))
meeting = "file://{}/gloo-{}".format(os.environ.get("TMPDIR", "/tmp"), os.environ["LOCKSTEP_JOB"])
dist.init_process_group("gloo", meeting, rank=rank.value, world_size=world.value)
torch.manual_seed(rank.value)  # The ranks begin differently: both libraries take rank 0's values.
net, other_thread = Net(), ThreadPoolExecutor(1)
twin = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(net))
wrap(net, "loss")
lib.lockstep_start(session)
optimizer, twins = torch.optim.Adam(net.parameters()), torch.optim.Adam(twin.parameters())
for x, y, status in torch.utils.data.DataLoader(Shard(), 8, num_workers=2):
    assert (status == FORKED).all(), "a forked child must not reach its parent's session"
    step(x, y)
    twins.zero_grad(), twin(x, y).backward(), twins.step()
difference = max((p - q).abs().max().item() for p, q in zip(net.parameters(), twin.parameters()))
assert difference <= 1e-6, f"the parameters differ by {difference} from the twin's"
for bound, op in ((low := c.c_int64()), MIN), ((high := c.c_int64()), MAX):
    lib.lockstep_state_hash(session, c.byref(bound))
    lib.lockstep_allreduce(session, b"hash", c.byref(bound), 1, INT64, op, FOREVER)
assert low.value == high.value, "the ranks hold different states"
assert channel.unary_unary("/s/echo")(b"after", timeout=20) == b"after"
lib.lockstep_close(session), dist.destroy_process_group(), server.stop(None)
if rank.value == 0:
    print(f"torch smoke: {world.value} ranks, {STEPS} steps, max difference to DDP {difference},"
          " state hash equal; skipped: GPU, several calls in a step, an exception in backward")
