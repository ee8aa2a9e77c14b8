"""The same step through planc: the result of `check` for a plan, and of its runtime."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from planc.api import Checked, check_source
from planc.graph.graph import Graph
from planc.inventory.codec import loads
from planc.inventory.load import save_inventory
from planc.source import SourceFile
from planc.verify.pool import run_ranks
from planc.verify.ranks import Task, train_rank
from tests.patience import WAIT_SECONDS
from tests.positions.plain import CORPUS, NUM_SEQUENCES, SEQUENCE_LENGTH, Plain

MODEL = "model"
MESHES = {
    "one": "",
    "cp": """mesh { cp = 2 }
fsdp on cp { UNITS }
context_parallel on cp {
  rotate = allgather
  load_balancer = headtail
  ["input_ids", "labels", "position_ids"] -> Shard(1)
}""",
    "dp": "mesh { dp_shard = 2 }\nfsdp on dp_shard { UNITS }",
}


def checked(
    folder: Path, *, mesh: str, packing: str, attention: str = "sdpa", length: int = SEQUENCE_LENGTH
) -> Checked:
    """The result of `check` for the plan that trains the directory's model on its text."""
    text = f"""\
model {{
  hf = "{MODEL}"
  weights = pretrained
  attention = {attention}
}}
{MESHES[mesh]}
data {{
  source = jsonl("{CORPUS}", field = "text")
  tokenizer = bytes
  sequence_length = {SEQUENCE_LENGTH}
  micro_batch = {NUM_SEQUENCES // (2 if mesh == "dp" else 1)}
  packing = {packing}
}}
optimizer {{
  kind = adamw(lr = 1e-3)
}}
train {{
  steps = 10
}}
"""
    # Saved, it is what the check reads; a cache of the user's may hold another.
    blocks = loads(save_inventory(folder / MODEL).read_bytes()).blocks
    text = text.replace("UNITS", "\n".join(f'"{block}.*" -> unit' for block in blocks))
    return check_source(SourceFile("positions.plan", text), base=folder)


def codes(found: Checked) -> list[str]:
    return [one.code.code for one in found.diagnostics if one.severity.value == "error"]


def planc_step(graph: Graph, *, base: Path) -> Plain:
    """Loss and gradients of the first step."""
    with TemporaryDirectory() as run_folder:
        task = Task(graph, base, Path(run_folder), stop_after=1)
        (record, *_) = run_ranks(
            train_rank, graph.world_size, task, timeout_seconds=WAIT_SECONDS, init=False, quiet=True
        )
    return Plain(record.metrics[0].loss, record.gradients)


def worst_error(found: Plain, expected: Plain) -> float:
    """The largest relative error of the loss and of any gradient."""
    assert found.gradients.keys() == expected.gradients.keys()
    errors = [abs(found.loss - expected.loss) / expected.loss]
    for name, gradient in expected.gradients.items():
        # Some gradients are 0 but for rounding: a bias of keys moves no softmax.
        scale = max(float(gradient.abs().max()), 1e-4)
        errors.append(float((found.gradients[name] - gradient).abs().max()) / scale)
    return max(errors)
