"""What was measured on a GPU, and what was not: GPU.md, and what the README and the documentation say of it.

`python -m tests.gpu.page` writes all three from the results in `results/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.branches import CLAIMS
from tests.gpu.outcome import Result, Verdict, read_results
from tests.gpu.site import ROOT, Site
from tests.gpu.steps import STEPS, Step


@dataclass(frozen=True, slots=True)
class Pages:
    """Files that say what has run on a GPU."""

    gpu: Path
    readme: Path
    status: Path


FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
PAGES = Pages(FOLDER / "GPU.md", ROOT / "README.md", ROOT / "docs" / "start" / "status.md")
_INTRODUCTION = """\
# A session on a GPU

`make gpu` runs planc's own commands on the CUDA devices of a machine, and writes this page. Steps run side
by side as memory and cores allow; then the timings, each alone. Each result is stored in `results/` as soon
as its step ends, so a session that was cut off resumes at the first step without a result for this code,
PyTorch and devices.

```
make gpu                                                 # needs a PyTorch for CUDA; installs none
make gpu GPU_ARGS="--minutes 12"                         # the steps worth most that fit; names the others
make gpu GPU_ARGS="--only train memory --again"          # these steps, also those with results
make gpu GPU_ARGS="--minutes 12 --first speed-eager"     # these steps before the others
make gpu GPU_WHEELS=wheels                               # installs the wheels in a folder: needs no network
make gpu GPU_ARGS="--allow-release torch==2.10.0"        # with a PyTorch below planc's floor
```

`PYTHON` names a Python that has such a PyTorch (default: `python3`). All other packages are installed into
the folder `.gpu-packages` without dependencies (`pip install --no-deps --target`), so this PyTorch stays.
With fewer devices than ranks, every rank plays a node of its own on the first device, and NCCL talks through
sockets. CI runs the steps' commands on CPUs (`--device cpu`); those results are not evidence for a GPU, and
never get here."""
_NEVER = "**Never run.** Every row below is a plan, not a result."
_README_STATUS = re.compile(r"^> .*?\*\*Never run: .*?\*\*", re.MULTILINE)
_STATUS = re.compile(r"^- \*\*CUDA and NCCL\.\*\*.*?(?=^- )", re.MULTILINE | re.DOTALL)


def publish(results: Mapping[str, Result], pages: Pages) -> None:
    """Write what has run into all pages."""
    pages.gpu.write_text(page(results), encoding="utf-8")
    for path, pattern, text in (
        (pages.readme, _README_STATUS, f"> {readme_status(results)}"),
        (pages.status, _STATUS, f"- **CUDA and NCCL.** {status(results)}\n"),
    ):
        old = path.read_text(encoding="utf-8")
        assert len(pattern.findall(old)) == 1, f"{path} says once what has run on CUDA"
        path.write_text(pattern.sub(lambda _, text=text: text, old), encoding="utf-8")


def readme_status(results: Mapping[str, Result]) -> str:
    """A sentence for the status box: what is claimed of GPUs is what has a result."""
    counted = _counted(results)
    if not counted:
        return "**Never run: CUDA, NCCL, several machines.**"
    several = "" if any(one.site.num_devices > 1 for one in counted) else "several devices, "
    return f"On {_devices(counted)}: {_score(counted)}. **Never run: {several}several machines.**"


def status(results: Mapping[str, Result]) -> str:
    """The same for the documentation, with the steps that are not as promised."""
    counted = _counted(results)
    if not counted:
        return (
            "The code paths are written and have never run on a GPU. Neither speed nor memory was measured\n"
            "  there. `make gpu` does both, and writes `tests/gpu/GPU.md`; its steps have run on CPUs only."
        )
    bad = [one.step for one in counted if one.outcome.verdict is not Verdict.OK]
    # The documentation's site has no page of GPU.md.
    score = _score(counted).replace("[`make gpu`](tests/gpu/GPU.md)", "`make gpu`")
    text = f"On {_devices(counted)}: {score}.\n  `tests/gpu/GPU.md` has each step's figures."
    return f"{text}\n  Not as promised: {', '.join(bad)}." if bad else text


def _counted(results: Mapping[str, Result]) -> list[Result]:
    """The results of steps that ran, in the steps' order."""
    found = (results[step.name] for step in STEPS if step.name in results)
    return [one for one in found if one.outcome.verdict is not Verdict.SKIPPED]


def _devices(results: Sequence[Result]) -> str:
    dates = sorted({one.date for one in results})
    names = ", ".join(dict.fromkeys(_device(one.site) for one in results))
    return f"{names} ({dates[0]}{f' to {dates[-1]}' if len(dates) > 1 else ''})"


def _score(results: Sequence[Result]) -> str:
    meshes = [one for one in results if one.step.startswith("nccl-")]
    text = f"{_good(results)} of {len(results)} steps of [`make gpu`](tests/gpu/GPU.md) as promised"
    return f"{text}, {_good(meshes)} of {len(meshes)} over NCCL" if meshes else text


def _good(results: Iterable[Result]) -> int:
    return sum(one.outcome.verdict is Verdict.OK for one in results)


def page(results: Mapping[str, Result], steps: Sequence[Step] = STEPS) -> str:
    """The text of GPU.md, from results on CUDA devices only."""
    assert all(one.site.is_cuda for one in results.values()), "results on CPUs are not published"
    parts = [_INTRODUCTION, "## Results", _site_text(results) if results else _NEVER]
    parts.append(_table(_HEAD, _rows(results, steps)))
    parts.append("## Branches for CUDA")
    parts.append(
        "Every function of planc whose code names CUDA, and the step that runs it. A test fails if one is "
        "missing here. That a step runs a function is stated here by hand; no trace confirms it yet."
    )
    parts.append(_table(("function", "step"), [(f"`{one.where}`", one.step) for one in CLAIMS]))
    return "\n\n".join(parts) + "\n"


_HEAD = ("step", "shows", "outcome", "figures", "seconds", "date", "device", "PyTorch", "commit")


def _site_text(results: Mapping[str, Result]) -> str:
    return "\n".join(dict.fromkeys(_one_site(result.site) for result in results.values()))


def _one_site(site: Site) -> str:
    memory = f"{site.memory_bytes / 2**30:.1f} GiB"
    text = f"- {_device(site)} ({memory}), PyTorch {site.torch}, CUDA {site.cuda}, NCCL {site.nccl}"
    allowed = f". **Unsupported, but allowed: {', '.join(site.allowed)}**" if site.allowed else ""
    return f"{text}, code `{site.code}`{allowed}"


def _device(site: Site) -> str:
    return ", ".join(f"{site.names.count(name)} x {name}" for name in dict.fromkeys(site.names))


def _rows(results: Mapping[str, Result], steps: Sequence[Step]) -> list[tuple[str, ...]]:
    rows = []
    for step in steps:
        found = results.get(step.name)
        devices = f" ({step.least_devices} devices)" if step.least_devices > 1 else ""
        if found is None:
            rows.append((f"{step.name}{devices}", step.shows, "not run", *[""] * 6))
            continue
        verdict, site = found.outcome.verdict, found.site
        shown = verdict.value if verdict is Verdict.OK else f"**{verdict.value}**"
        cells = (shown, found.outcome.figures.replace("|", "\\|"), f"{found.seconds:.0f}", found.date)
        where = (_device(site), site.torch, f"`{site.commit}`" if site.commit else "unknown")
        rows.append((f"{step.name}{devices}", step.shows, *cells, *where))
    return rows


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    publish(read_results(RESULTS), PAGES)
