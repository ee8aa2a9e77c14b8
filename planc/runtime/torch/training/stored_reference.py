"""A reference's log-probabilities on disk: a run that starts again reads those of its first start.

The file of a set, `references/training.safetensors`, has the log-probability of each answer in float64, in
the order of the data, so it is the same on every mesh. Its header has the digests of all that they follow
from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import torch
import torch.distributed as dist
import transformers
from safetensors.torch import load, save
from torch import Tensor

from planc import __version__
from planc.graph import ops
from planc.graph.graph import plain
from planc.hub.names import model_folder
from planc.hub.peft_adapter import WEIGHTS
from planc.runtime.checkpoint_format.base import hash_files
from planc.runtime.errors import STOPS
from planc.runtime.files import plain_files
from planc.runtime.files.run_files import REFERENCES
from planc.runtime.torch.checkpoint.base import hashed_weights
from planc.runtime.torch.checkpoint.errors import run_errors
from planc.runtime.torch.run import Run
from planc.strict_json import loads

_ANSWERS, _HEADER = "answers", "reference"
_HEADER_BYTES = 2**20
_OF_WEIGHTS = ops.InitWeights | ops.LoadWeights | ops.InitAdapters | ops.LoadAdapters
_OF_MODEL = ops.BuildModel | ops.AttachAdapters | ops.QuantizeBase


def origin_of(run: Run, fingerprint: str, *, other: ops.LoadWeights | None) -> Mapping[str, str] | None:
    """The digests of what log-probabilities follow from, but for rounding, by part; the same on every rank.

    `other` loads weights that training does not start from. None if the model is of the plan's own code,
    which may be in other files too. Every rank must call it.
    """
    setup = run.graph.setup
    if any(isinstance(op, ops.BuildOwnModel) for op in setup):
        return None
    started = [op for op in setup if isinstance(op, _OF_WEIGHTS)] if other is None else [other]
    loaded = [hashed_weights(run, op.path) for op in started if isinstance(op, ops.LoadWeights)]
    starts = [
        model_folder(op.path, base=run.paths.base) for op in started if isinstance(op, ops.LoadAdapters)
    ]
    with run_errors():
        loaded += [hash_files(folder, [WEIGHTS]) for folder in starts]
    files = [f"{name} {entry.sha256}" for entries in loaded for name, entry in sorted(entries.items())]
    dtypes = sorted({str(op.param_dtype) for op in setup if isinstance(op, ops.FullyShard)} - {"None"})
    return {
        "data": fingerprint,
        "weights": _digest([*files, *map(_meaning, started)]),
        "model": _digest([*dtypes, *(_meaning(op) for op in setup if isinstance(op, _OF_MODEL))]),
        "versions": f"{__version__}, {torch.__version__}, {transformers.__version__}",
    }


def read(run: Run, label: str, origin: Mapping[str, str], *, num_answers: int) -> Tensor | None:
    """[answers] of a set, as rank 0 reads them; None without a sound file of this origin."""
    kept = torch.zeros(1 + num_answers, dtype=torch.float64)
    answers = _on_disk(run, label, origin, num_answers) if run.launch.rank == 0 else None
    if answers is not None:
        kept[0], kept[1:] = 1, answers
    kept = kept.to(run.device)
    if run.launch.world_size > 1:
        dist.broadcast(kept, src=0)
    return kept[1:] if kept[0].item() else None


def write(run: Run, label: str, origin: Mapping[str, str], answers: Tensor) -> None:
    """Let rank 0 store the answers [answers], unless the run has no directory."""
    if run.launch.rank or not run.paths.run.is_dir():
        return
    path, stored = _path(run, label), answers.cpu()
    # One key, since safetensors writes several in any order.
    header = {_HEADER: json.dumps({"origin": origin, "sha256": _sha256(stored)})}

    def replace() -> None:
        path.parent.mkdir(exist_ok=True)
        plain_files.replace(path, [save({_ANSWERS: stored}, metadata=header)])

    run.effort.attempt(f"write {path}", replace)


def _on_disk(run: Run, label: str, origin: Mapping[str, str], num_answers: int) -> Tensor | None:
    path = _path(run, label)
    if plain_files.kind_of(path) is None:
        return None
    again = "the reference is computed again"
    try:
        content = plain_files.read_bytes(path, max_bytes=_HEADER_BYTES + 8 * num_answers)
        header = loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        header = loads(header["__metadata__"][_HEADER])
        answers: Tensor = load(content)[_ANSWERS]
        saved, digest = dict(header["origin"]), header["sha256"]
    # A damaged file may raise anything.
    except STOPS:
        raise
    except BaseException as error:
        run.observer.noted(f"{again}: {path} can't be read: {error}")
        return None
    if others := sorted(name for name in origin if saved.get(name) != origin[name]):
        run.observer.noted(f"{again}: {path} is of other {', '.join(others)}")
        return None
    if (answers.shape, answers.dtype) != ((num_answers,), torch.float64) or _sha256(answers) != digest:
        run.observer.noted(f"{again}: {path} is damaged")
        return None
    return answers


def _path(run: Run, label: str) -> Path:
    name = f"eval.{quote(label, safe='')}" if label else "training"
    return run.paths.run / REFERENCES / f"{name}.safetensors"


def _sha256(answers: Tensor) -> str:
    return hashlib.sha256(answers.numpy().tobytes()).hexdigest()


def _digest(parts: list[str]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _meaning(op: object) -> str:
    return json.dumps(plain(op, without=("span", "path")), sort_keys=True)
