"""Pages that planc's own definitions make: blocks, styles, ops, facts, commands, errors, schemas, variables.

None is committed: they are written whenever the site is built.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from planc.cli.main import command_parsers, main
from planc.cli.manual import reference
from planc.diagnostics.by_symptom import SYMPTOMS, symptom_page
from planc.diagnostics.pages import page, pages
from planc.import_configs.report import keys_page

ROOT = Path(__file__).parents[1]

_SECTIONS = {
    "syntax": "Syntax",
    "blocks": "Blocks",
    "units": "Units",
    "styles": "Styles",
    "ops": "Ops",
}
"""Pages of the reference by the section of `planc.cli.manual` that each is."""

_SCHEMAS = {
    "artifact": "the compiled plan that `planc compile` writes and a run executes",
    "diagnostics": "findings: `planc check --output-format json`",
    "diff": "differences: `planc diff --output-format json`",
    "doctor": "a machine: `planc doctor --output-format json`",
}

GENERATED = (
    *(f"reference/{name}.md" for name in _SECTIONS),
    *(
        "reference/facts.md",
        "reference/imports.md",
        "reference/symptoms.md",
        "reference/commands",
        "reference/schemas",
        "errors",
        "_generated",
    ),
)
"""What this module writes, under `docs/`; `.gitignore` lists it too."""


def write(docs: Path) -> None:
    """Writes every generated page under `docs`, and leaves a file whose text is right untouched."""
    for name, text in generated():
        path = docs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def generated() -> Iterator[tuple[str, str]]:
    """Every generated file: its path under `docs/` and its text."""
    sections = _sections(reference(), "##")
    blocks, facts = _without(sections["Blocks"], "expect")
    for name, title in _SECTIONS.items():
        body = blocks if name == "blocks" else sections[title]
        yield f"reference/{name}.md", _linked(f"# {title}\n{_promoted(body)}")
    yield "reference/facts.md", _linked(f"# Facts of `expect`\n{facts}")
    yield "reference/imports.md", keys_page()
    yield "reference/symptoms.md", _symptoms()
    yield from _commands(sections["Commands"])
    yield from _errors(sections["Diagnostics"])
    yield from _schemas()
    yield "_generated/variables.md", _variables()
    yield "_generated/map.md", _map()


def _sections(text: str, mark: str) -> dict[str, str]:
    """What stands under each heading of one level, by the heading."""
    parts = re.split(rf"^{mark} (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _without(text: str, heading: str) -> tuple[str, str]:
    """A section without one of its parts, and that part."""
    part = _sections(text, "###")[heading]
    return text.replace(f"### {heading}\n{part.lstrip(chr(10))}", "").replace(
        f"### {heading}{part}", ""
    ), part


def _promoted(text: str) -> str:
    return re.sub(r"^###", "##", text, flags=re.MULTILINE)


def _linked(text: str) -> str:
    """Links within the one page that `planc.cli.manual` prints, as links between pages."""
    return text.replace("(#styles)", "(styles.md)").replace("(#syntax)", "(syntax.md)")


def _commands(section: str) -> Iterator[tuple[str, str]]:
    parts = _sections(section, "###")
    names = [title.removeprefix("planc ") for title in parts]
    for title, body in parts.items():
        # The examples were run by a test; their file names are the reader's.
        text = re.sub(r"^```text\n(examples?:\n)", "```text\n", body, flags=re.MULTILINE)
        text = re.sub(r"^#### ", "## ", text, flags=re.MULTILINE)
        yield f"reference/commands/{title.removeprefix('planc ')}.md", f"# {title}\n{text}"
    summaries = {command.name: command.summary for command, _ in command_parsers()}
    rows = "\n".join(f"| [`planc {name}`]({name}.md) | {summaries[name]} |" for name in names)
    toc = "\n".join(names)
    head = section.partition("###")[0].strip()
    yield (
        "reference/commands/index.md",
        f"# Commands\n\n{head}\n\n| command | purpose |\n| --- | --- |\n{rows}\n\n"
        f"```{{toctree}}\n:hidden:\n\n{toc}\n```\n",
    )


def _errors(section: str) -> Iterator[tuple[str, str]]:
    for code in pages():
        # Syntax errors have no colors, and 178 entries in every page's sidebar would help nobody.
        text = str(page(code)).replace("```plan fails", "```text" if code < "P2" else "```plan")
        yield f"errors/{code}.md", f"---\norphan: true\n---\n\n{text}"
    table = re.sub(r"\[(P\d+)\]\([^)]*\)", r"[\1](\1.md)", section).strip()
    yield "errors/index.md", f"# Errors and warnings\n\n{table}\n"


def _symptoms() -> str:
    texts = "\n".join(f"#{symptom_page(name)}" for name in SYMPTOMS)
    return f"# Symptoms\n\nThe pages of `planc explain nan` and the like.\n\n{texts}"


def _schemas() -> Iterator[tuple[str, str]]:
    rows, names = [], []
    for name in _schema_names():
        title = _SCHEMAS.get(name, f"`planc schema {name}`")
        written = io.StringIO()
        with contextlib.redirect_stdout(written):
            main(["schema", name])
        yield (
            f"reference/schemas/{name}.md",
            (
                f"# Schema of `{name}`\n\nThe JSON Schema of {title}; `planc schema {name}` prints it.\n\n"
                f"```json\n{written.getvalue()}```\n"
            ),
        )
        names.append(name)
        rows.append(f"| [{name}]({name}.md) | {title} |")
    yield (
        "reference/schemas/index.md",
        (
            "# JSON schemas\n\nEach document that planc writes for programs carries a `format_version`.\n"
            "A schema describes one version.\n\n| schema | document |\n| --- | --- |\n"
            + "\n".join(rows)
            + "\n\n```{toctree}\n:hidden:\n\n"
            + "\n".join(names)
            + "\n```\n"
        ),
    )


def _schema_names() -> tuple[str, ...]:
    parser = next(parser for command, parser in command_parsers() if command.name == "schema")
    # argparse has no public way to its arguments.
    positional = (action for action in parser._actions if not action.option_strings)
    return tuple(str(name) for action in positional for name in action.choices or ())


def _variables() -> str:
    from planc.doctor.variables import HARMS, SHOWN

    shown = "\n".join(f"| `{name}` | {what} |" for name, what in SHOWN)
    harms = "\n".join(f"| `{harm.name}={', '.join(harm.values)}` | {harm.what} |" for harm in HARMS)
    return (
        f"| variable | effect |\n| --- | --- |\n{shown}\n\n"
        f"`planc doctor` warns about these settings:\n\n| setting | effect |\n| --- | --- |\n{harms}\n"
    )


def _map() -> str:
    """The map of packages."""
    command = [sys.executable, "-m", "tests.architecture.map"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
