"""`planc`: finds the command, runs it, and turns whatever happens into an exit code."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from argparse import SUPPRESS, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import NoReturn

from planc import __version__
from planc.cli.support.exits import COULD_NOT_RUN, INTERRUPTED, READER_GONE, UsageError
from planc.record import record
from planc.secrets import redact_stream


@record
class Command:
    """A command: its module has DESCRIPTION, EPILOG, `add_arguments(parser)` and `run(arguments) -> int`."""

    name: str
    summary: str

    def module(self) -> ModuleType:
        """Imported only for the command that runs: `check` must not wait for what others need."""
        return import_module(f"planc.cli.commands.{self.name.replace('-', '_')}")


COMMANDS: tuple[Command, ...] = (
    Command("check", "find every fault of a plan before it runs"),
    Command("fmt", "lay out plans in the one way there is"),
    Command("show", "show what a plan means: layout, mesh, origins, graph"),
    Command("estimate", "say what a plan needs: memory per rank, bytes sent per step"),
    Command("calibrate", "measure a machine by a run, for estimates of time"),
    Command("diff", "say what a change of a plan changes"),
    Command("review", "say what a branch changes in all plans: a comment for its reviewers"),
    Command("compile", "write a plan's execution graph as a file that runs"),
    Command("explain", "explain a code, an op, a block or a style"),
    Command("inventory", "show or save what planc knows of a model"),
    Command("schema", "print the JSON Schema of what planc writes"),
    Command("git-setup", "teach a repository's git to show changes of plans"),
    Command("completions", "print a script that completes command lines in a shell"),
    Command("doctor", "say what this machine has, against what plans need"),
    Command("verify", "show that a plan computes what one device computes"),
    Command("checkpoint", "list, verify, compare and export checkpoints"),
    Command("launch", "print what starts a plan: torchrun, accelerate, Slurm, Kubernetes"),
    Command("run", "run a plan on this process, or on this rank under torchrun"),
)

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

_DESCRIPTION = """\
Declarative plans for distributed training of Hugging Face models: checked, compared and compiled
before an accelerator is booked, then run as they were shown."""

_EPILOG = """\
examples:
  planc check llama.plan
  planc show llama.plan --layout
  planc diff git:main:llama.plan llama.plan
  planc explain P402

exit codes: 0 clean; 1 findings, or a difference with diff --exit-code; 2 could not run.
TP_SIZE, DP_SIZE and CP_SIZE in the environment set mesh.tp, mesh.dp_shard and mesh.cp; --set wins."""


def entry() -> NoReturn:
    """Runs the command that the process was started for."""
    # A command is over before garbage would matter; looking for it costs a tenth of a check.
    gc.disable()
    _open_closed_streams()
    _import_lark()
    _leave(main())


def _leave(code: int) -> NoReturn:
    """Ends the process, without taking apart all that it made where nobody would notice.

    Doing so costs a sixth of a check. What torch started has to end in order.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()
        code = READER_GONE
    except OSError as error:
        _forget_output()
        code = _report_full(error)
    if "torch" not in sys.modules:
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _forget_output() -> None:
    """The interpreter flushes stdout once more at exit, and would fail there again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_full(error: OSError) -> int:
    print(f"planc: error: cannot write the output: {error.strerror}", file=sys.stderr)
    return COULD_NOT_RUN


def _open_closed_streams() -> None:
    """What is written to a stream that the process was started without goes nowhere."""
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8", newline="\n")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8", newline="\n")


def _import_lark() -> None:
    """Imports Lark without `regex` and `interegular`, 15 ms that it spends where it finds them.

    Our options never use them. Only for a process that is ours: whoever imports planc may want them together.
    """
    hidden = [name for name in ("regex", "interegular") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        import_module("lark")
    finally:
        for name in hidden:
            del sys.modules[name]


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of one command line; `argv` is `sys.argv` without the program's name by default."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _never_fail_to_encode(sys.stdout)
    _never_fail_to_encode(sys.stderr)
    _keep_secrets()
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print("planc: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _forget_output()
        return READER_GONE
    except OSError as error:
        # A file that a command cannot use is a UsageError: what is left is the output's own.
        if error.errno not in _NO_ROOM or error.filename is not None:
            return _report_bug(error, is_debug="--debug" in arguments)
        _forget_output()
        return _report_full(error)
    except Exception as error:
        return _report_missing(error, arguments) or _report_bug(error, is_debug="--debug" in arguments)


def _report_missing(error: Exception, arguments: Sequence[str]) -> int:
    """COULD_NOT_RUN after saying which library of the extra `run` a command lacked; 0 for other errors."""
    from planc.cli.support.libraries import missing_library, needs  # no command that works needs it

    name = missing_library(error)
    if name is None:
        return 0
    words = [word for word in arguments if not word.startswith("-")]
    command = " ".join(words[: 2 if words[:1] == ["checkpoint"] else 1])
    print(f"planc: error: {needs(f'planc {command}', [name])}", file=sys.stderr)
    return COULD_NOT_RUN


def _run(argv: Sequence[str]) -> int:
    chosen = next((word for word in argv if not word.startswith("-")), None)
    command = next((command for command in COMMANDS if command.name == chosen), None)
    module = command.module() if command else None
    # What stands before a command may ask for the list of all; making their parsers takes 3 ms.
    listed = (command,) if command is not None and argv[0] == command.name else COMMANDS
    try:
        namespace = _parser(command, module, listed=listed).parse_args(argv)
    except SystemExit as stop:  # argparse has printed help, a version or a usage error
        return stop.code if isinstance(stop.code, int) else COULD_NOT_RUN
    if command is None or module is None:
        _parser(None, None, listed=COMMANDS).print_help()
        return COULD_NOT_RUN
    try:
        code: int = module.run(namespace)
        sys.stdout.flush()
    except UsageError as error:
        print(f"planc: error: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    return code


def _parser(
    command: Command | None, module: ModuleType | None, *, listed: Sequence[Command]
) -> ArgumentParser:
    """The parser of the listed commands, of which only the chosen one has its arguments."""
    debug = _debug_parser()
    parser = ArgumentParser(
        "planc",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_formatter,
        parents=[debug],
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"planc {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for one in listed:
        is_chosen = one is command and module is not None
        subparser = subparsers.add_parser(
            one.name,
            help=one.summary,
            description=module.DESCRIPTION if is_chosen and module else None,
            epilog=module.EPILOG if is_chosen and module else None,
            formatter_class=_formatter,
            parents=[debug],
            allow_abbrev=False,
        )
        if is_chosen and module:
            module.add_arguments(subparser)
    return parser


def command_parsers() -> Iterator[tuple[Command, ArgumentParser]]:
    """Every command with a parser of its arguments, for what describes them all."""
    for command in COMMANDS:
        parser = ArgumentParser(f"planc {command.name}", parents=[_debug_parser()], allow_abbrev=False)
        command.module().add_arguments(parser)
        yield command, parser


def _debug_parser() -> ArgumentParser:
    debug = ArgumentParser(add_help=False, argument_default=SUPPRESS)
    debug.add_argument("--debug", action="store_true", help="show the traceback of an internal error")
    return debug


def _formatter(prog: str) -> RawDescriptionHelpFormatter:
    return RawDescriptionHelpFormatter(prog, max_help_position=28)


def _never_fail_to_encode(stream: object) -> None:
    """A plan may quote characters that the terminal's encoding lacks; they are escaped, not a crash."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def _keep_secrets() -> None:
    """What is echoed or raised may hold a key: one given as an argument, or in an address."""
    for stream in (sys.stdout, sys.stderr):
        redact_stream(stream, environment=os.environ)


def _report_bug(error: Exception, *, is_debug: bool) -> int:
    if is_debug or os.environ.get("PLANC_DEBUG"):
        import traceback  # slow to import, and rarely wanted

        traceback.print_exception(error)
    first_line = str(error).partition("\n")[0]
    print(
        f"planc: internal error: {type(error).__name__}: {first_line} "
        f"(a bug in planc {__version__}: please report it with the output of this command with --debug)",
        file=sys.stderr,
    )
    return COULD_NOT_RUN
