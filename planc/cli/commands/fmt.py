"""`planc fmt`."""

from __future__ import annotations

import difflib
import os
import stat
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

from planc.api import Checked, read_source
from planc.cli.support import plans
from planc.cli.support.check_scope import plan_files
from planc.cli.support.exits import CLEAN, FINDINGS, UsageError
from planc.cli.support.options import STDIN, add_plans_argument, add_quiet_argument
from planc.diagnostics import Diagnostic
from planc.diagnostics.wrap import visible
from planc.fmt.format import format_source
from planc.source import SourceFile
from planc.syntax.codes import NOT_TEXT

DESCRIPTION = """\
Format plans in place, in one canonical style without options. Keeps comments and meaning (the plan_hash stays
the same). A file that does not parse is left unchanged."""

EPILOG = """\
examples:
  planc fmt llama.plan
  planc fmt plans                    (every .plan file in a directory)
  planc fmt plans --check            (in CI: lists files that would change; exit code 1 if there are any)
  planc fmt llama.plan --diff
  planc fmt - < llama.plan           (to stdout)"""


@dataclass(frozen=True, slots=True)
class Formatted:
    """A plan's bytes before and after; `after` is None for a plan with syntax errors."""

    source: SourceFile
    before: bytes
    after: bytes | None
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def would_change(self) -> bool:
        return self.after not in (None, self.before)


def add_arguments(parser: ArgumentParser) -> None:
    add_plans_argument(parser, help="a .plan file, a directory of them, or - for stdin to stdout")
    parser.add_argument("--check", action="store_true", help="write nothing; list files that would change")
    parser.add_argument("--diff", action="store_true", help="write nothing; print changes as a diff")
    add_quiet_argument(parser)


def run(arguments: Namespace) -> int:
    """0 if formatted; 1 for syntax errors, or changes under --check or --diff; 2 for an unreadable file."""
    is_dry = arguments.check or arguments.diff
    codes = [CLEAN]
    for path in (file.path for file in plan_files(arguments.plans)):
        formatted = _format_stdin() if path == STDIN else _format_file(Path(path))
        if formatted.diagnostics:
            found = Checked({formatted.source.name: formatted.source}, formatted.diagnostics)
            sys.stderr.write(plans.render_findings(found, stream=sys.stderr))
            codes.append(plans.exit_code(formatted.diagnostics))
        if is_dry and formatted.would_change:
            _show(formatted, arguments)
            codes.append(FINDINGS)
        elif not is_dry and formatted.after is not None:
            _write(path, formatted, is_quiet=arguments.quiet)
    return max(codes)


def _format_stdin() -> Formatted:
    before = sys.stdin.buffer.read()
    try:
        source = SourceFile("<stdin>", before.decode("utf-8"))
    except UnicodeDecodeError as error:
        source = SourceFile("<stdin>", "")
        problem = NOT_TEXT.at(source.start(), f"byte {error.start} is not UTF-8", help="save it as UTF-8")
        return Formatted(source, before, None, (problem,))
    return _formatted(source, before)


def _format_file(path: Path) -> Formatted:
    source, problems = read_source(path)
    if source is None:
        return Formatted(SourceFile(str(path), ""), b"", None, problems)
    # The source has lost the line endings that the file may still have to lose.
    return _formatted(source, path.read_bytes())


def _formatted(source: SourceFile, before: bytes) -> Formatted:
    text, problems = format_source(source)
    return Formatted(source, before, None if text is None else text.encode("utf-8"), problems)


def _show(formatted: Formatted, arguments: Namespace) -> None:
    name = visible(formatted.source.name)
    if not arguments.diff:
        if not arguments.quiet:
            print(f"would reformat {name}")
        return
    assert formatted.after is not None, "only what has a format would change"
    before, after = (
        content.decode("utf-8").splitlines(keepends=True) for content in (formatted.before, formatted.after)
    )
    lines = difflib.unified_diff(before, after, name, f"{name} (formatted)")
    ended = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    _print_bytes("".join(ended).encode("utf-8"))


def _write(path: str, formatted: Formatted, *, is_quiet: bool) -> None:
    """The text to stdout for stdin; else into the file, if that changes it."""
    assert formatted.after is not None, "the caller has seen to it"
    if path == STDIN:
        _print_bytes(formatted.after)
    elif formatted.would_change:
        try:
            _replace(Path(path).resolve(), content=formatted.after)
        except OSError as error:
            raise UsageError(f"{visible(path)} cannot be written: {error.strerror}") from error
        if not is_quiet:
            print(f"reformatted {visible(path)}", file=sys.stderr)


def _print_bytes(content: bytes) -> None:
    """Write to stdout as it is: text would have its characters escaped for the terminal's encoding."""
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def _replace(path: Path, *, content: bytes) -> None:
    """Replace a file whole or not at all, keeping its mode. OSError when it cannot."""
    with path.open("r+b") as file:  # A rename would not ask whether the file may be written.
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        with temporary.open("xb") as file:
            temporary.chmod(mode)
            file.write(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
