"""`planc`: find the command, run it, and turn the outcome into an exit code."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from importlib import import_module
from keyword import iskeyword
from types import ModuleType
from typing import NoReturn, TextIO

from planc import __version__
from planc.cli.support.exits import COULD_NOT_RUN, INTERRUPTED, READER_GONE, FaultyPlan, UsageError
from planc.cli.support.parser import Parser, group_subcommands, shared_options
from planc.cli.support.terminal import color_choice
from planc.outgoing import guard, message_text
from planc.record import record


@record
class Command:
    """A command: its module has DESCRIPTION, EPILOG, `add_arguments(parser)` and `run(arguments) -> int`."""

    name: str
    summary: str

    def module(self) -> ModuleType:
        """Import the command's module; other commands' imports must not slow `check` down."""
        name = self.name.replace("-", "_")
        return import_module(f"planc.cli.commands.{f'{name}_' if iskeyword(name) else name}")


GROUPS: tuple[tuple[str, tuple[Command, ...]], ...] = (
    (
        "write a plan",
        (
            Command("new", "write a plan for a model, or one of the plans that ship"),
            Command("import", "write a config of another tool as a plan"),
            Command("fmt", "format plans (one canonical style)"),
            Command("tune", "search the plans of a model for a number of devices"),
        ),
    ),
    (
        "check and understand it",
        (
            Command("check", "find every error in a plan before it runs"),
            Command("show", "show what a plan means: layout, mesh, origins, graph"),
            Command("estimate", "estimate memory per rank, communication and FLOPs"),
            Command("verify", "run a small version of a plan and compare it with one process"),
            Command("explain", "explain an error code, a symptom, a block or a word of the field"),
        ),
    ),
    (
        "compare",
        (
            Command("diff", "show what changed between two plans, and what it affects"),
            Command("review", "summarize a branch's plan changes for code review"),
            Command("report", "write an HTML page with pictures of a plan or a run"),
            Command("runs", "list the runs of a directory, and what differs between their plans"),
        ),
    ),
    (
        "run",
        (
            Command("doctor", "check this machine's hardware and software, for a plan or in general"),
            Command("run", "run a plan on this rank; start all ranks with torchrun"),
            Command("launch", "print launch commands: torchrun, accelerate, Slurm, Kubernetes"),
            Command("sweep", "run a plan at every point of a grid of settings"),
            Command("calibrate", "measure a machine's efficiency from a run, for step-time estimates"),
        ),
    ),
    (
        "checkpoints, data and models",
        (
            Command("checkpoint", "checkpoints: ls, verify, diff, export, push, convert"),
            Command("eval", "evaluate a checkpoint, on its plan's data or on other data"),
            Command("sample", "continue a text, or answer an input, with a checkpoint's model"),
            Command("data", "a plan's data: show, prepare, ls, verify"),
            Command("teacher", "store a teacher's log-probabilities, for a plan with distillation"),
            Command("inventory", "show or save a model's structure"),
        ),
    ),
    (
        "tools",
        (
            Command("compile", "compile a plan to an artifact"),
            Command("schema", "print the JSON Schema of an output"),
            Command("git-setup", "set up git to diff plans by meaning"),
            Command("lsp", "start the language server for editors"),
            Command("completions", "print a shell completion script"),
        ),
    ),
)
"""Every command, in the groups of `planc --help`."""

COMMANDS = tuple(command for _, commands in GROUPS for command in commands)

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

_DESCRIPTION = """\
Declarative plans for distributed training of Hugging Face models: check, compare and compile them
before you book an accelerator, then run exactly what was checked."""

_EPILOG = """\
examples:
  planc check llama.plan
  planc show llama.plan --layout
  planc diff git:main:llama.plan llama.plan
  planc explain P402

`planc help COMMAND` shows a command's help.

exit codes: 0 clean; 1 errors found, or a difference with diff --exit-code; 2 could not run; 130 interrupted;
141 the reader of the output closed it, as in `planc check plans | head`.

The environment variables TP_SIZE, DP_SIZE and CP_SIZE set mesh.tp, mesh.dp_shard and mesh.cp; --set wins."""

_HELP = "help"
"""`planc help COMMAND`, as in git and cargo; it has no module of its own."""


def entry() -> NoReturn:
    """Run the command of this process."""
    # A command ends before garbage matters; collecting it takes a tenth of a check.
    gc.disable()
    _open_closed_streams()
    _import_lark()
    _leave(main())


def _leave(code: int) -> NoReturn:
    """End the process, without the interpreter's teardown unless torch needs it.

    Teardown takes a sixth of a check.
    """
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = _end_unread()
    except OSError as error:
        code = _report_full(error)
    if "torch" not in sys.modules:
        os._exit(code)
    sys.exit(code)


def _forget(stream: TextIO) -> None:
    """Discard a stream's output: the interpreter flushes it once more at exit, and would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _end_unread() -> int:
    """The exit code of a command whose output nobody reads any more, as in `planc check plans | head`."""
    _forget(sys.stdout)
    _forget(sys.stderr)
    return READER_GONE


def _report_full(error: OSError) -> int:
    _forget(sys.stdout)
    print(f"planc: error: cannot write the output: {error.strerror}", file=sys.stderr, flush=True)
    return COULD_NOT_RUN


def _open_closed_streams() -> None:
    """Replace streams that the process was started without by ones that discard output."""
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8", newline="\n")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8", newline="\n")


def _import_lark() -> None:
    """Import Lark without `regex` and `interegular`, which take 15 ms if installed.

    Our options never use them. Only for planc's own process: a program that imports planc may use both.
    """
    hidden = [name for name in ("regex", "interegular") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        import_module("lark")
    finally:
        for name in hidden:
            del sys.modules[name]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; `argv` defaults to `sys.argv[1:]`."""
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
        return _end_unread()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG and error.filename is not None:
            print(f"planc: error: {error.filename}: {error.strerror}", file=sys.stderr)
            return COULD_NOT_RUN
        # Unusable files raise UsageError, so these are errors of the output.
        if error.errno not in _NO_ROOM or error.filename is not None:
            return _report_bug(error, is_debug="--debug" in arguments)
        return _report_full(error)
    except SystemExit:
        raise
    except BaseException as error:
        return _report_missing(error, arguments) or _report_bug(error, is_debug="--debug" in arguments)


def _report_missing(error: BaseException, arguments: Sequence[str]) -> int:
    """COULD_NOT_RUN after naming the library of the extra `run` that a command needs; 0 for other errors."""
    from planc.cli.support.exits import missing_library, needs  # no command that works needs it

    name = missing_library(error)
    if name is None:
        return 0
    words = [word for word in arguments if not word.startswith("-")]
    command = " ".join(words[: 2 if words[:1] == ["checkpoint"] else 1])
    print(f"planc: error: {needs(f'planc {command}', [name])}", file=sys.stderr)
    return COULD_NOT_RUN


def _run(argv: Sequence[str]) -> int:
    argv = _without_help(argv)
    place = _command_place(argv)
    chosen = argv[place] if place is not None else None
    command = next((command for command in COMMANDS if command.name == chosen), None)
    if command is None and chosen is not None:
        from planc.cli.support.signposts import signpost  # no command needs it

        if (text := signpost(chosen)) is not None:
            print(f"planc: error: {text}", file=sys.stderr)
            return COULD_NOT_RUN
    module = command.module() if command else None
    # Options before a command may print the list of all; building their parsers takes 3 ms.
    listed = (command,) if command is not None and place == 0 else COMMANDS
    try:
        namespace = _parser(command, module, listed=listed).parse_args(argv)
    except SystemExit as stop:  # argparse has printed help, a version or a usage error
        return stop.code if isinstance(stop.code, int) else COULD_NOT_RUN
    if command is None or module is None:
        _parser(None, None, listed=COMMANDS).print_help()
        return COULD_NOT_RUN
    try:
        with color_choice(getattr(namespace, "color", "auto")):
            code: int = module.run(namespace)
            sys.stdout.flush()
    except UsageError as error:
        print(f"planc: error: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    except FaultyPlan as plan:
        return plan.code
    return code


def _without_help(argv: Sequence[str]) -> list[str]:
    """`help check` as `check --help`."""
    if argv and argv[0] == _HELP:
        return [*(word for word in argv[1:] if word != _HELP), "--help"]
    return list(argv)


def _command_place(argv: Sequence[str]) -> int | None:
    """The index of the command's name in `argv`; None if there are only options."""
    is_value = False
    for place, word in enumerate(argv):
        if not is_value and not word.startswith("-"):
            return place
        is_value = word == "--color"
    return None


def _parser(
    command: Command | None, module: ModuleType | None, *, listed: Sequence[Command]
) -> ArgumentParser:
    """The parser of the listed commands; only the chosen one has its arguments."""
    shared = shared_options()
    parser = Parser("planc", description=_DESCRIPTION, epilog=_EPILOG, parents=[shared])
    parser.add_argument(
        "-V", "--version", action="version", version=f"planc {__version__}", help="print planc's version"
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    for one in listed:
        is_chosen = one is command and module is not None
        subparser = subparsers.add_parser(
            one.name,
            help=one.summary,
            description=module.DESCRIPTION if is_chosen and module else None,
            epilog=module.EPILOG if is_chosen and module else None,
            parents=[shared],
        )
        if is_chosen and module:
            module.add_arguments(subparser)
    group_subcommands(parser, {title: [command.name for command in commands] for title, commands in GROUPS})
    return parser


def command_parsers() -> Iterator[tuple[Command, ArgumentParser]]:
    """Yield every command with a parser of its arguments, for documents and completions."""
    for command in COMMANDS:
        parser = Parser(f"planc {command.name}", parents=[shared_options()])
        command.module().add_arguments(parser)
        yield command, parser


def _never_fail_to_encode(stream: object) -> None:
    """Escape characters that the stream's encoding lacks, instead of failing."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def _keep_secrets() -> None:
    """Keep keys out of all output, and what steers a terminal or a CI runner: data may hold either."""
    for stream in (sys.stdout, sys.stderr):
        guard(stream, environment=os.environ)


def _report_bug(error: BaseException, *, is_debug: bool) -> int:
    if is_debug or os.environ.get("PLANC_DEBUG"):
        import traceback  # slow to import, and rarely needed

        traceback.print_exception(error)
    first_line = message_text(str(error).partition("\n")[0])
    print(
        f"planc: internal error: {type(error).__name__}: {first_line} "
        f"(a bug in planc {__version__}: please report it with the output of this command with --debug)",
        file=sys.stderr,
    )
    return COULD_NOT_RUN
