"""What a case is, the model and the tokenizer that most share, and planc's commands as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.launch.processes import ROOT
from tests.patience import WAIT_SECONDS

PLAN = """model {{
  hf = "base"
}}

data {{
  source = {source}
  tokenizer = file("{tokenizer}")
  sequence_length = 160
  micro_batch = 1
  packing = none
}}

optimizer {{
  kind = adamw(lr = 1e-3)
}}

train {{
  steps = 1
}}
"""


@dataclass(frozen=True, slots=True)
class Case:
    """`problem` builds the case in an empty folder and says what is wrong with planc's answer, or None."""

    name: str
    problem: Callable[[Path], str | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


def planc(folder: Path, *words: str, module: str = "planc") -> Answer:
    """`planc WORDS`, started in `folder`."""
    return _ended((sys.executable, "-m", module, *words), folder)


def torchrun(folder: Path, num_ranks: int, plan: str) -> Answer:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    return _ended((*launcher, f"--nproc-per-node={num_ranks}", "-m", "planc.run", plan), folder)


def _ended(command: Sequence[str], folder: Path) -> Answer:
    settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def shown(folder: Path, *, row: int = 1, plan: str = "case.plan") -> dict[str, Any] | Answer:
    """What `planc data show` says of a row; the answer itself if it is no object."""
    answer = planc(folder, "data", "show", plan, "--row", str(row), "--output-format", "json")
    try:
        content = json.loads(answer.out)
    except ValueError:
        return answer
    return content if isinstance(content, dict) and "ids" in content else answer


def refused(folder: Path, *words: str, plan: str = "case.plan") -> str | None:
    """The problem unless `check --data` refuses the plan with all of these words."""
    answer = planc(folder, "check", plan, "--data")
    missing = [word for word in words if word not in answer.text.lower()]
    if answer.code == 0:
        return "check --data passes"
    if missing:
        return f"the message does not say {', '.join(missing)}: {answer.text[-600:]}"
    return None


def differs(found: dict[str, Any] | Answer, *, ids: Sequence[int], trained: Sequence[bool]) -> str | None:
    """How a row differs from the ids and mask that it should have; an end that planc adds is not trained."""
    if isinstance(found, Answer):
        return f"data show ends with {found.code}: {found.text[-600:]}"
    num_more = len(found["ids"]) - len(ids)
    if num_more not in (0, 1) or found["ids"][: len(ids)] != list(ids):
        return f"ids are {found['ids']}, not {list(ids)}"
    if found["trained"] != [*trained, *[False] * num_more]:
        return f"trained are {found['trained']}, not {list(trained)}"
    return None


@cache
def _tokenizer_text() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    lines = (
        "the cat sat on the mat and the dog ran over the hill",
        "hello world, how are you today? fine thanks",
        "def f(x): return x + 1",
        "user assistant system tool think",
    )
    trainer = trainers.BpeTrainer(
        vocab_size=390,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines * 3, trainer)
    text: str = tokenizer.to_str()
    return text


def save_tokenizer(folder: Path, config: Mapping[str, object] | None = None) -> None:
    """A byte-level tokenizer of 344 ids, whose words have tokens of their own with the space before them."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(_tokenizer_text(), encoding="utf-8")
    if config is not None:
        words = {"eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast", **config}
        (folder / "tokenizer_config.json").write_text(json.dumps(words), encoding="utf-8")


def save_base(folder: Path, **changes: object) -> None:
    """A Llama of 51,000 parameters, with a tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    settings: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": 512,
        **changes,
    }
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**settings)).save_pretrained(folder)
    save_tokenizer(folder)


def write_plan(folder: Path, *, source: str, tokenizer: str = "tok", **replaced: str) -> None:
    """`case.plan`; a keyword replaces the line of a key by another value, or adds it to `data`."""
    text = PLAN.format(source=source, tokenizer=tokenizer)
    for name, value in replaced.items():
        lines = text.splitlines(keepends=True)
        at = [number for number, line in enumerate(lines) if line.startswith(f"  {name} = ")]
        if at:
            lines[at[0]] = f"  {name} = {value}\n"
        else:
            lines.insert(lines.index("data {\n") + 1, f"  {name} = {value}\n")
        text = "".join(lines)
    (folder / "case.plan").write_text(text, encoding="utf-8")


def write_rows(folder: Path, *rows: object) -> None:
    """`rows.jsonl`."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "rows.jsonl").write_text(text, encoding="utf-8")
