"""Kernels and bytes of a step: `python -m tests.bench.launches` counts planc's, and those of a loop by hand.

A device in name only: fake tensors in a fake world of the plan's size, so nothing is computed. Each call
below autograd, DTensor and FSDP is one kernel; views and allocations are none. Operators on lists
launch as `multi_tensor_apply` does. Each kernel reads its tensors and writes its results once. The loop by
hand is in this file, and has no code of planc. Both clip in every step.

Compiled layers are the same code on both sides: each stands for no kernel, and what is around them is
counted. planc's compiled loss is two kernels; in the loop by hand the loss is eager, as people write it. What
a device fuses or splits otherwise is not seen.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM

from planc.graph.graph import Graph
from planc.graph.op import Op, Stage
from planc.graph.ops import CompileModules, StepOptimizer
from planc.runtime.interpreter import Position, run
from planc.runtime.observer import Observer, Together
from planc.runtime.process import Launch
from planc.runtime.rehearsal.backend import MEASURED_STEP, RehearsalBackend
from planc.runtime.rehearsal.measure import fake_world
from planc.runtime.rehearsal.stack import shortened
from planc.runtime.torch import private
from planc.runtime.torch.run import Paths, Run
from planc.runtime.torch.training.compiled_graphs import CompiledGraphs
from planc.runtime.torch.training.fused_loss import FusedLoss
from tests.bench.result import Result, report
from tests.plans import PLANS, checked, write_plan

GOAL = 1.0
MODEL = PLANS / "models/llama-3.2-1b"
LENGTH, BATCH = 4096, 2
_PLAN = """\
model {{
  hf = "models/llama-3.2-1b"
  weights = random
  dtype = float32
}}

mesh {{
{mesh}}}
{blocks}
data {{
  source = python_stdlib()
  tokenizer = bytes
  sequence_length = 4096
  micro_batch = 2
  packing = attend
}}

optimizer {{
  kind = adamw(lr = 3e-4, betas = [0.9, 0.95], weight_decay = 0.1)
  clip_grad_norm = 1.0
}}

train {{
  steps = 8
  tokens_per_step = 8192
}}
"""
_FSDP = """
fsdp on dp_shard {
  param_dtype = bfloat16
  reduce_dtype = float32
  "model.layers.*" -> unit(reshard_after_forward = true)
}
"""
_RECOMPUTED = """
activation_checkpoint {
  "model.layers.*" -> full
}
"""
_COMPILED = """
compile {
  "model.layers.*" -> region
}
"""
_TP = """
tensor_parallel on tp {
  auto
}
"""
_NO_KERNELS = frozenset(
    [
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "detach",
        "alias",
        "lift_fresh",
        "wait_tensor",
        "_local_scalar_dense",
        "set_",
        "resize_",
        "resize_storage_bytes_",
        "split_with_sizes",
    ]
)
_OVERWRITES = ("copy_", "fill_", "zero_", "_foreach_copy_", "_foreach_zero_")
"""Ops that write their first argument, and read only the others."""
_CHUNK, _BLOCKS, _LISTS = 65536, 320, (110, 64, 48, 36, 30)
"""Limits of `multi_tensor_apply`: elements of a block, blocks of a launch, tensors by the depth of lists."""


@dataclass(frozen=True, slots=True)
class Case:
    """A way to train the model, in both loops."""

    name: str
    blocks: str
    recomputes: bool = False
    compiles: bool = False
    tp: int = 1


CASES = (
    Case("whole", _FSDP),
    Case("compiled", _FSDP + _COMPILED, compiles=True),
    Case("recomputed", _FSDP + _RECOMPUTED, recomputes=True),
    Case("tp 2", _TP, tp=2),
)


@dataclass(slots=True)
class Counts:
    """Kernels, and the bytes that they move, by op."""

    kernels: Counter[str] = field(default_factory=Counter)
    num_bytes: Counter[str] = field(default_factory=Counter)


class Launches(TorchDispatchMode):
    """Counts what is called inside."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()
        self._is_in_kernel, self._num_inside = False, 0

    def as_kernel(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that counts as one kernel, which reads its arguments and writes its results."""

        def kernel(*arguments: Tensor) -> Any:
            self._is_in_kernel, self._num_inside = True, 0
            results = function(*arguments)
            self._is_in_kernel = False
            if not self._num_inside:
                # In a step that nobody counts.
                return results
            name = f"compiled {function.__name__.strip('_')} of the loss"
            self.counts.kernels[name] += 1
            self.counts.num_bytes[name] += sum(map(_num_bytes, _tensors((arguments, results))))
            return results

        return kernel

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A DTensor's op comes back here as what it does on this rank.
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        if self._is_in_kernel:
            self._num_inside += 1
            return results
        name = func._schema.name.partition("::")[2]
        given, made = _tensors((args, kwargs)), _tensors(results)
        written = _written(func, args, kwargs)
        held = {_memory(one) for one in given}
        fresh = [one for one in made if _memory(one) not in held]
        if name in _NO_KERNELS or not (fresh or written):
            return results
        if name == "_fused_adamw_" and kwargs.get("grad_scale") is None:
            gradients = {id(one) for one in args[1]}
            written = [one for one in written if id(one) not in gradients]
        read = given
        if name in _OVERWRITES:
            overwritten = {id(one) for one in written}
            read = [one for one in given if id(one) not in overwritten]
        if name == "embedding":
            read = [args[1], *made]
        self.counts.kernels[name] += _num_launches(name, args)
        self.counts.num_bytes[name] += sum(map(_num_bytes, (*read, *fresh, *written)))
        return results


def _tensors(values: Any) -> list[Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, Tensor)]


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _num_bytes(tensor: Tensor) -> int:
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The arguments that an op writes into."""
    arguments = func._schema.arguments
    named = {**{one.name: value for one, value in zip(arguments, args, strict=False)}, **kwargs}
    names = {one.name for one in arguments if one.alias_info and one.alias_info.is_write}
    return _tensors([value for name, value in named.items() if name in names])


def _num_launches(name: str, args: Any) -> int:
    """One, unless an op takes lists."""
    lists = [one for one in args if isinstance(one, list | tuple) and one and isinstance(one[0], Tensor)]
    if not name.startswith(("_foreach_", "_fused_")) or not lists:
        return 1
    blocks = sum(-(-one.numel() // _CHUNK) for one in lists[0])
    depth = min(len(lists), len(_LISTS))
    return max(-(-blocks // _BLOCKS), -(-len(lists[0]) // _LISTS[depth - 1]))


class _Region(torch.autograd.Function):
    """What a compiled layer is to the code around it."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, *parameters: Tensor) -> Tensor:
        ctx.parameters = parameters
        return torch.empty_like(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return torch.empty_like(gradient), *map(torch.empty_like, ctx.parameters)


def close(layer: nn.Module) -> None:
    """Let a layer be a compiled region."""

    def forward(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        found: Tensor = _Region.apply(hidden_states, *layer.parameters())  # type: ignore[no-untyped-call]
        return found

    layer.forward = forward


class Counting(RehearsalBackend):
    """Counts the ops of the measured step, which clips."""

    def __init__(self, own: Run) -> None:
        super().__init__(own, dropped=frozenset())
        self.launches = Launches()

    def execute(self, op: Op, position: Position) -> None:
        if isinstance(op, CompileModules):
            for fqn in op.modules:
                close(self.model.get_submodule(fqn))
            if op.loss:
                loss = FusedLoss(self.launches.as_kernel)
                self.state.put(CompiledGraphs(num_modules=len(op.modules), loss=loss))
            return
        if isinstance(op, StepOptimizer):
            # The host has read the norm.
            with private.dividing_gradients(self.state[Optimizer], torch.full((), 2.0)):
                super().execute(op, position)
            return
        super().execute(op, position)

    @contextlib.contextmanager
    def _modes(self, op: Op, position: Position) -> Iterator[None]:
        is_counted = position.step == MEASURED_STEP and op.stage is Stage.STEP
        with super()._modes(op, position), self.launches if is_counted else contextlib.nullcontext():
            yield


def of_planc(case: Case, folder: Path) -> Counts:
    """A step of planc's runtime on rank 0."""
    folder.mkdir(exist_ok=True)
    mesh = "  dp_shard = 1\n" if case.tp == 1 else f"  tp = {case.tp}\n"
    text = _PLAN.format(mesh=mesh, blocks=case.blocks)
    graph = checked(write_plan(folder, text=text)).graph
    assert graph is not None
    short = shortened(graph, frozenset(), num_steps=MEASURED_STEP, num_micro_steps=1)
    with fake_world(0, world_size=graph.world_size):
        own = _rank_0(short, folder)
        backend = Counting(own)
        # The device in name only sums squares as a device does.
        with patch("planc.runtime.torch.parallel.gradients.sums_in_blocks", return_value=True):
            run(short, backend)
    return backend.launches.counts


def _rank_0(graph: Graph, folder: Path) -> Run:
    launch, paths = Launch(rank=0, world_size=graph.world_size), Paths(folder, folder)
    return Run(graph, "", launch, paths, Together(Observer()), torch.device("cpu"), is_rehearsal=True)


def by_hand(case: Case) -> Counts:
    """A step of a good loop by hand: FSDP2 in mixed precision, fused AdamW, clipping by foreach."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case.tp)
    try:
        # On a device, whole sequences have no mask; of fake tensors the model's code can't tell.
        no_mask = patch("transformers.models.llama.modeling_llama.create_causal_mask", lambda **_: None)
        with no_mask, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, launches = _model_by_hand(case), Launches()
            with FakeTensorMode(allow_non_fake_inputs=True), _kernel_by_hand(case):
                step = _step_by_hand(model)
                step()
                with launches:
                    step()
    finally:
        dist.destroy_process_group()
    return launches.counts


def _kernel_by_hand(case: Case) -> contextlib.AbstractContextManager[None]:
    """The kernel that CUDA takes: `math` for grouped heads in float32, the dtype of the case with tp."""
    is_float32 = case.tp > 1
    return sdpa_kernel(SDPBackend.MATH) if is_float32 else contextlib.nullcontext()


def _model_by_hand(case: Case) -> Any:
    config = AutoConfig.from_pretrained(MODEL, local_files_only=True)
    config.use_cache = False
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    model.train()
    for layer in model.model.layers:
        if case.compiles:
            close(layer)
        elif case.recomputes:
            _recompute(layer)
    _shard_by_hand(model, case)
    return model


def _step_by_hand(model: Any) -> Callable[[], None]:
    model.to_empty(device="cpu")
    model.tie_weights()
    parameters = [*model.parameters()]
    kinds = [[one for one in parameters if isinstance(one, DTensor) is is_one] for is_one in (True, False)]
    groups = [{"params": some} for some in kinds if some]
    optimizer = AdamW(groups, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step() -> None:
        tokens = torch.randint(0, 256, (BATCH, LENGTH + 1))
        logits = model(input_ids=tokens[:, :-1]).logits
        loss = cross_entropy(logits.float().view(-1, logits.size(-1)), tokens[:, 1:].reshape(-1))
        loss.backward()
        del logits
        _clip_by_hand([some for some in kinds if some])
        optimizer.step()
        optimizer.zero_grad()

    return step


def _recompute(layer: nn.Module) -> None:
    inner = layer.forward

    def forward(*arguments: Any, **keywords: Any) -> Any:
        return checkpoint(inner, *arguments, use_reentrant=False, **keywords)

    layer.forward = forward


def _shard_by_hand(model: Any, case: Case) -> None:
    mesh = init_device_mesh("cpu", (case.tp,))
    if case.tp > 1:
        names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
        plan = {f"model.layers.*.{name}": ColwiseParallel() for name in names}
        plan |= {
            f"model.layers.*.{name}": RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")
        }
        plan["model.embed_tokens"] = RowwiseParallel(input_layouts=Replicate())
        plan["lm_head"] = ColwiseParallel(output_layouts=Replicate())
        parallelize_module(model, mesh, plan)
        return
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def _clip_by_hand(kinds: list[list[Tensor]]) -> None:
    """torch's own clipping refuses DTensors beside plain tensors: it is called for each, in two parts."""
    norms = []
    for some in kinds:
        norm = nn.utils.get_total_norm([one.grad for one in some if one.grad is not None], foreach=True)
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    total = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    for some in kinds:
        nn.utils.clip_grads_with_norm_(some, 1.0, total, foreach=True)


def measure(folder: Path) -> list[Result]:
    """The rows, with what planc does in addition."""
    rows = []
    for case in CASES:
        hand, own = by_hand(case), of_planc(case, folder / case.name)
        print(f"{case.name}:")
        for name in sorted({*own.kernels, *hand.kernels}):
            kernels = own.kernels[name] - hand.kernels[name]
            gib = (own.num_bytes[name] - hand.num_bytes[name]) / 2**30
            if kernels or abs(gib) > 0.001:
                print(f"  {name:<45} {kernels:+6} kernels  {gib:+8.3f} GiB")
        kernels, num_bytes = (
            one.total() / other.total()
            for one, other in ((own.kernels, hand.kernels), (own.num_bytes, hand.num_bytes))
        )
        totals = (f"{own.kernels.total():,}", f"{own.num_bytes.total() / 2**30:.1f} GiB")
        is_met = kernels <= GOAL and num_bytes <= GOAL
        cells = (*totals, f"{kernels:.3f}", f"{num_bytes:.3f}")
        rows.append(Result(case.name, cells, goal=f"<= {GOAL:.2f}", is_met=is_met))
    return rows


def main() -> int:
    with TemporaryDirectory() as folder:
        results = measure(Path(folder))
    for one in results:
        print(one)
    return report(results)


if __name__ == "__main__":
    sys.exit(main())
