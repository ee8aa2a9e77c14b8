"""What compiled layers keep, as estimated and as rehearsed: `python -m tests.estimate.compiled`.

Small models with windows, documents and both, on the kernels of CPUs and of CUDA devices. Both figures are
without gaps: `activations` before the first layer's backward, and `peak` what all blocks hold.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from planc.api import check_source
from planc.estimate.estimate import estimate
from planc.runtime.rehearsal.rehearse import rehearse
from planc.source import SourceFile
from tests.plans import PLANS

_PLAN = """\
model {
  hf = "model"
  weights = random
  dtype = DTYPE
}

mesh {
  tp = TP
  backend = BACKEND
}

TENSOR_PARALLELRECOMPUTECOMPILEdata {
  source = text("data/*.txt")
  sequence_length = LENGTH
  micro_batch = SAMPLES
  packing = PACKING
}

optimizer {
  kind = adamw(lr = 1e-3)
}

train {
  steps = 10
}
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One plan of a small model in plans/models, whose configuration `edits` change."""

    model: str
    edits: tuple[tuple[str, Any], ...] = ()
    length: int = 512
    samples: int = 4
    dtype: str = "bfloat16"
    isolates: bool = False
    is_cuda: bool = False
    tp: int = 1
    recompute: str = ""
    is_compiled: bool = True

    @property
    def name(self) -> str:
        words = [
            self.model,
            *(f"window {value}" for key, value in self.edits if key == "sliding_window"),
            f"{self.length} tokens",
        ]
        words += [self.dtype, "cuda" if self.is_cuda else "cpu"]
        words += ["documents"] * self.isolates + [f"tp {self.tp}"] * (self.tp > 1)
        words += [f"recompute {self.recompute}"] * bool(self.recompute) + ["eager"] * (not self.is_compiled)
        return ", ".join(words)

    @property
    def text(self) -> str:
        blocks = {
            "TENSOR_PARALLEL": "tensor_parallel on tp {\n  auto\n}\n\n" * (self.tp > 1),
            "RECOMPUTE": f'activation_checkpoint {{\n  "BLOCK.*" -> {self.recompute}\n}}\n\n'
            * bool(self.recompute),
            "COMPILE": 'compile {\n  "BLOCK.*" -> region\n}\n\n' * self.is_compiled,
            "BACKEND": "nccl" if self.is_cuda else "gloo",
            "DTYPE": self.dtype,
            "TP": str(self.tp),
            "LENGTH": str(self.length),
            "SAMPLES": str(self.samples),
            "PACKING": "isolate" if self.isolates else "attend",
            "BLOCK": "model.layers",
        }
        text = _PLAN
        for name, value in blocks.items():
            text = text.replace(name, value)
        return text


@dataclass(frozen=True, slots=True)
class Compared:
    """Bytes of both figures."""

    activations: tuple[int, int]
    peak: tuple[int, int]


def compared(case: Case) -> Compared:
    """The figures of a case, (estimated, rehearsed) of each."""
    with TemporaryDirectory(prefix="planc-compiled-") as name:
        folder = Path(name)
        published = PLANS / "models" / case.model / "config.json"
        config = json.loads(published.read_text(encoding="utf-8")) | dict(case.edits)
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps(config), encoding="utf-8")
        checked = check_source(SourceFile("small.plan", case.text), base=folder)
        errors = [f"{one.code.code} {one.primary.text}" for one in checked.diagnostics]
        assert checked.graph is not None and checked.inventory is not None, errors
        rehearsal = rehearse(checked.graph, base=folder)
        assert rehearsal.measured is not None, rehearsal.failures[0]
        memory = estimate(checked.graph, checked.inventory).memory
        (before,) = (dict(one.parts) for one in rehearsal.measured.segments if one.segment == "backward")
        kept = next(one.num_bytes for one in memory.parts if one.name == "activations")
        return Compared((kept, before["activations"]), (memory.held_bytes, rehearsal.measured.held_bytes))


_WINDOW = (("sliding_window", 128),)
_SMALL = (
    *(("hidden_size", 128), ("intermediate_size", 256), ("num_hidden_layers", 6), ("num_attention_heads", 4)),
    *(("num_key_value_heads", 1), ("head_dim", 32), ("vocab_size", 264), ("sliding_window", 128)),
)
_LONG: dict[str, Any] = {"length": 4_096, "samples": 1}
_LONG_WINDOW = (*_WINDOW, ("max_position_embeddings", 8_192))


def cases() -> Iterator[Case]:
    """Every case of the table."""
    for is_cuda in (False, True):
        for dtype in ("bfloat16", "float32"):
            yield Case("tiny-llama", dtype=dtype, is_cuda=is_cuda)
            yield Case("tiny-llama", dtype=dtype, is_cuda=is_cuda, isolates=True)
            yield Case("tiny-mistral", _WINDOW, dtype=dtype, is_cuda=is_cuda)
            yield Case("tiny-mistral", _WINDOW, dtype=dtype, is_cuda=is_cuda, isolates=True)
            yield Case("tiny-mistral", _LONG_WINDOW, dtype=dtype, is_cuda=is_cuda, **_LONG)
            yield Case("tiny-gemma2", _WINDOW, dtype=dtype, is_cuda=is_cuda)
            yield Case("gemma-3-1b", _SMALL, dtype=dtype, is_cuda=is_cuda)
        yield Case("tiny-mistral", _WINDOW, is_cuda=is_cuda, tp=2)
        yield Case("tiny-mistral", _WINDOW, is_cuda=is_cuda, recompute="full")
        yield Case("tiny-mistral", _WINDOW, is_cuda=is_cuda, isolates=True, recompute="full")
        yield Case("tiny-mistral", _WINDOW, is_cuda=is_cuda, is_compiled=False)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.estimate.compiled", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORDS", help="cases whose name has all of them")
    words = parser.parse_args(arguments).only.split()
    for case in cases():
        if all(word in case.name for word in words):
            try:
                found = compared(case)
            except AssertionError as error:
                print(f"{case.name:<80} {error}", flush=True)
                continue
            figures = "".join(
                f"{estimated / 2**20:>9.2f}{measured / 2**20:>9.2f}"
                f"{100 * (estimated / measured - 1):>+7.1f} %"
                for estimated, measured in (found.activations, found.peak)
            )
            print(f"{case.name:<80}{figures}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
