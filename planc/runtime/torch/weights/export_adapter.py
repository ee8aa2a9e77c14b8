"""Export adapters for peft: a small file of their weights, and what peft needs to know of them."""

from __future__ import annotations

from typing import Any

import planc
from planc.graph.ops import AttachAdapters, ExportAdapter
from planc.hub.names import is_hub, parse_hub
from planc.runtime.interpreter import Position
from planc.runtime.run_directory import export_folder
from planc.runtime.torch.agreement.agree import rank
from planc.runtime.torch.checkpoint.agreement import from_coordinator
from planc.runtime.torch.checkpoint.errors import run_errors
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Weights
from planc.runtime.torch.weights.export import Export, Gathering, exported_tensors, without_gather_warnings
from planc.runtime.torch.weights.export_format import as_bytes, entries_of
from planc.runtime.torch.weights.peft_format import peft_views
from planc.vocab import parent_of


def export_adapter(
    run: Run, op: ExportAdapter, at: Position, weights: Weights, pipeline: Pipeline | None
) -> Export:
    """Write `export/adapter` into the run directory, replacing an earlier export of the run."""
    adapters = run.graph.adapters
    assert adapters is not None, "a check refuses an export of adapters that a plan doesn't have"
    names = (*adapters.parameters, *adapters.apart)
    gathering = Gathering(run, exported_tensors(weights.model, names, pipeline), pipeline)
    views = peft_views(adapters, gathering.views)
    entries = entries_of(views, dtype_of=gathering.dtype)
    content = []
    with without_gather_warnings():
        for view in views.values():
            gathering.gather(view)
            if rank() == 0:
                content.append(bytes(as_bytes(gathering.values(view))))
    folder = run.paths.run / "export" / "adapter"
    origin = {"planc": planc.__version__, "plan_hash": run.plan_hash, "step": at.step}

    def write() -> str:
        temporary = export_folder.begin(folder, effort=run.effort)
        path = temporary / export_folder.ADAPTER_WEIGHTS
        export_folder.write_file(path, entries, data=map(memoryview, content))
        config = adapter_config(adapters, base=op.path, architecture=run.model_op.architecture)
        return export_folder.finish_adapter(
            temporary, folder, config=config, origin=origin, effort=run.effort
        )

    with run_errors():
        replaced = from_coordinator(write)
    run.observer.noted(f"exported {folder}{replaced}")
    return Export(folder)


_TASKS = {
    "ForCausalLM": "CAUSAL_LM",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "MTModel": "SEQ_2_SEQ_LM",
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
}
"""peft's names of tasks, by the end of a model's class. It has none for masked language models."""


def adapter_config(op: AttachAdapters, *, base: str, architecture: str) -> dict[str, Any]:
    """peft's adapter_config.json. Its module names are whole: a shorter one could match other layers too."""
    hub = parse_hub(base) if is_hub(base) else None
    return {
        "peft_type": "LORA",
        "task_type": next((task for end, task in _TASKS.items() if architecture.endswith(end)), None),
        "modules_to_save": list(dict.fromkeys(map(parent_of, op.apart))) or None,
        "base_model_name_or_path": hub.repository if hub else base,
        "revision": hub.revision if hub else None,
        "target_modules": list(op.layers),
        "target_parameters": list(op.stacked) or None,
        "r": op.rank,
        "lora_alpha": int(op.alpha) if op.alpha == int(op.alpha) else op.alpha,
        "lora_dropout": op.dropout,
        "use_rslora": op.rslora,
        "use_dora": op.dora,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }
