"""GPU.md: what was measured on a GPU, and what was not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.gpu.branches import CLAIMS
from tests.gpu.outcome import Result, Verdict
from tests.gpu.site import Site
from tests.gpu.steps import STEPS, Step

FOLDER = Path(__file__).parent
PAGE, RESULTS = FOLDER / "GPU.md", FOLDER / "results"
_INTRODUCTION = """\
# The first hour on a GPU

`make gpu` runs planc's own commands on the CUDA devices of a machine, one step after the other, and writes
this page. A step takes at most nine minutes. Each result is stored in `results/` as soon as its step ends, so
a session that was cut off resumes at the first step without a result for this code, PyTorch and devices.

```
make gpu                                                 # needs a PyTorch for CUDA; installs none
make gpu GPU_ARGS="--only train memory --again"          # these steps, also those with results
make gpu GPU_ARGS="--allow-release torch==2.11.0"        # with a PyTorch below planc's floor
```

`PYTHON` names a Python that has such a PyTorch (default: `python3`). All other packages are installed into
the folder `.gpu-packages` without dependencies (`pip install --no-deps --target`), so this PyTorch stays. CI
runs the logic of the steps on CPUs (`--device cpu`); those results are not evidence for a GPU, and never get
here."""
_NEVER = "**Never run.** planc has not been run on a GPU; every row below is a plan, not a result."


def page(results: Mapping[str, Result], steps: Sequence[Step] = STEPS) -> str:
    """The page's text, from results on CUDA devices only."""
    assert all(one.site.is_cuda for one in results.values()), "results on CPUs are not published"
    parts = [_INTRODUCTION, "## Results", _site_text(results) if results else _NEVER]
    parts.append(_table(("step", "shows", "outcome", "figures", "seconds"), _rows(results, steps)))
    parts.append("## Branches for CUDA")
    parts.append(
        "Every function of planc whose code names CUDA, and the step that runs it. A test fails if one is "
        "missing here. That a step runs a function is stated here by hand; no trace confirms it yet."
    )
    parts.append(_table(("function", "step"), [(f"`{one.where}`", one.step) for one in CLAIMS]))
    return "\n\n".join(parts) + "\n"


def _site_text(results: Mapping[str, Result]) -> str:
    sites = {result.site: result.date for result in results.values()}
    lines = [_one_site(site, date) for site, date in sites.items()]
    return "\n".join(lines)


def _one_site(site: Site, date: str) -> str:
    names = ", ".join(f"{site.names.count(name)} x {name}" for name in dict.fromkeys(site.names))
    memory = f"{site.memory_bytes / 2**30:.1f} GiB"
    text = f"- {date}: {names} ({memory}), PyTorch {site.torch}, CUDA {site.cuda}, NCCL {site.nccl}"
    allowed = f". **Unsupported, but allowed: {', '.join(site.allowed)}**" if site.allowed else ""
    return f"{text}, code `{site.code}`{allowed}"


def _rows(results: Mapping[str, Result], steps: Sequence[Step]) -> list[tuple[str, ...]]:
    rows = []
    for step in steps:
        found = results.get(step.name)
        devices = f" ({step.least_devices} devices)" if step.least_devices > 1 else ""
        if found is None:
            rows.append((f"{step.name}{devices}", step.shows, "not run", "", ""))
            continue
        verdict = found.outcome.verdict
        shown = verdict.value if verdict is Verdict.OK else f"**{verdict.value}**"
        cells = (shown, found.outcome.figures.replace("|", "\\|"), f"{found.seconds:.0f}")
        rows.append((f"{step.name}{devices}", step.shows, *cells))
    return rows


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
