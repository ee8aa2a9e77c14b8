"""Runs of one process, one after the other in this process: `python -m tests.diff.resumed_runs CASES`.

CASES is a JSON file: {name: {"plan", "run", "from", "arguments", "without_verdict"}}. `from` is a run folder
that is copied to `run` first. Prints {name: {"code", "said"}} as its last line. A process for each run would
import torch each time.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch.distributed as dist

from planc.cli.commands import run
from planc.cli.running import opening, session

STREAM = io.BytesIO()
SAID = io.TextIOWrapper(STREAM, encoding="utf-8", newline="")
"""One for all runs: a display takes the stream that was there when it was first imported."""


def outcome(case: dict[str, Any]) -> dict[str, Any]:
    """The exit code of a run, and all that it printed."""
    if case.get("from"):
        shutil.copytree(case["from"], case["run"])
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    arguments = parser.parse_args([case["plan"], "--run-dir", case["run"], *case["arguments"]])
    SAID.flush()
    start = STREAM.tell()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(SAID))
        stack.enter_context(contextlib.redirect_stderr(SAID))
        if case.get("without_verdict"):
            # What the backend itself finds, when nothing has refused before it.
            stack.enter_context(patch.object(session, "changes_since_saved", lambda *_, **__: ()))
            stack.enter_context(patch.object(opening, "refuse_old_checkpoints", lambda *_: None))
        code = run._run(arguments)
    if dist.is_initialized():
        # A failed run leaves its group to the end of its process.
        dist.destroy_process_group()
    SAID.flush()
    return {"code": int(code), "said": STREAM.getvalue()[start:].decode()}


def main() -> None:
    cases = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(json.dumps({name: outcome(case) for name, case in cases.items()}), flush=True)


if __name__ == "__main__":
    main()
    run.leave(0)
