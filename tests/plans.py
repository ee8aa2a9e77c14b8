"""Plans for tests: the canonical ones, and small ones written beside a link to the models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from planc.api import Checked, check_plan
from planc.source import SourceFile

PLANS = Path(__file__).parents[1] / "plans"
QUICKSTART = PLANS / "quickstart.plan"
FULL = (Path(__file__).parent / "full.plan").read_text()
"""What tests edit: four ranks, fixed values, most blocks."""


def canonical_plans() -> tuple[Path, ...]:
    """Every plan that ships, by name."""
    return tuple(sorted(PLANS.glob("*.plan")))


def write_plan(
    folder: Path, *, name: str = "x.plan", text: str | None = None, edits: Sequence[tuple[str, str]] = ()
) -> Path:
    """A plan in `folder`, from which the models are reached: FULL, or `text`, with `edits` made.

    Every edit must find its text, so that no test passes for having changed nothing.
    """
    models = folder / "models"
    if not models.exists():
        models.symlink_to(PLANS / "models")
    text = FULL if text is None else text
    for old, new in edits:
        assert old in text, f"nothing to edit: {old}"
        text = text.replace(old, new)
    path = folder / name
    path.write_text(text)
    return path


def checked(path: Path, *settings: str) -> Checked:
    """A plan that checks clean, with `--set` values."""
    sources = [SourceFile(f"--set[{number}]", text) for number, text in enumerate(settings)]
    found = check_plan(path, settings=sources)
    assert found.ok, [f"{one.code.code} {one.primary.text}" for one in found.diagnostics]
    return found


TINY = """\
param size: int = 2

model {
  hf = "models/tiny-llama"
}

mesh {
  dp_shard = size
  tp = 2
}

tensor_parallel on tp {
  auto
}

fsdp on dp_shard {
  "model.layers.*" -> unit
}

data {
  source = text("data/*.txt")
  sequence_length = 64
  micro_batch = 1
}

optimizer {
  kind = adamw(lr = 1e-3)
}

train {
  steps = 10
}
"""


def encoder_plan(model: str, *, task: str, source: str) -> str:
    """TINY with an encoder of another task, whose tensor-parallel rules are solved."""
    return (
        TINY.replace("tiny-llama", model)
        .replace('"model.layers.*"', '"bert.encoder.layer.*"')
        .replace("  auto\n", "  auto(solve)\n")
        .replace(f'{model}"\n', f'{model}"\n  task = {task}\n')
        .replace('text("data/*.txt")', source)
    )


"""The shortest plan that uses tensor parallelism and FSDP."""
