"""Text leaves planc through its two guarded streams, and through no other way."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.files import FILES, tree, walk

RAW = {
    "planc/cli/commands/fmt.py": "a plan's own text, which goes back to where it came from",
    "planc/cli/support/streams.py": "the interpreter's own stacks of a crash",
    "planc/cli/commands/lsp.py": "messages to an editor, in JSON",
    "planc/runtime/data/encoding/worker.py": "messages to the process that started it",
    "planc/runtime/own_process.py": "the answer to the process that started it",
    "planc/cli/main.py": "streams that a process was started without",
    "planc/verify/pool.py": "output that is discarded",
}
"""Who may use what lies below the streams, and for what."""
CHILDREN = (
    "planc/doctor/torch_probe.py",
    "planc/runtime/checkpoint_format/unpickle_dcp.py",
)
"""Programs whose output the process that started them reads."""
ENTRIES = ("planc/cli/main.py", "planc/cli/commands/run.py", "planc/cli/rendezvous.py")


_LAST_NAMES = ("__stdout__", "__stderr__", "buffer", "write", "dup", "dup2", "fileno")


def raw_uses(path: str) -> Iterator[str]:
    """What a file uses that would pass the guard: a stream's bytes, its original, or its descriptor."""
    for node in walk(tree(path)):
        last = node.func if isinstance(node, ast.Call) else node
        text = ast.unparse(node) if isinstance(last, ast.Attribute) and last.attr in _LAST_NAMES else ""
        if text in ("sys.__stdout__", "sys.__stderr__", "sys.stdout.buffer", "sys.stderr.buffer"):
            yield text
        if text.startswith(("os.write(1,", "os.write(2,", "os.dup(1", "os.dup(sys.", "os.dup2(")):
            yield text
        if isinstance(node, ast.Call) and text.endswith((".stdout.fileno()", ".stderr.fileno()")):
            yield text


def test_nobody_writes_past_the_guard_but_those_who_need_to() -> None:
    assert {path for path in FILES if list(raw_uses(path))} == set(RAW)


@pytest.mark.parametrize("path", ENTRIES)
def test_every_entry_guards_its_streams(path: str) -> None:
    calls = [ast.unparse(node) for node in walk(tree(path)) if isinstance(node, ast.Call)]
    assert any(call.startswith("guard(stream") for call in calls)


def _is_entry(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'"


def test_there_is_no_other_entry() -> None:
    """A file that runs as a program is one of these, or starts one of them, or talks to its parent."""
    found = {path for path in FILES if any(map(_is_entry, tree(path).body))}
    starters = {"planc/__main__.py", "planc/run.py", "planc/rendezvous.py", "planc/cli/manual.py"}
    assert found - set(RAW) == {*starters, *CHILDREN}


def test_what_a_guard_would_miss_is_found() -> None:
    assert list(raw_uses("planc/cli/commands/fmt.py"))
