"""Files that planc has written are read with `strict_json`, which refuses what would break a reader."""

from __future__ import annotations

import ast

from tests.architecture.files import FILES
from tests.architecture.test_portable import calls

OTHERS = {
    "planc/strict_json.py": "is that way",
    "planc/checks/data/tokenizer_file.py": "a tokenizer's own files",
    "planc/hub/model_config.py": "a model's config.json",
    "planc/hub/headers.py": "what safetensors saved",
    "planc/hub/peft_adapter.py": "what peft saved",
    "planc/runtime/data/json_rows.py": "a user's data",
    "planc/runtime/data/splits.py": "what `datasets` saved",
    "planc/runtime/data/encoding/frames.py": "what the process that tokenizes says, and is told",
    "planc/runtime/data/encoding/worker.py": "a user's data",
    "planc/runtime/data/tokenizer_folder.py": "a tokenizer's own files",
    "planc/inventory/files.py": "a model's config.json, with a hook of its own",
    "planc/runtime/model_files.py": "a model's own files",
    "planc/runtime/run_directory/export_folder.py": "a model's config.json, which an export copies",
    "planc/diff/machine.py": "what this process has rendered",
    "planc/doctor/examine.py": "what this process has rendered",
    "planc/doctor/machine.py": "what a child process prints",
    "planc/runtime/data/tokenizers.py": "the conversation that planc has made of a row",
    "planc/runtime/ranks/statements.py": "what other ranks say",
    "planc/runtime/torch/agreement/agree.py": "what other ranks say",
    "planc/runtime/torch/agreement/rank_0.py": "what rank 0 says",
    "planc/runtime/torch/checkpoint/agreement.py": "what other ranks say",
    "planc/runtime/torch/checkpoint/planning.py": "what other ranks say",
    "planc/runtime/torch/checkpoint/tensors.py": "what other ranks say",
    "planc/runtime/torch/parallel/mesh.py": "what other ranks say",
    "planc/verify/ranks.py": "what other ranks say",
}
"""Where the standard parser reads, and what."""


def test_the_standard_parser_reads_no_file_of_plancs() -> None:
    found = {
        place.partition(":")[0]
        for place, name, call in calls(FILES)
        if name in ("loads", "load") and isinstance(call.func, ast.Attribute)
        if ast.unparse(call.func.value) == "json"
    }
    assert found == set(OTHERS), "read it with planc.strict_json, or name here what it reads"
