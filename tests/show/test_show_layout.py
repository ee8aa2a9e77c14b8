"""Local shapes: what DTensor and FSDP2 leave on a rank."""

from __future__ import annotations

from pathlib import Path

from planc.estimate.layout import ParameterLayout, layouts
from planc.graph.graph import Graph
from planc.inventory.schema import Inventory
from planc.show.layout import layout_text
from planc.vocab import MeshDim, Replicate, Shard
from tests.plans import FULL, TINY, checked, write_plan


def _layouts(folder: Path, *edits: tuple[str, str]) -> dict[str, ParameterLayout]:
    found = checked(write_plan(folder, edits=edits))
    assert isinstance(found.graph, Graph) and isinstance(found.inventory, Inventory)
    return {parameter.fqn: parameter for parameter in layouts(found.graph, found.inventory)}


def test_fsdp_divides_what_tensor_parallelism_leaves(tmp_path: Path) -> None:
    found = _layouts(tmp_path)
    gate = found["model.layers.0.mlp.gate_proj.weight"]
    assert (gate.shape, gate.tp_shape, gate.local_shape) == ((352, 128), (176, 128), (88, 128))
    down = found["model.layers.0.mlp.down_proj.weight"]
    assert (down.shape, down.tp_shape, down.local_shape) == ((128, 352), (128, 176), (64, 176))


def test_placements_name_the_mesh_dims_of_more_than_one_rank(tmp_path: Path) -> None:
    norm = _layouts(tmp_path)["model.norm.weight"]
    assert norm.placements == (((MeshDim.DP_SHARD,), Shard(0)), ((MeshDim.TP,), Replicate()))


def test_uneven_division_gives_the_last_rank_less(tmp_path: Path) -> None:
    """260 rows over tp 2 are 130; over 4 ranks of FSDP chunks of 33, of which the last has 31."""
    mesh = FULL[FULL.index("mesh {") : FULL.index("tensor_parallel")]
    edits = [(mesh, mesh.replace("dp_shard = 2", "dp_shard = 4")), ("world_size == 4", "world_size == 8")]
    head = _layouts(tmp_path, *edits, ("gradient_accumulation == 2", "gradient_accumulation == 1"))[
        "lm_head.weight"
    ]
    assert (head.local_shape, head.last_shape) == ((33, 128), (31, 128))
    assert "uneven: [31, 128] on the last rank" in layout_text((head,))


def test_rank_zero_holds_its_share_of_the_bytes(tmp_path: Path) -> None:
    found = _layouts(tmp_path).values()
    assert sum(parameter.total_bytes for parameter in found) == 804_992 * 4
    whole_norms = 9 * 128 * 4
    expected = (804_992 * 4 - whole_norms) // 4 + whole_norms // 2
    assert sum(parameter.local_bytes for parameter in found) == expected


def test_context_parallel_ranks_share_parameters_with_fsdp(tmp_path: Path) -> None:
    rules = 'context_parallel on cp {\n  ["input_ids", "labels", "position_ids"] -> Shard(1)\n}\n\n'
    found = _layouts(
        tmp_path,
        ("dp_shard = 2", "dp_shard = 1\n  cp = 2"),
        ("activation_checkpoint {", rules + "activation_checkpoint {"),
        ("gradient_accumulation == 2", "gradient_accumulation == 4"),
    )
    assert found["lm_head.weight"].local_shape == (65, 128)


def test_layers_fold_into_one_line(tmp_path: Path) -> None:
    lines = layout_text(tuple(_layouts(tmp_path).values())).splitlines()
    assert sum("mlp.up_proj" in line for line in lines) == 1
    assert any(line.startswith("model.layers.{0..3}.mlp.up_proj.weight") for line in lines)


def test_experts_are_on_factors_of_the_mesh_dim_of_other_weights(tmp_path: Path) -> None:
    """Eight experts on two ranks, each of them on two more: those of ep are neighbors."""
    experts = "expert_parallel on dp_shard {\n  size = 2\n  auto\n}\n\nfsdp on"
    edits = (("models/tiny-llama", "models/tiny-qwen3-moe"), ("fsdp on", experts))
    path = write_plan(tmp_path, text=TINY, edits=edits)
    found = checked(path, "size=4", "mesh.tp=2")
    assert found.graph is not None
    parameters = layouts(found.graph, found.inventory)
    (down,) = (one for one in parameters if one.fqn == "model.layers.0.mlp.experts.down_proj")
    assert down.shape[1:] == (128, 64) and down.local_shape == (down.shape[0] // 4, 128, 32)
    header, *lines = layout_text(parameters).splitlines()
    assert header.split()[2:6] == ["dp_shard", "efsdp", "ep", "tp"]
    (line,) = (one for one in lines if "experts.down_proj" in one)
    assert line[header.index("dp_shard") : header.index("local")].split() == [
        "Shard(0)",
        "Shard(0)",
        "Shard(2)",
    ]
