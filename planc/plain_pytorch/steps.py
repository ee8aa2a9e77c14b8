"""Step ops as lines of a script."""

from __future__ import annotations

from collections.abc import Iterator

from planc.graph.graph import Graph
from planc.graph.ops import (
    Accumulate,
    AllReduceGradients,
    Backward,
    BuildOptimizer,
    ClipGradients,
    ComputeLoss,
    Forward,
    FullyShard,
    InitWeights,
    LoadWeights,
    Log,
    NextBatch,
    OpenData,
    ReduceMetrics,
    ShardContext,
    StepOptimizer,
    StepSchedule,
    SyncGradients,
)
from planc.plain_pytorch.script import one_dim, refuse


def next_batch(op: NextBatch, graph: Graph) -> Iterator[str]:
    data, times = _data(graph), _times(graph)
    yield "ids = sample_ids("
    yield f"    step, num_sequences=num_sequences, global_batch={data.global_batch}, seed={data.shuffle_seed}"
    yield ")"
    yield f"own_ids = ids.view({times}, {graph.dp_size}, {data.micro_batch})[:, dp_rank]"
    yield "# Every token is a label, so all ranks know their number."
    yield f"num_tokens = {data.global_batch * data.sequence_length}"
    yield "step_loss = torch.zeros((), dtype=torch.float64, device=device)"


def accumulate(op: Accumulate, graph: Graph) -> Iterator[str]:
    yield "for micro_step, micro_ids in enumerate(own_ids):"


def shard_context(op: ShardContext, graph: Graph) -> Iterator[str]:
    data = _data(graph)
    if op.balance != "none":
        raise refuse(op, "load-balanced sequences have no plain PyTorch form; set `load_balancer = none`")
    if op.first_position is not None or op.uncounted_token is not None:
        raise refuse(op, "position ids computed by the model have no plain PyTorch form")
    yield f"places = torch.arange({data.sequence_length})"
    for mesh_dim in op.over:
        submesh = one_dim((mesh_dim,))
        yield f"places = places.chunk({graph.size(mesh_dim)})[{submesh}.get_local_rank()]"
    yield f"at = micro_ids[:, None] * {data.sequence_length} + places"
    yield "inputs, labels = tokens[at].long().to(device), tokens[at + 1].long().to(device)"
    yield "position_ids = places.expand(len(micro_ids), -1).to(device)"


def forward(op: Forward, graph: Graph) -> Iterator[str]:
    seed = next(op.seed for op in graph.setup if isinstance(op, InitWeights | LoadWeights))
    yield f'torch.manual_seed(derived_seed({seed}, "step", step, micro_step, dp_rank))'
    yield "logits = model(input_ids=inputs, position_ids=position_ids, use_cache=False).logits"


def compute_loss(op: ComputeLoss, graph: Graph) -> Iterator[str]:
    if op.chunks > 1:
        raise refuse(op, "a loss in chunks has no plain PyTorch form; write `loss_chunks = 1`")
    yield "logits = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()"
    if op.vocab_over:
        mesh = one_dim(op.vocab_over)
        yield f"logits = sharded_vocabulary(logits, {mesh}, vocab_size=model.config.vocab_size)"
    yield f"with {_context(graph)}:"
    yield '    total = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")'
    yield "loss = total / num_tokens"
    yield "step_loss += (loss.to_local() if isinstance(loss, DTensor) else loss).detach()"


def backward(op: Backward, graph: Graph) -> Iterator[str]:
    if any(isinstance(op, FullyShard) for op in graph.setup):
        yield f"model.set_requires_gradient_sync(micro_step == {_times(graph) - 1})"
    yield f"with {_context(graph)}:"
    yield "    loss.backward()"


def all_reduce_gradients(op: AllReduceGradients, graph: Graph) -> Iterator[str]:
    yield f"all_reduce_gradients(model, {one_dim(op.over)}, blocks={list(op.blocks)})"


def sync_gradients(op: SyncGradients, graph: Graph) -> Iterator[str]:
    yield "sum_partial_gradients(model)"


def clip_gradients(op: ClipGradients, graph: Graph) -> Iterator[str]:
    max_norm = "math.inf" if op.max_norm is None else repr(op.max_norm)
    yield f"grad_norm = clip_gradients(model, max_norm={max_norm})"


def step_optimizer(op: StepOptimizer, graph: Graph) -> Iterator[str]:
    yield "optimizer.step()"
    yield "optimizer.zero_grad()"


def step_schedule(op: StepSchedule, graph: Graph) -> Iterator[str]:
    yield "set_learning_rate(optimizer, schedule(step + 1))"


def reduce_metrics(op: ReduceMetrics, graph: Graph) -> Iterator[str]:
    for mesh_dim in op.over:
        yield f"dist.all_reduce(step_loss, group={one_dim((mesh_dim,))}.get_group())"
    yield "if not math.isfinite(step_loss.item()):"
    yield '    raise ValueError(f"the loss is {step_loss.item()} at step {step}; no weight was changed")'


def log(op: Log, graph: Graph) -> Iterator[str]:
    peak = next(op.lr for op in graph.setup if isinstance(op, BuildOptimizer))
    yield f"if dist.get_rank() == 0 and (step % {op.every_steps} == 0 or step == {graph.num_steps}):"
    yield f"    rate = {peak!r} * schedule(step)"
    yield '    told = {"step": step, "loss": step_loss.item(), "grad_norm": grad_norm, "learning_rate": rate}'
    yield "    print(json.dumps(told), flush=True)"


def _context(graph: Graph) -> str:
    """The context of the cross entropy over a sharded vocabulary, forward and backward."""
    loss = next(op for op in graph.ops() if isinstance(op, ComputeLoss))
    return "loss_parallel()" if loss.vocab_over else "contextlib.nullcontext()"


def _data(graph: Graph) -> OpenData:
    return next(op for op in graph.setup if isinstance(op, OpenData))


def _times(graph: Graph) -> int:
    return next(op.times for op in graph.step if isinstance(op, Accumulate))
