"""Results of the functions of `planc`: values with the figures that people ask for, and a readable repr."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from planc.diagnostics import Diagnostic, Severity
from planc.runtime.errors import ExitCode
from planc.runtime.run_directory.directory import RunDirectory
from planc.runtime.run_directory.metrics_file import sound_lines
from planc.strict_json import loads
from planc.tables import plural

if TYPE_CHECKING:
    # A program that only reads a run's results needs no front end.
    from planc.api import Checked
    from planc.cli.running.compiled import Compiled
    from planc.graph.graph import Graph

_WIDTH = 100
_HASH_LENGTH = 12


@dataclass(frozen=True, slots=True, repr=False)
class CheckResult:
    """The findings of `planc check` in a plan. It is true if the plan has no error."""

    path: Path
    checked: Checked
    """Everything that follows from the plan. Its parts are internal, and may change with any release."""

    @property
    def ok(self) -> bool:
        """Whether the plan has no error; warnings don't count."""
        return self.checked.ok

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """All findings, in the order of the text. `diagnostic.code.code` is the code, such as `P402`."""
        return self.checked.diagnostics

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(each for each in self.diagnostics if each.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        return tuple(each for each in self.diagnostics if each.severity is Severity.WARNING)

    @property
    def codes(self) -> tuple[str, ...]:
        """The code of each finding."""
        return tuple(each.code.code for each in self.diagnostics)

    @property
    def text(self) -> str:
        """The findings as `planc check` prints them; empty for a plan without any."""
        # Most plans have no finding to render.
        from planc.diagnostics.human import HumanRenderer

        if not self.diagnostics:
            return ""
        return HumanRenderer(self.checked.sources, width=_WIDTH).render(self.diagnostics)

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        graph = self.checked.graph
        outcome = "OK" if self.ok else plural(len(self.errors), "error")
        warned = f", {plural(len(self.warnings), 'warning')}" if self.warnings else ""
        what = f"  ({_described(graph)})" if graph is not None else ""
        text = f"\n\n{self.text.rstrip()}" if self.diagnostics else ""
        return f"{self.path}: {outcome}{warned}{what}{text}"


@dataclass(frozen=True, slots=True, repr=False)
class CompiledPlan:
    """A plan with everything decided, as `planc compile` writes it. Pass it to `planc.run`."""

    compiled: Compiled
    """Internal, and may change with any release."""
    diagnostics: tuple[Diagnostic, ...] = ()
    """The warnings and notes of the plan; none if it was read from a compiled file."""

    @property
    def name(self) -> str:
        return self.compiled.graph.name

    @property
    def plan_hash(self) -> str:
        """The hash of everything that the plan computes, 64 hexadecimal digits."""
        # Only who asks pays for hashing the graph.
        from planc.graph.graph import plan_hash

        return plan_hash(self.compiled.graph)

    @property
    def mesh(self) -> Mapping[str, int]:
        """The size of each mesh dim, such as `{"dp_shard": 2, "tp": 2}`; dims of one rank are left out."""
        return {dim.value: size for dim, size in self.compiled.graph.mesh if size > 1}

    @property
    def world_size(self) -> int:
        return self.compiled.graph.world_size

    @property
    def num_steps(self) -> int:
        return self.compiled.graph.num_steps

    def save(self, path: str | Path) -> Path:
        """Write the compiled plan, which `planc run` and `planc.run` take in place of the plan."""
        # Most programs run what they compile.
        from planc.inventory.files import write_atomically

        file = Path(path)
        write_atomically(file, text=self.compiled.artifact(file.parent))
        return file

    def __repr__(self) -> str:
        return f"{self.name}: {_described(self.compiled.graph)}, plan_hash {self.plan_hash[:_HASH_LENGTH]}"


State = Literal["done", "stopped", "preempted", "failed", "running"]


@dataclass(frozen=True, slots=True, repr=False)
class RunResult:
    """The end of a run, and the place of its files.

    `state` is `done`, also if an evaluation ended the run early; `stopped` before the last step on
    request; or `preempted` by a signal, after saving.
    """

    state: State
    code: ExitCode
    """The exit code that `planc run` would have: end a script with `sys.exit(result.code)`."""
    last_step: int
    num_steps: int
    directory: Path
    checkpoint: Path | None = None
    """The newest checkpoint that this run saved; None on ranks other than 0."""

    @property
    def metrics(self) -> Sequence[Mapping[str, Any]]:
        """The lines of metrics.jsonl, one for each logged step."""
        return [loads(line.text) for line in sound_lines(self.directory / "metrics.jsonl")]

    @property
    def losses(self) -> Sequence[tuple[int, float]]:
        """(step, loss) of each logged step that had labels."""
        return RunDirectory(self.directory).losses()

    def __repr__(self) -> str:
        lines = [f"{self.state} after step {self.last_step} of {self.num_steps}"]
        if losses := self.losses:
            (first, first_loss), (last, last_loss) = losses[0], losses[-1]
            lines.append(f"  loss       {first_loss:.4f} (step {first}) -> {last_loss:.4f} (step {last})")
        lines.append(f"  directory  {self.directory}")
        if self.checkpoint is not None:
            lines.append(f"  checkpoint {self.checkpoint}")
        return "\n".join(lines)


def _described(graph: Graph) -> str:
    mesh = " ".join(f"{dim.value}={size}" for dim, size in graph.mesh if size > 1)
    ranks = plural(graph.world_size, "rank")
    return f"{plural(graph.num_steps, 'step')}, {ranks}{f': {mesh}' if mesh else ''}"
