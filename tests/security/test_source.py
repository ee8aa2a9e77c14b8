"""What no file of planc's may contain: ways to run what a file says."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.files import FILES, tree, walk

UNPICKLERS = {"marshal", "pickle", "shelve", "dill", "cloudpickle", "yaml", "joblib"}
MAY_UNPICKLE = {
    "planc/runtime/checkpoint_format/unpickle_dcp.py": "the confined process of `checkpoint convert`",
    "planc/runtime/torch/checkpoint/dcp_files.py": "names the error of weights_only loads",
    "planc/import_configs/leaves.py": "composes nodes, of which it constructs no object",
    "planc/verify/pool.py": "between `verify` and the ranks that it has forked",
}
MAY_EXECUTE = {
    "planc/record.py": "makes the methods of records from their own fields",
    "planc/runtime/extensions.py": "a plan's own code, in a run or with its user's leave",
}
OBJECT_COLLECTIVES = ("broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list")


def modules(module: ast.AST) -> Iterator[str]:
    for node in walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def calls(module: ast.AST) -> Iterator[tuple[str, dict[str, str]]]:
    """Every call as it is written, with its keywords."""
    for node in walk(module):
        if isinstance(node, ast.Call):
            keywords = {one.arg: ast.unparse(one.value) for one in node.keywords if one.arg}
            yield ast.unparse(node.func), keywords


def offences(path: str, module: ast.AST) -> Iterator[str]:
    """The ways of a file to run what another says."""
    if path not in MAY_UNPICKLE:
        yield from sorted(UNPICKLERS & set(modules(module)))
    for name, keywords in calls(module):
        if name in ("eval", "exec", "compile", "__import__") and path not in MAY_EXECUTE:
            yield name
        if name in ("os.system", "os.popen") or name.rpartition(".")[2] in OBJECT_COLLECTIVES:
            yield name
        if name == "torch.load" and keywords.get("weights_only") != "True":
            yield f"{name} without weights_only"
        for keyword in ("trust_remote_code", "shell"):
            if keywords.get(keyword, "False") != "False":
                yield f"{name}({keyword}={keywords[keyword]})"


def test_a_file_runs_nothing_that_a_file_says() -> None:
    assert [f"{path}: {one}" for path in FILES for one in offences(path, tree(path))] == []


@pytest.mark.parametrize(
    "line",
    [
        *("import pickle", "from yaml import load", "import dill.settings"),
        *("eval(text)", "exec(text)", "compile(text, '', 'exec')", "__import__(name)"),
        *("torch.load(path)", "torch.load(path, weights_only=False)", "torch.load(path, weights_only=flag)"),
        *(
            "load(name, trust_remote_code=True)",
            "load(name, trust_remote_code=trusts)",
            "run(text, shell=True)",
        ),
        *("os.system(text)", "os.popen(text)", "dist.broadcast_object_list(them)", "gather_object(it)"),
    ],
)
def test_each_way_to_run_what_a_file_says_is_found(line: str) -> None:
    assert [*offences("planc/any.py", ast.parse(line))]


def test_the_exceptions_are_still_needed() -> None:
    for path in MAY_UNPICKLE:
        assert UNPICKLERS & set(modules(tree(path))), path
    for path in MAY_EXECUTE:
        names = {name for name, _ in calls(tree(path))}
        assert "exec" in names, path
