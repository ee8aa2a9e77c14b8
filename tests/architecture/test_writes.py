"""What each file of the runtime writes is of a kind, and training state alone ends a run.

That those called attempts end no run is shown by `tests/faults/test_nfs.py`, where all of them fail at once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.files import FILES, tree, walk

STATE = "training state, and what makes room for it"
ATTEMPTS = "attempts: `BestEffort.attempt` is around them"
START = "before the run trains: an error refuses it"
PREPARED = "data that a run can't do without, or another command's own output"
LOW_LEVEL = "does what its callers ask for"

KINDS = {
    "planc/runtime/files/plain_files.py": LOW_LEVEL,
    "planc/runtime/run_directory/status_file.py": LOW_LEVEL,
    "planc/runtime/files/best_effort.py": ATTEMPTS,
    "planc/runtime/run_directory/directory.py": ATTEMPTS,
    "planc/runtime/files/run_files.py": ATTEMPTS,
    "planc/runtime/run_directory/export_folder.py": PREPARED,
    "planc/runtime/checkpoint_format/commit.py": STATE,
    "planc/runtime/checkpoint_format/part_files.py": STATE,
    "planc/runtime/ranks/whereabouts.py": ATTEMPTS,
    "planc/runtime/torch/reporting/profile.py": ATTEMPTS,
    "planc/runtime/torch/training/stored_reference.py": ATTEMPTS,
    "planc/runtime/torch/training/stored_teacher.py": PREPARED,
    "planc/runtime/torch/teaching.py": PREPARED,
    "planc/runtime/trackers/wandb.py": "a tracker's thread, whose errors stay there",
    "planc/runtime/torch/agreement/shared_folder.py": START,
    "planc/runtime/fetch.py": START,
    "planc/runtime/data/encoding/client.py": "removes what the process that tokenizes may have left",
    "planc/runtime/data/encoding/worker.py": "files of the process that tokenizes, which names what fails",
    "planc/runtime/data/prepared/folder.py": PREPARED,
    "planc/runtime/data/prepared/leftovers.py": PREPARED,
    "planc/runtime/data/prepared/parts.py": "what an interrupted preparation leaves: an error costs time",
    "planc/runtime/data/prepared/prepare.py": PREPARED,
    "planc/runtime/data/prepared/shards.py": PREPARED,
    "planc/runtime/torch/checkpoint/dcp_convert.py": PREPARED,
    "planc/runtime/torch/weights/export.py": PREPARED,
    "planc/cli/running/run_errors.py": "torchrun's own file, whose errors are left out",
}

_CHANGES = frozenset(
    ("mkdir", "rename", "unlink", "rmdir", "rmtree", "touch", "write_text", "write_bytes", "symlink_to")
) | frozenset(("makedirs", "removedirs", "hardlink_to", "copytree", "copy2", "copyfile", "move"))
_PLAIN_FILES = frozenset(
    ("append", "create", "create_to_write", "open_to_overwrite", "remove", "replace", "set_aside")
)
_MODULE = "planc.runtime.files.plain_files"


def changes(path: str) -> Iterator[int]:
    """The lines of a file on which it changes files."""
    module = tree(path)
    imported = {
        name.asname or name.name
        for node in walk(module)
        if isinstance(node, ast.ImportFrom) and node.module == _MODULE
        for name in node.names
    } & _PLAIN_FILES
    for node in walk(module):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Attribute):
            base = ast.unparse(function.value)
            is_path_replace = function.attr == "replace" and len(node.args) == 1 and not node.keywords
            of_plain_files = base == "plain_files" and function.attr in _PLAIN_FILES
            if function.attr in _CHANGES or is_path_replace or of_plain_files:
                yield node.lineno
        names = [*([function] if isinstance(function, ast.Name) else []), *node.args]
        if any(isinstance(one, ast.Name) and one.id in imported for one in names):
            yield node.lineno


def test_every_file_that_writes_says_of_which_kind_its_writes_are() -> None:
    places = ("planc/runtime/", "planc/cli/running/", "planc/cli/commands/run.py")
    found = {path for path in FILES if path.startswith(places) and any(changes(path))}
    assert found == set(KINDS), "name its kind here; what is not training state goes through BestEffort"


def test_a_write_is_recognized() -> None:
    """Else the list above could be short."""
    assert [*changes("planc/runtime/run_directory/status_file.py")]
    assert not [*changes("planc/runtime/numerics.py")]
