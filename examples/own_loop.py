"""Trains what a plan says in a loop of its own: planc checks the plan, and PyTorch does the rest.

torchrun --nproc-per-node 2 examples/own_loop.py PLAN

Runs plans that shard with FSDP alone, on CPUs. The mesh, the FSDP units, the batches, the optimizer and its
schedule are the plan's; the loop is for you to change.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from transformers import AutoConfig, AutoModelForCausalLM

from planc.api import check_plan
from planc.diagnostics.human import HumanRenderer
from planc.graph import ops
from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.runtime.data.loader import BatchLoader, BatchSource, MicroBatch
from planc.runtime.data.open import open_data
from planc.runtime.data.ops import data_spec
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.schedule import learning_rate_factor
from planc.source import SourceFile

FSDP_DIMS = ("dp_replicate", "dp_shard")
AnOp = TypeVar("AnOp", bound=Op)
UNDERSTOOD = (
    *(ops.InitMesh, ops.BuildModel, ops.AttachAttention, ops.FullyShard, ops.MaterialiseWeights),
    *(ops.InitWeights, ops.LoadWeights, ops.BuildOptimizer, ops.BuildSchedule, ops.OpenData),
    *(ops.NextBatch, ops.Accumulate, ops.ShardContext, ops.Forward, ops.ComputeLoss, ops.Backward),
    *(ops.SyncGradients, ops.ClipGradients, ops.StepOptimizer, ops.StepSchedule),
    *(ops.ReduceMetrics, ops.Log),
)
"""What this file does itself. Any other op would be left out in silence, so such a plan is refused."""
UNSUPPORTED = {
    ops.BuildModel: ("zeroed", "rope", "rope_positions"),
    ops.AttachAttention: ("isolates",),
    ops.FullyShard: ("cpu_offload",),
    ops.ComputeLoss: ("head",),
}
"""Fields that must not be set, for the same reason."""


def op_of(graph: Graph, kind: type[AnOp]) -> AnOp:
    """The only op of a kind."""
    (found,) = (op for op in graph.ops() if isinstance(op, kind))
    return found


def require_understood(graph: Graph) -> None:
    """ValueError for a plan that asks for more than this file does."""
    others = {op.name for op in graph.ops() if not isinstance(op, UNDERSTOOD)}
    others |= {
        f"{op.name} {field}"
        for op in graph.ops()
        for field in UNSUPPORTED.get(type(op), ())
        if getattr(op, field)
    }
    others |= {name.value for name, size in graph.mesh if size > 1 and name.value not in FSDP_DIMS}
    if others:
        raise ValueError(f"this loop has no {', '.join(sorted(others))}")


def build_model(graph: Graph, mesh: DeviceMesh, *, base: Path) -> Any:
    """The model with its weights, as FSDP units."""
    build = op_of(graph, ops.BuildModel)
    folder, dtype = base / build.path, getattr(torch, build.dtype.value)
    if any(isinstance(op, ops.LoadWeights) for op in graph.setup):
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    else:
        # transformers' own draws: `planc run` draws each element by its place, and gets other weights.
        torch.manual_seed(op_of(graph, ops.InitWeights).seed)
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    for op in graph.setup:
        if isinstance(op, ops.FullyShard):
            dims = tuple(mesh_dim.value for mesh_dim in (*op.replicate_over, *op.shard_over))
            types = {"param_dtype": op.param_dtype, "reduce_dtype": op.reduce_dtype}
            policy = {name: getattr(torch, dtype.value) for name, dtype in types.items() if dtype}
            for group in op.groups:
                fully_shard(
                    [model.get_submodule(name) for name in group],
                    mesh=mesh[dims],
                    reshard_after_forward=op.reshard_after_forward,
                    mp_policy=MixedPrecisionPolicy(**policy),
                )
    return model.train()


def build_optimizer(graph: Graph, model: Any) -> Optimizer:
    """The plan's optimizer over its groups. Their peak learning rates are in `initial_lr`."""
    op = op_of(graph, ops.BuildOptimizer)
    groups = [
        {
            "params": [model.get_parameter(name) for name in group.parameters],
            "weight_decay": group.weight_decay,
            "lr": group.lr,
            "initial_lr": group.lr,
        }
        for group in op.groups
    ]
    torch_class: type[Optimizer] = getattr(torch.optim, op.settings.torch_class)
    optimizer: Any = torch_class(groups, lr=op.lr, **op.settings.arguments)
    return optimizer


def steps_of(graph: Graph, mesh: DeviceMesh, *, base: Path) -> Iterator[list[MicroBatch]]:
    """This rank's micro-batches of each step: the samples and the order of `planc run`."""
    op = op_of(graph, ops.OpenData)
    data = open_data(data_spec(op, training=op), base=base, model_vocab_size=op.vocab_size)
    replica, shard = (mesh[name].get_local_rank() for name in FSDP_DIMS)
    dp_rank = replica * mesh["dp_shard"].size() + shard
    source = BatchSource(
        data.dataset, data.order, op.global_batch, op.micro_batch, dp_size=graph.dp_size, dp_rank=dp_rank
    )
    loader = BatchLoader(source)
    for _ in range(graph.num_steps):
        yield loader.next_step()


def gradients(model: Any, batches: list[MicroBatch]) -> Tensor:
    """Accumulate the gradients of a step; return its mean loss over the labels of all ranks."""
    count = torch.tensor(sum(int((batch.labels != IGNORED_LABEL).sum()) for batch in batches))
    dist.all_reduce(count)
    total = torch.zeros((), dtype=torch.float64)
    for number, batch in enumerate(batches, start=1):
        inputs, labels, positions = map(torch.from_numpy, (batch.inputs, batch.labels, batch.position_ids))
        model.set_requires_gradient_sync(number == len(batches))
        logits = model(input_ids=inputs, position_ids=positions, use_cache=False).logits.float()
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / count
        # FSDP averages gradients over the ranks, and this loss is already divided by the labels of all.
        (loss * dist.get_world_size()).backward()
        total += loss.detach()
    dist.all_reduce(total)
    return total


def train(graph: Graph, *, base: Path) -> Iterator[dict[str, float]]:
    """Train; yield the figures of each step."""
    require_understood(graph)
    sizes = {name.value: size for name, size in graph.mesh if name.value in FSDP_DIMS}
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    model = build_model(graph, mesh, base=base)
    optimizer = build_optimizer(graph, model)
    schedule, clip = op_of(graph, ops.BuildSchedule), op_of(graph, ops.ClipGradients)
    for step, batches in enumerate(steps_of(graph, mesh, base=base), start=1):
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * learning_rate_factor(schedule, step=step)
        loss = gradients(model, batches)
        norm: Any = torch.nn.utils.clip_grad_norm_(model.parameters(), clip.max_norm or float("inf"))
        optimizer.step()
        optimizer.zero_grad()
        yield {"step": step, "loss": loss.item(), "grad_norm": norm.full_tensor().item()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--set", action="append", default=[], help="an override, as `planc run` takes it")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    settings = [SourceFile(f"--set {text}", text) for text in arguments.set]
    checked = check_plan(arguments.plan, settings=settings, world_size=dist.get_world_size())
    if dist.get_rank() == 0:
        print(HumanRenderer(checked.sources).render(checked.diagnostics), end="", file=sys.stderr)
    if checked.graph is None:
        return 1
    for figures in train(checked.graph, base=arguments.plan.parent):
        if dist.get_rank() == 0:
            print(json.dumps(figures), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
