"""How xdist hands files of tests to its workers, where a worker may die."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class FilesOnce(LoadFileScheduling):
    """As `--dist loadfile`, but the test that a worker died in fails, and the rest of its file goes on.

    xdist's own gives that test to the next worker, which dies of it too, until none is started again.
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """The test that the worker died in, if it was in one."""
        for tests in self.assigned_work[node].values():
            for name, is_done in tests.items():
                if not is_done:
                    tests[name] = True
                    super().remove_node(node)
                    return name
        return super().remove_node(node)
