"""Figures that follow from an execution graph alone, so runs and artifacts without a model have them too."""

from __future__ import annotations

from dataclasses import replace

from planc.figures.figure import Figure, Unit
from planc.graph import ops
from planc.graph.graph import Graph
from planc.graph.pipeline import Pipeline
from planc.vocab import ExpertDim, is_sharded


def world_size(graph: Graph) -> Figure:
    return num_ranks(graph.world_size)


def num_ranks(number: int) -> Figure:
    """The ranks of a mesh."""
    return Figure("world_size", number, Unit.RANKS)


def sharded_modules(graph: Graph) -> Figure:
    """Modules that a rank holds a shard of; a norm under sequence parallelism stays replicated."""
    found = (op for op in graph.setup if isinstance(op, ops.ShardTensorParallel))
    return num_sharded_modules(sum(len(op.modules) for op in found if has_shards(op)))


def recomputed_modules(graph: Graph) -> Figure:
    """Modules whose activations backward recomputes, entirely or partly."""
    found = (op for op in graph.setup if isinstance(op, ops.CheckpointActivations))
    return Figure("recomputed_modules", sum(len(op.modules) for op in found), Unit.MODULES)


def compiled_modules(graph: Graph) -> Figure:
    found = (op for op in graph.setup if isinstance(op, ops.CompileModules))
    return Figure("compiled_modules", sum(len(op.modules) for op in found), Unit.MODULES)


def num_sharded_modules(number: int) -> Figure:
    """The figure for a number that was counted elsewhere."""
    return Figure("modules_over_tp", number, Unit.MODULES)


def has_shards(op: ops.ShardTensorParallel) -> bool:
    """Whether a rank holds less than all of an op's modules."""
    return any(is_sharded(placement) for _, placement in op.parameters)


def fsdp_units(graph: Graph) -> Figure:
    """Groups of modules that FSDP gathers together, including the root."""
    return Figure(
        "fsdp_units", sum(len(op.groups) for op in graph.setup if isinstance(op, ops.FullyShard)), Unit.UNITS
    )


def modules_text(graph: Graph) -> str:
    """`30 modules sharded over tp, 6 FSDP units`."""
    return f"{sharded_modules(graph).text} sharded over tp, {fsdp_units(graph).text}"


def tokens_per_step(graph: Graph) -> Figure:
    """Positions of all sequences of a step, including padding and masked ones."""
    data = next((op for op in graph.ops() if isinstance(op, ops.OpenData)), None)
    return num_tokens(data.global_batch * data.sequence_length if data is not None else 0)


def num_tokens(number: int) -> Figure:
    """The tokens of a step, counted elsewhere."""
    return Figure("tokens_per_step", number, Unit.TOKENS)


def gradient_accumulation(graph: Graph) -> Figure:
    """Micro steps of a step."""
    times = next((op.times for op in graph.ops() if isinstance(op, ops.Accumulate)), 1)
    return Figure("gradient_accumulation", times, Unit.MICRO_STEPS)


def bubble(pipeline: Pipeline) -> Figure:
    """The share of a step in which pp ranks compute nothing, on average, if stages take equal time."""
    return Figure("bubble", pipeline.equal_step().mean_bubble, Unit.SHARE)


def num_steps(graph: Graph) -> Figure:
    return Figure("steps", graph.num_steps, Unit.STEPS)


def total_tokens(graph: Graph) -> Figure:
    """Tokens of all steps of the plan."""
    return Figure("total_tokens", tokens_per_step(graph).count * graph.num_steps, Unit.TOKENS)


def parameters(number: int) -> Figure:
    """Elements of all of the model's parameters, tied ones once."""
    return Figure("parameters", number, Unit.PARAMETERS)


def parameters_per_rank(number: int) -> Figure:
    """Elements of the shards of the rank that holds the most: rank 0, or one of the fullest pp rank."""
    return Figure("parameters_per_rank", number, Unit.PARAMETERS)


def of_pp_rank(pp_rank: int, figure: Figure) -> Figure:
    """The same figure of one pp rank, by a name of its own: the plan's is that of the one with the most."""
    return replace(figure, name=f"pp_rank_{pp_rank}.{figure.name}")


def expert_ranks(experts: ops.ShardExperts) -> Figure:
    """The ranks that a layer's experts are spread over."""
    return Figure("expert_ranks", experts.size, Unit.RANKS)


def ranks_per_expert(graph: Graph) -> Figure:
    """The ranks over which FSDP shards one expert."""
    return Figure("ranks_per_expert", graph.size(ExpertDim.EFSDP), Unit.RANKS)
