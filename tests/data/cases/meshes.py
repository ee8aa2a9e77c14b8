"""Cases that train on several ranks: equal to one process, or refused before."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.data.cases.case import Case, planc, torchrun

_TAIL = """
data {
  source = python_stdlib()
  sequence_length = 64
  micro_batch = 2
}

optimizer {
  kind = sgd(lr = 1e-2)
}

checkpoint {
  save_last = false
}

train {
  steps = 2
  tokens_per_step = 512
}
"""
_LOSS = re.compile(r"^step .*?\bloss (\S+)", re.MULTILINE)


_UNITS_ON_MLPS = """pipeline on pp {
  schedule = one_f_one_b
}

fsdp on dp_shard {
  "model.layers.*.mlp" -> unit
}
"""
_A_LAYER_LEFT_OUT = """pipeline on pp { }

fsdp on dp_shard {
  "model.layers.0" -> unit
  "model.layers.{2..3}" -> unit
}
"""
_SEQUENCE_PARALLEL = """tensor_parallel on tp {
  auto(sequence_parallel = true)
}

pipeline on pp {
  schedule = one_f_one_b
}
"""
_AUTO = """tensor_parallel on tp {
  auto
}
"""


def _model(kind: str) -> Callable[[Path], None]:
    """Saves a tiny model whose parameters are all random, the biases too."""

    def save(folder: Path) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        sizes = {"vocab_size": 258, "num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 64}
        named = {
            "llama": {
                **sizes,
                "intermediate_size": 128,
                "num_key_value_heads": 2,
                "max_position_embeddings": 128,
            },
            "gpt2": {"vocab_size": 258, "n_layer": 3, "n_head": 6, "n_embd": 48, "n_positions": 128},
            "bert": {**sizes, "intermediate_size": 128, "max_position_embeddings": 128, "is_decoder": True},
        }
        dropouts = (
            "attn_pdrop",
            "embd_pdrop",
            "resid_pdrop",
            "hidden_dropout_prob",
            "attention_probs_dropout_prob",
        )
        config = AutoConfig.for_model(kind, **named[kind])
        for name in dropouts:
            if hasattr(config, name):
                setattr(config, name, 0.0)
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
        model.save_pretrained(folder)

    return save


def _equal(kind: str, mesh: str, blocks: str) -> Callable[[Path], str | None]:
    """The problem unless the mesh prints one process's losses; a refusal by `check` is an answer too."""

    def problem(folder: Path) -> str | None:
        _model(kind)(folder / "m")
        head = 'model {\n  hf = "m"\n  weights = pretrained\n  dtype = float32\n}\n'
        plan = f"{head}\nmesh {{ {mesh} }}\n\n{blocks}\n{_TAIL}"
        (folder / "case.plan").write_text(plan, encoding="utf-8")
        (folder / "one.plan").write_text(head + _TAIL, encoding="utf-8")
        checked = planc(folder, "check", "case.plan")
        if checked.code:
            return (
                None if "error[" in checked.text else f"check ends with {checked.code}: {checked.text[-600:]}"
            )
        num_ranks = 1
        for size in re.findall(r"= (\d+)", mesh):
            num_ranks *= int(size)
        many, one = torchrun(folder, num_ranks, "case.plan"), planc(folder, "one.plan", module="planc.run")
        losses = [[float(loss) for loss in _LOSS.findall(answer.out)] for answer in (many, one)]
        if many.code or len(losses[0]) != 2:
            return f"{num_ranks} ranks end with {many.code}: {many.text[-900:]}"
        worst = max(abs(a - b) for a, b in zip(*losses, strict=True))
        return None if worst <= 2e-4 else f"losses {losses[0]}, of one process {losses[1]}"

    return problem


CASES = (
    Case(
        "a pipeline with units on the MLPs alone",
        _equal("llama", "pp = 2, dp_shard = 2", _UNITS_ON_MLPS),
    ),
    Case(
        "a pipeline with a layer in no unit",
        _equal("llama", "pp = 2, dp_shard = 2", _A_LAYER_LEFT_OUT),
    ),
    Case(
        "GPT-2 in a pipeline with sequence parallelism",
        _equal("gpt2", "pp = 2, tp = 2", _SEQUENCE_PARALLEL),
    ),
    Case("a tied head bias over tp", _equal("bert", "tp = 2", _AUTO)),
)
