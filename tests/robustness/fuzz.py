"""A time-boxed search for plans that make planc raise, hang, or point outside the text.

`python -m tests.robustness.fuzz --minutes 30` uses atheris, guided by coverage, where it is installed,
else mutations of its own, guided by the findings they bring about. What it finds is written into
`--out` as a plan that shows it, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from planc.api import check_source
from planc.diagnostics import Diagnostic
from planc.diagnostics.human import HumanRenderer
from planc.diagnostics.machine import render_concise, render_json
from planc.fmt.format import format_source
from planc.source import SourceFile, Span
from tests.patience import PATIENCE_SECONDS
from tests.plans import FULL, PLANS, TINY
from tests.syntax.operators import OPERATORS, Row, Site

MAX_POOL = 3000
ROOT = Path(__file__).parents[2]
ALL_BLOCKS = f"""\
import "presets/llama.plan" as ll
{FULL}
hardware {{
  gpu = device(memory = 80 GiB, peak_flops = 989e12)
}}
""".replace(
    "keep_last = 2", 'keep_last = 2\n  export "hf" {\n    when = end\n    dtype = bfloat16\n  }'
).replace('  "lm_head" -> colwise', '  use ll.sequence_parallel\n  override "lm_head" -> colwise', 1)
"""What FULL has, and blocks in blocks, hardware, another file's rules."""
TOKEN = re.compile(r'"[^"\n]*"|#[^\n]*|[A-Za-z_]\w*|-?\d[\w.+]*|->|[=!<>]=|\.\.|[ \t]+|\s|.')
STRANGE = (
    *("1e999", "-1", "0", "9223372036854775808", "9" * 40, "2.0", "60 GiB", "3 steps", "nan", "none", "true"),
    *('"**"', '"{a,b}"', '"{"', '"{0..999999}"', '"*a*a*b"', '""', '"ä"', '"', "'", "//", "/*", "*/", ";"),
    *("(", ")", "[", "]", "{", "}", ",", "=", "->", "==", "..", "#", "\n", "\r", "\t", "\0", "\ufeff", "٣"),
    *(
        'extends "x.plan"\n',
        'import "y.plan" as y\n',
        "use y.a\n",
        "override ",
        "auto\n",
        "param p: int = 1\n",
    ),
    *(
        'export "hf" { when = end, dtype = bfloat16 }\n',
        "hardware { gpu = h100 }\n",
        "hardware {",
        'export "hf" {',
    ),
    *("device(memory = 80 GiB)", "checkpoint {\n", "override tp = 2\n", "ll.sequence_parallel", "[rule]"),
    *('extends "quickstart.plan"\n', 'import "presets/llama.plan" as ll\n', "use ll.sequence_parallel\n"),
    *("# planc: ignore[P802] x\n", "Shard(9)", "Replicate()", "f(", "on tp", "$", "\ud800", "\u202e"),
)


def seeds() -> tuple[str, ...]:
    """Plans that ship, plans of tests, and the examples of all pages."""
    plans = [*sorted(PLANS.rglob("*.plan")), *sorted((ROOT / "tests").rglob("*.plan"))]
    pages = sorted((ROOT / "planc" / "diagnostics" / "explain").glob("*.md"))
    examples = [
        example
        for page in pages
        for example in re.findall(r"```plan \S+\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    ]
    return (FULL, TINY, ALL_BLOCKS, *(path.read_text(encoding="utf-8") for path in plans), *examples)


def examine(text: str) -> tuple[str, ...]:
    """The codes of the findings on a text, after everything that must hold for any text was asserted."""
    started = time.process_time()
    source = SourceFile("x.plan", text)

    def load(path: str, span: Span) -> tuple[SourceFile | None, tuple[Diagnostic, ...]]:
        shipped = PLANS / path
        if path.endswith(".plan") and shipped.is_file():
            return SourceFile(path, shipped.read_text(encoding="utf-8")), ()
        return SourceFile(path, text[::-1] if path.startswith("z") else text), ()

    checked = check_source(source, base=PLANS, load=load)
    assert checked.ok == (checked.graph is not None), "a graph exactly where there is no error"
    for diagnostic in checked.diagnostics:
        for label in (diagnostic.primary, *diagnostic.secondary):
            lines = checked.sources[label.span.file].lines
            assert 1 <= label.span.line <= label.span.end_line <= len(lines), label
            assert 1 <= label.span.column <= len(lines[label.span.line - 1]) + 1, label
    shown = HumanRenderer(checked.sources).render(checked.diagnostics)
    shown += render_concise(checked.diagnostics)
    assert shown.replace("\n", "").isprintable(), "what is shown cannot steer a terminal"
    render_json(checked.diagnostics)
    format_source(source)
    seconds = time.process_time() - started
    assert seconds < PATIENCE_SECONDS, f"{seconds:.1f} s"
    return tuple(sorted({diagnostic.code.code for diagnostic in checked.diagnostics}))


def mutated(text: str, *, pool: Sequence[str], random: Random) -> str:
    """A text after one to six random changes."""
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        text = random.choice(MUTATIONS)(text, pool, random)
    return text[:100_000]


def _slip(text: str, pool: Sequence[str], random: Random) -> str:
    rows = [Row(line) for line in text.split("\n")]
    random.choice(tuple(OPERATORS.values()))(Site(rows, random.choice(rows), random))
    return "\n".join(row.text for row in rows)


def _characters(text: str, pool: Sequence[str], random: Random) -> str:
    at = random.randint(0, len(text))
    end = min(len(text), at + random.choice((0, 1, 1, 2, 20)))
    return text[:at] + random.choice(("", chr(random.randint(1, 127)), random.choice(STRANGE))) + text[end:]


def _tokens(text: str, pool: Sequence[str], random: Random) -> str:
    tokens = TOKEN.findall(text) or [""]
    other = TOKEN.findall(random.choice(pool)) or [""]
    at = random.randrange(len(tokens))
    tokens[at] = random.choice(("", tokens[at] * 2, random.choice(STRANGE), random.choice(other)))
    return "".join(tokens)


def _lines(text: str, pool: Sequence[str], random: Random) -> str:
    lines, other = text.split("\n"), random.choice(pool).split("\n")
    at, start = random.randrange(len(lines)), random.randrange(len(other))
    chosen = other[start : start + random.choice((1, 1, 3, 10))]
    match random.randrange(4):
        case 0:
            return "\n".join((*lines[:at], *lines[at + random.choice((1, 3)) :]))
        case 1:
            return "\n".join((*lines[:at], *chosen, *lines[at:]))
        case 2:
            return "\n".join((*lines[:at], *lines[at : at + 3] * random.choice((2, 2, 50)), *lines[at:]))
        case _:
            return "\n".join((*lines[:at], lines[at].strip().rjust(random.randint(0, 30)), *lines[at + 1 :]))


MUTATIONS: tuple[Callable[[str, Sequence[str], Random], str], ...] = (_slip, _characters, _tokens, _lines)


def report(text: str, error: BaseException, *, out: Path) -> None:
    """Writes the plan that shows an error, and prints where it is."""
    out.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    path = out / f"{digest}.plan"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    print(f"{path}: {type(error).__name__}: {error}", file=sys.stderr)
    traceback.print_exception(error, limit=-6)


def search(*, minutes: float, seed: int, out: Path) -> int:
    """Mutates until the time is up; how many different errors were found."""
    random = Random(seed)
    pool = list(seeds())
    seen: set[tuple[str, ...]] = set()
    errors: set[str] = set()
    started, num_runs = time.monotonic(), 0
    while time.monotonic() - started < 60 * minutes:
        text = mutated(random.choice(pool), pool=pool, random=random)
        num_runs += 1
        try:
            codes = examine(text)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            if (key := f"{type(error).__name__} {place.filename}:{place.lineno}") not in errors:
                errors.add(key)
                report(text, error, out=out)
            continue
        if codes not in seen and len(pool) < MAX_POOL:
            seen.add(codes)
            pool.append(text)
    print(
        f"{num_runs} plans in {(time.monotonic() - started) / 60:.1f} min, "
        f"{len(seen)} sets of findings, {len(errors)} errors (seed {seed})"
    )
    return len(errors)


def search_by_coverage(*, minutes: float, out: Path) -> None:
    """Hands the search to atheris, which ends the process: 0 when nothing was found."""
    atheris: Any = importlib.import_module("atheris")
    corpus = out / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(seeds()):
        (corpus / f"seed-{number}.plan").write_text(text, encoding="utf-8")

    def one(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        try:
            examine(text)
        except Exception as error:
            report(text, error, out=out)
            raise

    atheris.instrument_all()
    atheris.Setup([sys.argv[0], f"-max_total_time={int(60 * minutes)}", "-max_len=20000", str(corpus)], one)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("FUZZ_MINUTES", "30")))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"))
    parser.add_argument("--own", action="store_true", help="do without atheris")
    arguments = parser.parse_args()
    if importlib.util.find_spec("atheris") and not arguments.own:
        search_by_coverage(minutes=arguments.minutes, out=arguments.out)
    return 1 if search(minutes=arguments.minutes, seed=arguments.seed, out=arguments.out) else 0


if __name__ == "__main__":
    sys.exit(main())
