"""A process that prepares text files, which may wait at its first report for a line of stdin.

`python -m tests.data.preparing BASE ROOT waits|goes-on`
"""

from __future__ import annotations

import sys
from pathlib import Path

from planc.data_sources.kinds import TextSource
from planc.runtime.data.prepared.prepare import Progress, prepare
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.spec import DataSpec

SPEC = DataSpec(TextSource(("*.txt",)), "bytes", 64, 1)


def main(base: str, root: str, how: str) -> None:
    def report(progress: Progress) -> None:
        print("tokens", progress.num_tokens, flush=True)
        if how == "waits":
            sys.stdin.readline()

    def say(text: str) -> None:
        print(text, flush=True)

    prepared = prepare(Path(root), want(SPEC, base=Path(base)), name="text", report=report, say=say)
    print("ready", prepared.folder, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
