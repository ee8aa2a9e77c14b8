"""What no file of planc's may contain: ways to run what a file says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "planc").rglob("*.py"))
UNPICKLERS = {"marshal", "pickle", "shelve", "dill", "cloudpickle", "yaml", "joblib"}
MAY_UNPICKLE = {
    "planc/runtime/checkpoint_format/unpickle_dcp.py": "the confined process of `checkpoint convert`",
    "planc/runtime/torch/checkpoint/dcp_files.py": "names the error of weights_only loads",
    "planc/import_configs/yaml_leaves.py": "composes nodes, of which it constructs no object",
    "planc/verify/pool.py": "between `verify` and the ranks that it has forked",
}
MAY_EXECUTE = {"planc/record.py": "makes the methods of records from their own fields"}
OBJECT_COLLECTIVES = ("broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list")


def modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def calls(tree: ast.AST) -> Iterator[tuple[str, dict[str, str]]]:
    """Every call as it is written, with its keywords."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            keywords = {one.arg: ast.unparse(one.value) for one in node.keywords if one.arg}
            yield ast.unparse(node.func), keywords


@pytest.mark.parametrize("path", FILES)
def test_a_file_runs_nothing_that_a_file_says(path: str) -> None:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    if path not in MAY_UNPICKLE:
        assert not UNPICKLERS & set(modules(tree))
    for name, keywords in calls(tree):
        assert path in MAY_EXECUTE or name not in ("eval", "exec", "compile", "__import__"), name
        assert name != "torch.load" or keywords.get("weights_only") == "True"
        assert keywords.get("trust_remote_code", "False") == "False"
        assert keywords.get("shell", "False") == "False"
        assert name not in ("os.system", "os.popen")
        assert name.rpartition(".")[2] not in OBJECT_COLLECTIVES


def test_the_exceptions_are_still_needed() -> None:
    for path in MAY_UNPICKLE:
        assert UNPICKLERS & set(modules(ast.parse((ROOT / path).read_text(encoding="utf-8")))), path
    for path in MAY_EXECUTE:
        names = {name for name, _ in calls(ast.parse((ROOT / path).read_text(encoding="utf-8")))}
        assert "exec" in names, path
