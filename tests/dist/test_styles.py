"""Every tensor-parallel style over two ranks against one process: output and all gradients, in float64."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.pytorch_utils import Conv1D

from planc.graph.ops import Rows, ShardTensorParallel
from planc.inventory.schema import Kind
from planc.runtime.torch.parallel.tensor_parallel import placement, shard_module
from planc.styles import BY_NAME, STYLES, Boundary, Style
from planc.styles.style import edges, use
from planc.vocab import MeshDim, PackedShard, Placement, Replicate, Shard, StridedShard
from tests.dist.pool import run_ranks

TOLERANCE = 1e-12
BATCH, SEQUENCE_LENGTH, HIDDEN, WIDE, HEADS, HEAD_DIM, ROTARY = 2, 6, 8, 12, 4, 8, 2
VOCABULARIES = (64, 65)
"""One that two ranks share evenly, and one that they do not."""

OPTIONS = tuple(one.name for one in fields(Boundary))
PADDING = 40
"""A token in the second rank's half of the vocabulary, whose row gets no gradient."""

PLACEMENTS: tuple[Placement, ...] = (Replicate(), Shard(0), Shard(1), Shard(-1))
BETWEEN: tuple[Placement, ...] = (Replicate(), Shard(1))


@dataclass(frozen=True, slots=True)
class Case:
    """A module under a style. `inside` are styles of its children, for a container.

    `enters` and `leaves` are the layouts of input and output at the module's boundary.
    """

    style: str
    module: str
    boundary: Boundary
    enters: Placement
    leaves: Placement
    inside: tuple[tuple[str, str, Boundary], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.style} {self.module}: {self.enters} to {self.leaves} {self.boundary}"


def simple(style: str, module: str, boundary: Boundary | None = None) -> Case:
    """A case whose edges are as the style's own data says."""
    settled = use(BY_NAME[style], boundary or Boundary())
    return Case(style, module, boundary or Boundary(), settled.input, settled.output)


def linear_cases(style: str) -> Iterator[Case]:
    options = BY_NAME[style].options
    inputs = PLACEMENTS if "input" in options else (None,)
    outputs = PLACEMENTS if "output" in options else (None,)
    for module in ("linear", "linear with bias", "conv1d"):
        yield simple(style, module)
        for given, taken in product(inputs, outputs):
            yield simple(style, module, Boundary(input=given, output=taken))


def embedding_cases(style: str) -> Iterator[Case]:
    for output, rows in product((None, *PLACEMENTS), VOCABULARIES):
        yield simple(style, f"embedding of {rows}", Boundary(output=output))
    yield simple(style, "padded embedding of 65")


def norm_cases() -> Iterator[Case]:
    yield simple("sequence_parallel", "rms norm")
    for sequence_dim, module in product((0, 1), ("rms norm", "layer norm", "norm without weights")):
        yield simple("sequence_parallel", module, Boundary(sequence_dim=sequence_dim))
    yield simple("sequence_parallel", "head norm", Boundary(sequence_dim=2))


def container_cases() -> Iterator[Case]:
    for given, output in product(BETWEEN, BETWEEN):
        boundary = Boundary(input=given, desired=Replicate())
        mlp = (("0", "colwise", Boundary()), ("1", "rowwise", Boundary(output=output)))
        yield Case("prepare_input", "mlp", boundary, given, output, mlp)
    for given in BETWEEN:
        boundary = Boundary(input=given, desired=Shard(1))
        norm = (("0", "sequence_parallel", Boundary()),)
        yield Case("prepare_input", "norm in a container", boundary, given, Shard(1), norm)


def two_way_container_cases() -> Iterator[Case]:
    for given, output in product(BETWEEN, BETWEEN):
        boundary = Boundary(input=given, desired=Replicate(), output=output)
        mlp = (("0", "colwise", Boundary()), ("1", "rowwise", Boundary()))
        yield Case("prepare_input_output", "mlp", boundary, given, output, mlp)
        # One that reads the tokens whole and has no style, as a router.
        yield Case("prepare_input_output", "mlp", boundary, given, output)


def latent_cases() -> Iterator[Case]:
    """The projection among its heads: alone, nothing of its gradient is a part."""
    heads = (("down", "mla_kv_a_proj", Boundary()), ("up", "colwise", Boundary()))
    yield Case("replicate", "latent heads", Boundary(), Replicate(), Shard(2), heads)


def packed_cases() -> Iterator[Case]:
    """Layers of two parts, of three, and of unequal ones."""
    for module, given in product(("packed", "packed with bias", "packed conv1d"), (None, *PLACEMENTS)):
        boundary = Boundary(input=given)
        yield Case("packed_colwise", module, boundary, given or Replicate(), StridedShard(2, 2))
    for module in ("packed with bias", "packed conv1d"):
        three, unequal = Boundary(parts=3), Boundary(widths=(WIDE, WIDE // 2, WIDE // 2))
        yield Case("packed_colwise", module, three, Replicate(), StridedShard(2, 3))
        yield Case("packed_colwise", module, unequal, Replicate(), PackedShard(2, (WIDE, 6, 6)))


HEADS_DIVIDED = Shard(2)
"""Of activations [batch, sequence, heads, head_dim], where the style's own data speaks of features."""

CASES: dict[str, tuple[Case, ...]] = {
    "colwise": (
        *linear_cases("colwise"),
        simple("colwise", "head of 65"),
        simple("colwise", "head of 65", Boundary(output=Replicate())),
    ),
    "colwise_gather_output": (
        *linear_cases("colwise_gather_output"),
        simple("colwise_gather_output", "head of 65"),
    ),
    "packed_colwise": tuple(packed_cases()),
    "moe_tp_experts": (simple("moe_tp_experts", "experts"),),
    "mla_kv_a_proj": tuple(latent_cases()),
    "replicated_kv": (
        simple("replicated_kv", "linear"),
        simple("replicated_kv", "linear with bias"),
    ),
    "local_params": (Case("local_params", "scale", Boundary(), Shard(2), Shard(2)),),
    "prepare_input_output": tuple(two_way_container_cases()),
    "rowwise": tuple(linear_cases("rowwise")),
    "rowwise_split_input": tuple(linear_cases("rowwise_split_input")),
    "embedding_rowwise": tuple(embedding_cases("embedding_rowwise")),
    "embedding_colwise": tuple(embedding_cases("embedding_colwise")),
    "sequence_parallel": tuple(norm_cases()),
    "prepare_input": tuple(container_cases()),
    "replicate": (
        simple("replicate", "linear with bias"),
        simple("replicate", "rms norm"),
        simple("replicate", "embedding of 65"),
    ),
    "replicated_with_grad_allreduce": (
        Case("replicated_with_grad_allreduce", "head norm", Boundary(), HEADS_DIVIDED, HEADS_DIVIDED),
    ),
}


OWN_PARAMETERS: dict[str, dict[str, Placement]] = {
    "experts": {"gate_up_proj": StridedShard(1, 2), "down_proj": Shard(2)},
    "scale": {"weight": Shard(0)},
}
"""Placements that the model's own plan would give."""


class Experts(nn.Module):
    """Experts that all compute every token, with equal weights."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(3, 2 * WIDE, HIDDEN))
        self.down_proj = nn.Parameter(torch.empty(3, HIDDEN, WIDE))

    def forward(self, hidden_states: Tensor) -> Tensor:
        gate, up = torch.einsum("bsh,eih->ebsi", hidden_states, self.gate_up_proj).chunk(2, dim=-1)
        return torch.einsum("ebsi,ehi->bsh", gate.sigmoid() * up, self.down_proj)


class Scale(nn.Module):
    """A number for each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(HIDDEN))

    def forward(self, features: Tensor) -> Tensor:
        return features * self.weight


class LatentHeads(nn.Module):
    """Heads from a latent vector, each with the same rotary part."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(HIDDEN, WIDE + ROTARY)
        self.up = nn.Linear(WIDE, HEADS * ROTARY)

    def forward(self, features: Tensor) -> Tensor:
        latent, rotary = self.down(features).split((WIDE, ROTARY), dim=-1)
        heads = self.up(latent).unflatten(-1, (-1, ROTARY))
        return (heads * rotary[:, :, None]).flatten(2)


def build(module: str) -> nn.Module:
    match module:
        case "packed":
            return nn.Linear(HIDDEN, 2 * WIDE, bias=False)
        case "packed with bias":
            return nn.Linear(HIDDEN, 2 * WIDE)
        case "packed conv1d":
            return Conv1D(2 * WIDE, HIDDEN)
        case "conv1d":
            return Conv1D(WIDE, HIDDEN)
        case "experts":
            return Experts()
        case "scale":
            return Scale()
        case "latent heads":
            return LatentHeads()
        case "linear":
            return nn.Linear(HIDDEN, WIDE, bias=False)
        case "linear with bias":
            return nn.Linear(HIDDEN, WIDE)
        case "head of 65":
            return nn.Linear(HIDDEN, 65, bias=False)
        case "embedding of 64" | "embedding of 65":
            return nn.Embedding(int(module.rpartition(" ")[2]), HIDDEN)
        case "padded embedding of 65":
            return nn.Embedding(65, HIDDEN, padding_idx=PADDING)
        case "rms norm" | "head norm":
            return nn.RMSNorm(HIDDEN)
        case "layer norm":
            return nn.LayerNorm(HIDDEN)
        case "norm without weights":
            return nn.LayerNorm(HIDDEN, elementwise_affine=False)
        case "mlp":
            return nn.Sequential(nn.Linear(HIDDEN, WIDE), nn.Linear(WIDE, HIDDEN))
        case "norm in a container":
            return nn.Sequential(nn.RMSNorm(HIDDEN))
        case _:
            raise AssertionError(module)


def build_input(module: str, generator: torch.Generator) -> Tensor:
    if "embedding" in module:
        rows = int(module.rpartition(" ")[2])
        tokens = torch.randint(rows, (BATCH, SEQUENCE_LENGTH), generator=generator)
        tokens[0, 0] = PADDING
        return tokens
    features = (HEADS, HEAD_DIM) if module == "head norm" else (HIDDEN,)
    return torch.randn((BATCH, SEQUENCE_LENGTH, *features), generator=generator, dtype=torch.float64)


def local(whole: Tensor, of: Placement, mesh: DeviceMesh) -> Tensor:
    """This rank's part of a tensor."""
    if isinstance(of, StridedShard | PackedShard):
        return own_parts(whole, of, rank=mesh.get_local_rank(), num_ranks=mesh.size())
    return distribute_tensor(whole, mesh, [placement(of)]).to_local().detach().clone()


def gathered(part: Tensor, like: Tensor, of: Placement, mesh: DeviceMesh) -> Tensor:
    """The whole of a tensor whose parts lie as `of` says."""
    if isinstance(of, StridedShard | PackedShard):
        return joined_parts(part, like, of, mesh)
    if isinstance(part, DTensor):
        assert part.placements == (placement(of),)
        part = part.to_local()
    whole = DTensor.from_local(
        part, mesh, [placement(of)], run_check=False, shape=like.shape, stride=like.stride()
    )
    return whole.full_tensor()


def own_parts(whole: Tensor, of: StridedShard | PackedShard, *, rank: int, num_ranks: int) -> Tensor:
    """A rank's chunk of everything that a dimension packs."""
    parts = whole.split(widths_of(whole, of), of.tensor_dim)
    return torch.cat([one.chunk(num_ranks, of.tensor_dim)[rank] for one in parts], of.tensor_dim)


def widths_of(whole: Tensor, of: StridedShard | PackedShard) -> list[int]:
    if isinstance(of, PackedShard):
        return list(of.widths)
    return [whole.shape[of.tensor_dim] // of.split_factor] * of.split_factor


def joined_parts(part: Tensor, like: Tensor, of: StridedShard | PackedShard, mesh: DeviceMesh) -> Tensor:
    """The whole of a tensor from what every rank has of it."""
    part = part.to_local() if isinstance(part, DTensor) else part
    found = [torch.empty_like(part) for _ in range(mesh.size())]
    dist.all_gather(found, part.contiguous(), group=mesh.get_group())
    whole = torch.full_like(like, torch.nan)
    place = torch.arange(like.numel()).reshape(like.shape)
    for rank, one in enumerate(found):
        whole.view(-1)[own_parts(place, of, rank=rank, num_ranks=mesh.size()).flatten()] = one.flatten()
    return whole


def error(actual: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest expected value."""
    assert actual.shape == expected.shape
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def apply(case: Case, module: nn.Module, mesh: DeviceMesh) -> None:
    """The style as the runtime applies it: `replicate` is the absence of one."""
    for name, style, boundary in (*case.inside, ("", case.style, case.boundary)):
        part, using = module.get_submodule(name), use(BY_NAME[style], boundary)
        # The layers that read a prepared container's input are those that shard their columns.
        is_prepared = bool(name) and case.style == "prepare_input" and style == "colwise"
        names = (own for own, _ in part.named_parameters(recurse=False))
        placed = (placements(case) if not name else ()) or tuple(
            (own, BY_NAME[style].parameters.get(own, Replicate())) for own in names
        )
        op = ShardTensorParallel(
            modules=(name,),
            use=using,
            edges=edges(BY_NAME[style], using, is_prepared=is_prepared),
            parameters=placed,
            rows=Rows(((part.weight.shape[0], 1),)) if BY_NAME[style].shares_heads else None,
            over=(MeshDim.TP,),
        )
        shard_module(part, op, mesh, rotary_width=ROTARY)


def placements(case: Case) -> tuple[tuple[str, Placement], ...]:
    """Of the module's own parameters, as its style's data or a model's plan has them."""
    kind = Kind.CONV1D if "conv1d" in case.module else Kind.LINEAR
    placed = OWN_PARAMETERS.get(case.module) or BY_NAME[case.style].placements(kind, case.boundary)
    names = (name for name, _ in build(case.module).named_parameters(recurse=False))
    return tuple((name, placed.get(name, Replicate())) for name in names)


def misplaced(case: Case, module: nn.Module) -> list[str]:
    """Parameters that do not lie as the style's data says."""
    if case.inside:
        return []
    expected = dict(placements(case))
    found = []
    for name, parameter in module.named_parameters():
        placed = parameter.placements if isinstance(parameter, DTensor) else (placement(Replicate()),)
        if placed != (placement(expected.get(name, Replicate())),):
            found.append(name)
    return found


def fill_packed(case: Case, divided: nn.Module, whole: nn.Module, mesh: DeviceMesh) -> None:
    """Give this rank its parts of packed parameters: the runtime shards them before they have values."""
    for name, of in () if case.inside else placements(case):
        parameter = divided.get_parameter(name)
        if isinstance(of, StridedShard | PackedShard):
            assert isinstance(parameter, DTensor)
            with torch.no_grad():
                parameter.to_local().copy_(local(whole.get_parameter(name), of, mesh))


def whole_gradient(case: Case, name: str, parameter: nn.Parameter, like: Tensor, mesh: DeviceMesh) -> Tensor:
    """A parameter's gradient in the whole tensor's own order."""
    grad = parameter.grad
    assert grad is not None
    of = Replicate() if case.inside else dict(placements(case)).get(name, Replicate())
    if isinstance(of, StridedShard | PackedShard):
        return joined_parts(grad, like, of, mesh)
    return grad.full_tensor() if isinstance(grad, DTensor) else grad


def case_errors(case: Case, mesh: DeviceMesh) -> dict[str, float]:
    """The error of the output and of each gradient by name, as this rank sees them."""
    generator = torch.Generator().manual_seed(7)
    whole_module = build(case.module).double()
    for parameter in whole_module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    divided = copy.deepcopy(whole_module)
    whole = build_input(case.module, generator)
    part = local(whole, case.enters, mesh)
    if whole.is_floating_point():
        whole.requires_grad_()
        part.requires_grad_()
    expected = whole_module(whole)
    grad_out = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    expected.backward(grad_out)
    apply(case, divided, mesh)
    assert misplaced(case, divided) == []
    fill_packed(case, divided, whole_module, mesh)
    out = divided(part)
    out.backward(local(grad_out, case.leaves, mesh))
    errors = {"output": error(gathered(out.detach(), expected, case.leaves, mesh), expected)}
    if whole.grad is not None:
        assert part.grad is not None
        errors["input"] = error(gathered(part.grad, whole.grad, case.enters, mesh), whole.grad)
    for (name, parameter), (_, theirs) in zip(
        divided.named_parameters(), whole_module.named_parameters(), strict=True
    ):
        assert parameter.grad is not None
        assert theirs.grad is not None
        errors[name] = error(whole_gradient(case, name, parameter, theirs.grad, mesh), theirs.grad)
    return errors


def style_errors(rank: int, world_size: int, style: str) -> dict[str, float]:
    """The worst error of each of a style's cases."""
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("tp",))
    return {case.name: max(case_errors(case, mesh).values()) for case in CASES[style]}


def test_every_style_has_cases() -> None:
    assert set(CASES) == {style.name for style in STYLES}
    assert all(cases for cases in CASES.values())


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_every_option_of_a_style_has_a_case(style: Style) -> None:
    used = {
        option
        for case in CASES[style.name]
        for option in OPTIONS
        if getattr(case.boundary, option) is not None
    }
    assert used == set(style.options)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("style", CASES)
def test_a_style_computes_what_one_process_computes(style: str) -> None:
    for errors in run_ranks(style_errors, 2, style):
        assert {name: error for name, error in errors.items() if not error <= TOLERANCE} == {}
