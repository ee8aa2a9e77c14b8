"""plan_hash: blind to how a plan is written, alert to what it means."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.graph.graph import plan_hash
from tests.plans import FULL, TINY, checked, write_plan

Edits = tuple[tuple[str, str], ...]

MESH = "mesh {\n  dp_shard = 2\n  tp = 2\n}\n"
GATE_UP = '  "model.layers.*.mlp.{gate,up}_proj" -> colwise\n'
UNIT = '  "model.layers.*" -> unit(reshard_after_forward = true)\n'
HEAD_UNIT = '  ["model.norm", "lm_head"] -> unit(reshard_after_forward = false)\n'


def _hash(path: Path, *settings: str) -> str:
    graph = checked(path, *settings).graph
    assert graph is not None
    return plan_hash(graph)


REWRITINGS: dict[str, Edits] = {
    "comments": (("mesh {", "# why\nmesh {  # here\n"),),
    "layout": ((MESH, "mesh { dp_shard=2, tp=2 }\n"),),
    "block order": ((MESH, ""), ("train {", MESH + "\ntrain {")),
    "key order": ((MESH, "mesh {\n  tp = 2\n  dp_shard = 2\n}\n"),),
    "rule order": ((UNIT + HEAD_UNIT, HEAD_UNIT + UNIT),),
    "parameter": ((MESH, "param n: int = 2\n" + MESH.replace("= 2", "= n")),),
    "inlined parameter": (("param lr: float = 4e-3\n", ""), ("lr = lr", "lr = 0.004")),
    "default written out": ((MESH, MESH.replace("tp = 2", "tp = 2\n  cp = 1")),),
    "pattern as two": ((GATE_UP, GATE_UP.replace("{gate,up}", "up") + GATE_UP.replace("{gate,up}", "gate")),),
    "pattern as range": ((GATE_UP, GATE_UP.replace("*", "{0..3}")),),
    "units as two rules, later layers first": (
        (UNIT, UNIT.replace("*", "{2..3}") + UNIT.replace("*", "{0..1}")),
    ),
    "mesh dims of a block in another order": (("fsdp on dp_shard, cp", "fsdp on cp, dp_shard"),),
    "style's own placement written out": (
        (GATE_UP, GATE_UP.replace("colwise", "colwise(input = Replicate())")),
    ),
    "no expectations": ((FULL[FULL.index("expect {") :], ""),),
}


@pytest.mark.parametrize("edits", REWRITINGS.values(), ids=REWRITINGS)
def test_rewriting_keeps_the_hash(tmp_path: Path, edits: Edits) -> None:
    assert _hash(write_plan(tmp_path, name="other.plan", edits=edits)) == _hash(write_plan(tmp_path))


CHANGES: dict[str, Edits] = {
    "mesh": ((MESH, "mesh {\n  dp_shard = 4\n}\n"), ("world_size == 4\n  gradient_accumulation == 2", "")),
    "model": (("seed = 0", "seed = 1"),),
    "dtype": (("dtype = float32", "dtype = bfloat16"),),
    "unit": (("reshard_after_forward = true", "reshard_after_forward = false"),),
    "unit boundaries": ((HEAD_UNIT, HEAD_UNIT.replace('["model.norm", "lm_head"]', '"lm_head"')),),
    "units ahead": (("replicate_on = dp_replicate", "replicate_on = dp_replicate\n  prefetch = 2"),),
    "fsdp dtype": (("replicate_on = dp_replicate", "param_dtype = bfloat16"),),
    "recomputation": (('"model.layers.*" -> none', '"model.layers.0" -> full'),),
    "data order": (("shuffle_seed = 42", "shuffle_seed = 43"),),
    "learning rate": (("4e-3", "4e-4"),),
    "weight decay": (("weight_decay = 0.0", "weight_decay = 0.01"),),
    "schedule": (("min_factor = 0.1", "min_factor = 0.2"),),
    "optimizer": (("adamw(lr = lr, betas = [0.9, 0.95], weight_decay = 0.1)", "sgd(lr = lr)"),),
    "implementation": (("weight_decay = 0.1)", "weight_decay = 0.1, implementation = foreach)"),),
    "learning rate of a group": (("weight_decay = 0.0", "weight_decay = 0.0, lr = 1e-3"),),
    "plateau": (("cosine(warmup = 10 steps", "wsd(warmup = 10 steps, decay = 5 steps"),),
    "clipping": (("clip_grad_norm = 1.0", "clip_grad_norm = none"),),
    "saves": (("save_every = 30 steps", "save_every = 20 steps"),),
    "steps": (("steps = 60", "steps = 61"),),
}


@pytest.mark.parametrize("edits", CHANGES.values(), ids=CHANGES)
def test_change_of_meaning_changes_the_hash(tmp_path: Path, edits: Edits) -> None:
    assert _hash(write_plan(tmp_path, edits=edits)) != _hash(write_plan(tmp_path))


def test_setting_and_text_mean_the_same(tmp_path: Path) -> None:
    written = write_plan(tmp_path, text=TINY, edits=[("tp = 2", "tp = 4")])
    assert _hash(write_plan(tmp_path, name="y.plan", text=TINY), "mesh.tp=4") == _hash(written)


def test_setting_replaces_what_a_parameter_gave(tmp_path: Path) -> None:
    """The parameter is read by the plan, so it is not reported as unused."""
    path = write_plan(tmp_path, text=TINY)
    assert _hash(path, "mesh.dp_shard=4") == _hash(path, "size=4")
