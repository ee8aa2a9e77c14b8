"""Push an export once it is written: on rank 0, while the other ranks end."""

from __future__ import annotations

from planc.graph.ops import PushExport
from planc.runtime.push import PushError, push_apart
from planc.runtime.torch.run import Run
from planc.runtime.torch.weights.export import Export


def push_export(run: Run, op: PushExport, export: Export | None) -> None:
    """Push a complete export. A failure is reported, with the command that pushes later, and ends nothing."""
    if run.launch.rank != 0 or export is None or run.notice.is_agreed:
        return
    # The other ranks may have ended; a signal has nothing left to save, and stops the push.
    run.notice.is_over = True
    folder = run.paths.run / "export" / op.export

    def push() -> str:
        try:
            return push_apart(folder, op, stops=lambda: bool(run.notice.signal_name))
        except PushError as error:
            later = f"planc checkpoint push {run.paths.run}"
            raise PushError(f"{error}; `{later}` pushes it later") from error

    what = f"push {folder} to {op.target}"
    address = run.effort.attempt(what, push, errors=(PushError,), is_once=True)
    if address is not None:
        run.observer.noted(f"pushed {folder} to {op.target}: {address}")
