"""Bugs planted in the runtime, and the item that must show each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from planc.graph import ops
from planc.graph.op import Op
from planc.runtime.interpreter import Position
from planc.runtime.schedule import set_learning_rate
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import (
    Averages,
    ClippedGradients,
    Data,
    LocalBatch,
    Schedule,
    SyncedGradients,
    TokenCount,
    Verdict,
    Weights,
)
from planc.runtime.torch.weights.nf4 import nf4_formats
from planc.verify.outcome import Item
from planc.vocab import DOWN, MAGNITUDE
from tests.parity.cases import CP2_DP2, Case
from tests.parity.faults import labels_shifted_after_sharding, norm_gradients_not_reduced, replicas_drift
from tests.verify.loss_faults import (
    answers_of_own_parts,
    answers_swapped_on_rank_1,
    beta_forgotten,
    ends_of_chunks_left_out,
    kept_tokens_not_scaled,
    mean_over_own_pairs,
    reference_trained,
    teacher_by_place_in_chunk,
    teacher_of_another_sequence,
    teacher_of_the_first_micro_batch,
    teacher_of_the_first_part,
    teacher_shifted_by_one,
    temperature_squared_left_out,
)


@dataclass(frozen=True, slots=True)
class Planted:
    """A bug, a plan that has what it breaks, and what verification must say."""

    fault: Callable[[State, Op, Position], None]
    case: Case
    item: Item
    quick: bool = False

    @property
    def name(self) -> str:
        return self.fault.__name__


def loss_over_local_tokens(state: State, op: Op, position: Position) -> None:
    """Each rank divides its loss by its own tokens."""
    if isinstance(op, ops.ShardContext) and position.micro_step == 0:
        state[TokenCount].labels.floor_divide_(state[Run].dp_size)


def gradients_averaged(state: State, op: Op, position: Position) -> None:
    """Sums over ranks are divided by their number, as DDP and FSDP do by themselves."""
    if isinstance(op, ops.SyncGradients):
        for parameter in state[nn.Module].parameters():
            assert parameter.grad is not None
            local_of(parameter.grad).div_(state[Run].dp_size)


def positions_not_sharded(state: State, op: Op, position: Position) -> None:
    """Every rank counts its own positions from 0."""
    batch = state.get(LocalBatch)
    if isinstance(op, ops.Forward) and batch is not None:
        counted = torch.arange(batch.position_ids.shape[1]).expand_as(batch.position_ids)
        state.put(replace(batch, position_ids=counted))


def chunks_in_wrong_order(state: State, op: Op, position: Position) -> None:
    """A rank's two chunks of the sequence are the tail, then the head."""
    batch = state.get(LocalBatch)
    if isinstance(op, ops.Forward) and batch is not None:
        half = batch.input_ids.shape[1] // 2
        state.put(
            replace(
                batch,
                input_ids=batch.input_ids.roll(half, dims=1),
                labels=batch.labels.roll(half, dims=1),
                position_ids=batch.position_ids.roll(half, dims=1),
            )
        )


def clipped_by_local_norm(state: State, op: Op, position: Position) -> None:
    """Each rank clips its own part to the limit; the reported norm is right."""
    if isinstance(op, ops.StepOptimizer):
        (limit,) = (clip.max_norm for clip in state[Run].graph.step if isinstance(clip, ops.ClipGradients))
        gradients = [local_of(p.grad) for p in state[nn.Module].parameters() if p.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for gradient in gradients:
            gradient.mul_(limit / norm)


def ties_lost(state: State, op: Op, position: Position) -> None:
    """Embedding and head become two parameters."""
    if isinstance(op, ops.AttachAttention):
        head = state[nn.Module].get_submodule("lm_head")
        head.weight = nn.Parameter(head.weight.detach().clone())  # type: ignore[operator,union-attr]


def decay_groups_swapped(state: State, op: Op, position: Position) -> None:
    """Norms decay, and everything else does not."""
    if isinstance(op, ops.BuildSchedule):
        groups = state[Optimizer].param_groups
        decays = {group["weight_decay"] for group in groups}
        for group in groups:
            (group["weight_decay"],) = decays - {group["weight_decay"]}


def schedule_one_step_ahead(state: State, op: Op, position: Position) -> None:
    """Every step has the learning rate of the next."""
    if isinstance(op, ops.StepOptimizer):
        groups = state[Optimizer].param_groups
        set_learning_rate(groups, state[Schedule].factor(position.step + 1))


def order_off_by_one(state: State, op: Op, position: Position) -> None:
    """The second step starts one sample late, and counts as ever."""
    if isinstance(op, ops.NextBatch) and position.step == 2:
        state[Data].loader.load_state(state[Data].loader.samples_consumed + 1)
    if isinstance(op, ops.SaveCheckpoint):
        # Else the save itself finds that the samples do not follow from the steps.
        state[Data].loader.load_state(state[Data].loader.samples_consumed - 1)


def first_micro_step_forgotten(state: State, op: Op, position: Position) -> None:
    """Gradients are cleared between the micro steps of a step."""
    if isinstance(op, ops.Forward) and position.micro_step > 0:
        state[nn.Module].zero_grad()


def another_weight_on_rank_1(state: State, op: Op, position: Position) -> None:
    """One rank draws another weight."""
    if isinstance(op, ops.BuildOptimizer) and state[Run].launch.rank == 1:
        parameter = state[nn.Module].get_parameter("model.norm.weight")
        with torch.no_grad():
            (parameter.to_local() if isinstance(parameter, DTensor) else parameter).add_(1e-3)


def moments_forgotten(state: State, op: Op, position: Position) -> None:
    """A resumed run starts with an optimizer that has seen nothing."""
    # The first step of a resumed run is the first whose weights are those of an earlier step already.
    if isinstance(op, ops.NextBatch) and position.step > 1 and state.get(Verdict) is None:
        state[Optimizer].state.clear()


def frozen_parameter_thawed(state: State, op: Op, position: Position) -> None:
    """A frozen parameter is trained again once all setup has been compared with the graph."""
    if isinstance(op, ops.BuildOptimizer):
        state[nn.Module].get_parameter("model.norm.weight").requires_grad_(True)


def thawed_parameter_updated(state: State, op: Op, position: Position) -> None:
    """A frozen parameter is trained, and the optimizer updates it."""
    frozen_parameter_thawed(state, op, position)
    if isinstance(op, ops.BuildSchedule):
        group = state[Optimizer].param_groups[-1]
        group["params"].append(state[nn.Module].get_parameter("model.norm.weight"))


def trained_parameter_frozen(state: State, op: Op, position: Position) -> None:
    """A parameter that the plan trains keeps its value."""
    if isinstance(op, ops.BuildOptimizer):
        state[nn.Module].get_parameter("model.embed_tokens.weight").requires_grad_(False)


def adapters_differ_by_rank(state: State, op: Op, position: Position) -> None:
    """One rank draws adapters of its own, as ranks do that are seeded apart."""
    if isinstance(op, ops.BuildOptimizer) and state[Run].launch.rank == 1:
        generator = torch.Generator().manual_seed(1)
        for name, parameter in state[nn.Module].named_parameters():
            if f".{DOWN}." in name:
                local = local_of(parameter.detach())
                local.uniform_(-0.1, 0.1, generator=generator)


def adapters_left_out_of_the_norm(state: State, op: Op, position: Position) -> None:
    """Gradients are clipped by the norm of the model's own parameters that are trained."""
    _leave_out_of_the_norm(".lora_", state, op)


def lengths_left_out_of_the_norm(state: State, op: Op, position: Position) -> None:
    """The same of the trained lengths of rows, which are no matrices."""
    _leave_out_of_the_norm(f".{MAGNITUDE}.", state, op)


def _leave_out_of_the_norm(part: str, state: State, op: Op) -> None:
    if isinstance(op, ops.ClipGradients):
        weights = state[Weights]
        own = {name: one for name, one in weights.parameters.items() if part not in name}
        state.put(replace(state[SyncedGradients], weights=Weights(weights.model, own)))
    if isinstance(op, ops.StepOptimizer):
        state.put(replace(state[ClippedGradients], weights=state[Weights]))


def _with_lengths(state: State) -> dict[str, Any]:
    adapters = state[Run].graph.adapters
    assert adapters is not None
    return {name: state[nn.Module].get_submodule(name) for name in adapters.modules}


def lengths_not_detached(state: State, op: Op, position: Position) -> None:
    """Autograd differentiates the lengths that rows have, which the definition takes as constants."""
    if isinstance(op, ops.BuildOptimizer):
        for layer in _with_lengths(state).values():
            vectors = layer._modules[MAGNITUDE]
            vectors.forward = partial(_differentiated, layer, vectors, state[Run].graph.adapters.scale)  # type: ignore[union-attr]


def _differentiated(layer: Any, vectors: nn.Module, scale: float, squares: Tensor) -> Tensor:
    whole = layer.weight + scale * layer.lora_B.weight @ layer.lora_A.weight
    weight: Any = vectors.weight
    return weight / whole.square().sum(1).sqrt()  # type: ignore[no-any-return]


def lengths_of_own_columns(state: State, op: Op, position: Position) -> None:
    """A rank that has some columns of a weight takes the lengths of its own part of the rows."""
    if isinstance(op, ops.BuildOptimizer):
        for name, layer in _with_lengths(state).items():
            if name.endswith("o_proj"):
                layer._modules[MAGNITUDE]._forward_pre_hooks.clear()


def adapted_weight_thawed(state: State, op: Op, position: Position) -> None:
    """The weight of a layer that has an adapter is trained, too."""
    if isinstance(op, ops.BuildOptimizer):
        state[nn.Module].get_parameter(ADAPTED_WEIGHT).requires_grad_(True)
    if isinstance(op, ops.BuildSchedule):
        weight = state[nn.Module].get_parameter(ADAPTED_WEIGHT)
        state[Optimizer].param_groups[-1]["params"].append(weight)


def scales_forgotten(state: State, op: Op, position: Position) -> None:
    """A rank computes with the codes of a quantized layer as if every block had the scale of the first."""
    if isinstance(op, ops.BuildOptimizer):
        layer: Any = state[nn.Module].get_submodule(ADAPTED_WEIGHT.removesuffix(".weight"))
        nf4 = nf4_formats(state[Run].graph)[ADAPTED_WEIGHT]
        blocks = local_of(layer.weight.detach()).unflatten(1, (-1, nf4.block_bytes))
        blocks[..., nf4.block // 2 :] = blocks[:, :1, nf4.block // 2 :].clone()


ADAPTED_WEIGHT = "model.layers.0.self_attn.q_proj.weight"
TP2 = Case("TP2", "", {"tp": 2})
DP2 = Case("DP2", "", {"dp_shard": 2}, micro_batch=1)
AVERAGED2 = Case("DP2", "averages", {"dp_shard": 2}, settings=("train.ema_decay=0.9",))
REPLICATE2 = Case("DP2", "replicas", {"dp_replicate": 2})
TP2_TWICE = Case("TP2", "accumulate", {"tp": 2}, micro_batch=4)
CP2 = Case("CP2", "", {"cp": 2})
TIED2 = Case("TP2", "tied", {"tp": 2}, model="llama-tied")

FROZEN2 = Case("TP2", "frozen", {"tp": 2}, frozen=("model.layers.0", "model.norm"))
FROZEN_SHARDED2 = Case("DP2", "frozen", {"dp_shard": 2}, micro_batch=1, frozen=("model.norm",))

QV = '  kind = lora(rank = 4, alpha = 8)\n  "model.layers.*.self_attn.{q,v}_proj" -> adapted\n'
ADAPTED_TP2 = Case("TP2", "adapters", {"tp": 2}, adapter=QV)
ADAPTED_DP2 = Case("DP2", "adapters", {"dp_shard": 2}, micro_batch=1, adapter=QV)
ADAPTED_REPLICAS2 = Case("DP2", "replicas, adapters", {"dp_replicate": 2}, adapter=QV)
QUANTIZED_TP2 = Case("TP2", "nf4", {"tp": 2}, "llama-wide", adapter=f"  base = nf4\n{QV}")
QO = '  kind = lora(rank = 4, alpha = 8, dora = true)\n  "model.layers.*.self_attn.{q,o}_proj" -> adapted\n'
DORA_TP2, DORA_DP2 = (replace(one, variant="DoRA", adapter=QO) for one in (ADAPTED_TP2, ADAPTED_DP2))
WITH_NORM2 = replace(
    ADAPTED_DP2, variant="adapters, norm", adapter=f'{QV}}}\nfreeze {{\n  "model.norm" -> trained\n'
)


def averages_of_the_last_step(state: State, op: Op, position: Position) -> None:
    """Averages forget what they were."""
    if isinstance(op, ops.UpdateAverages):
        for parameter, average in state[Averages].by_parameter.items():
            local_of(average).copy_(local_of(parameter.detach()))


PAIRS = ('data.source=pairs("pairs.jsonl", template = none)', "train.loss=dpo(beta = 0.3)")
PAIRS_DP2 = replace(DP2, variant="pairs", micro_batch=2, settings=PAIRS)
PAIRS_CP2 = replace(CP2, variant="pairs", micro_batch=2, settings=PAIRS)
PAIRS_CHUNKED2 = replace(PAIRS_DP2, variant="pairs, chunks", settings=(*PAIRS, "train.loss_chunks=4"))
_TEACHER = 'teacher = "llama", logits = "stored", top_k = 6'
TAUGHT = (f"train.loss=distillation({_TEACHER}, temperature = 2.0, weight = 0.7)",)
TAUGHT_DP2 = replace(DP2, variant="teacher", micro_batch=2, settings=TAUGHT)
TAUGHT_TP2 = replace(TP2_TWICE, variant="teacher, accumulate", settings=TAUGHT)
TAUGHT_CP2 = replace(CP2, variant="teacher", settings=TAUGHT)
TAUGHT_PP2 = Case("PP2", "teacher", {"pp": 2}, micro_batch=2, settings=TAUGHT)
TAUGHT_CHUNKED2 = replace(TAUGHT_DP2, variant="teacher, chunks", settings=(*TAUGHT, "train.loss_chunks=4"))
PLANTED: tuple[Planted, ...] = (
    Planted(norm_gradients_not_reduced, TP2, Item.GRADIENTS, quick=True),
    Planted(replicas_drift, TP2, Item.REPLICAS),
    Planted(labels_shifted_after_sharding, CP2, Item.LOSS),
    Planted(labels_shifted_after_sharding, Case("CP2·DP2", "", CP2_DP2), Item.LOSS),
    Planted(loss_over_local_tokens, DP2, Item.LOSS, quick=True),
    Planted(gradients_averaged, DP2, Item.GRADIENTS, quick=True),
    Planted(gradients_averaged, REPLICATE2, Item.GRADIENTS),
    Planted(positions_not_sharded, CP2, Item.LOSS, quick=True),
    Planted(chunks_in_wrong_order, CP2, Item.LOSS),
    Planted(clipped_by_local_norm, DP2, Item.PARAMETERS),
    Planted(ties_lost, TIED2, Item.INITIAL_WEIGHTS),
    Planted(decay_groups_swapped, TP2, Item.PARAMETERS, quick=True),
    Planted(schedule_one_step_ahead, TP2, Item.LEARNING_RATE, quick=True),
    Planted(averages_of_the_last_step, AVERAGED2, Item.PARAMETERS),
    Planted(order_off_by_one, DP2, Item.SAMPLE_IDS, quick=True),
    Planted(first_micro_step_forgotten, TP2_TWICE, Item.GRADIENTS),
    Planted(another_weight_on_rank_1, TP2, Item.REPLICAS),
    Planted(frozen_parameter_thawed, FROZEN2, Item.GRADIENTS),
    Planted(thawed_parameter_updated, FROZEN2, Item.PARAMETERS, quick=True),
    Planted(trained_parameter_frozen, FROZEN_SHARDED2, Item.PARAMETERS),
    Planted(trained_parameter_frozen, FROZEN2, Item.PARAMETERS),
    Planted(adapters_differ_by_rank, ADAPTED_TP2, Item.REPLICAS),
    Planted(adapters_differ_by_rank, ADAPTED_REPLICAS2, Item.REPLICAS),
    Planted(adapters_differ_by_rank, ADAPTED_DP2, Item.GRADIENTS),
    Planted(adapters_left_out_of_the_norm, WITH_NORM2, Item.GRAD_NORM),
    Planted(lengths_left_out_of_the_norm, DORA_DP2, Item.GRAD_NORM),
    Planted(lengths_not_detached, DORA_DP2, Item.GRADIENTS),
    Planted(lengths_of_own_columns, DORA_TP2, Item.LOSS, quick=True),
    Planted(scales_forgotten, QUANTIZED_TP2, Item.LOSS),
    Planted(adapted_weight_thawed, ADAPTED_DP2, Item.GRADIENTS),
    Planted(adapted_weight_thawed, ADAPTED_TP2, Item.PARAMETERS),
    Planted(reference_trained, PAIRS_DP2, Item.LOSS),
    Planted(answers_swapped_on_rank_1, PAIRS_DP2, Item.GRADIENTS, quick=True),
    Planted(mean_over_own_pairs, PAIRS_DP2, Item.LOSS),
    Planted(beta_forgotten, PAIRS_DP2, Item.GRADIENTS),
    Planted(answers_of_own_parts, PAIRS_CP2, Item.LOSS),
    Planted(answers_swapped_on_rank_1, PAIRS_CHUNKED2, Item.GRADIENTS),
    Planted(mean_over_own_pairs, PAIRS_CHUNKED2, Item.LOSS),
    Planted(beta_forgotten, PAIRS_CHUNKED2, Item.GRADIENTS),
    Planted(ends_of_chunks_left_out, PAIRS_CHUNKED2, Item.LOSS),
    Planted(loss_over_local_tokens, TAUGHT_DP2, Item.LOSS),
    Planted(teacher_shifted_by_one, TAUGHT_DP2, Item.LOSS, quick=True),
    Planted(teacher_shifted_by_one, TAUGHT_PP2, Item.LOSS),
    Planted(teacher_of_another_sequence, TAUGHT_DP2, Item.LOSS),
    Planted(teacher_of_the_first_micro_batch, TAUGHT_TP2, Item.LOSS),
    Planted(teacher_of_the_first_part, TAUGHT_CP2, Item.LOSS),
    Planted(temperature_squared_left_out, TAUGHT_TP2, Item.LOSS),
    Planted(kept_tokens_not_scaled, TAUGHT_DP2, Item.LOSS),
    Planted(kept_tokens_not_scaled, TAUGHT_TP2, Item.GRADIENTS),
    Planted(teacher_by_place_in_chunk, TAUGHT_CHUNKED2, Item.LOSS),
)
