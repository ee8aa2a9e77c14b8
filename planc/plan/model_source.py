"""The source of a plan's model: a local folder, or a commit of the Hugging Face hub."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from itertools import islice
from pathlib import Path as FilePath
from typing import Any

from planc.diagnostics.suggest import closest
from planc.hub.names import HubModel, is_commit, is_hub, is_repository, parse_hub
from planc.plan import codes
from planc.plan.keys import key, keyed
from planc.plan.scalars import Path, Text
from planc.plan.scope import Scope
from planc.plan.types import Variant, render_call
from planc.record import record
from planc.syntax import ast

_PINNED = "write the commit's 40 hexadecimal digits, shown on the repository's page of commits"


@record
class Repository:
    def convert(self, value: ast.Value, scope: Scope) -> str | None:
        text: str | None = Text().convert(value, scope)
        if text is None or is_repository(text):
            return text
        scope.report(
            codes.WRONG_ARGUMENTS, value.span, f'"{text}" is not a repository name', help='write `"org/name"`'
        )
        return None

    def describe(self, *, mark: str = "") -> str:
        return 'a repository, "org/name"'

    def render(self, value: str) -> str:
        return Text().render(value)


@record
class _Commit:
    def convert(self, value: ast.Value, scope: Scope) -> str | None:
        text: str | None = Text().convert(value, scope)
        if text is None or is_commit(text):
            return text
        what = f'"{text}" is not a commit: branches and tags can move'
        scope.report(codes.WRONG_ARGUMENTS, value.span, what, help=_PINNED)
        return None

    def describe(self, *, mark: str = "") -> str:
        return "a commit's 40 hexadecimal digits"

    def render(self, value: str) -> str:
        return Text().render(value)


@record
class NamePart:
    """A part of the names of tensors, which ends where a name of a module does."""

    def convert(self, value: ast.Value, scope: Scope) -> str | None:
        text: str | None = Text().convert(value, scope)
        if text is None or (text.endswith(".") and ".." not in f".{text}"):
            return text
        what = f'"{text}" is not a part of names with a dot at its end'
        help = f'write `"{text.strip(".")}."`'
        scope.report(codes.OUT_OF_RANGE, value.span, what, help=help)
        return None

    def describe(self, *, mark: str = "") -> str:
        return 'a part of names that ends with a dot, "module."'

    def render(self, value: str) -> str:
        return Text().render(value)


@keyed
class Hub:
    """A model of the Hugging Face hub, at one commit; no code of it runs."""

    repository: str = key(Repository(), doc="the repository, as in `org/name`", positional=True)
    revision: str = key(_Commit(), doc="the commit: 40 hexadecimal digits")


_SOURCES: Mapping[str, type[Any]] = {"hub": Hub}


@record
class ModelSource:
    """A local folder's path, or `hub("org/name", revision = "...")`, as `planc.hub.names` writes it."""

    @property
    def calls(self) -> Mapping[str, type[Any]]:
        return _SOURCES

    def convert(self, value: ast.Value, scope: Scope) -> str | None:
        if isinstance(value, ast.Call) or (isinstance(value, ast.Ref) and value.name.text in _SOURCES):
            found: Hub | None = Variant(_SOURCES, "model source").convert(value, scope)
            return str(HubModel(found.repository, found.revision)) if found else None
        written, _ = scope.lookup(value)
        if isinstance(written, ast.Text) and is_hub(written.value):
            repository, _, revision = written.value.removeprefix("hf://").partition("@")
            help = f'write `hub("{repository}", revision = "{revision or "<commit>"}")`'
            scope.report(
                codes.WRONG_TYPE, value.span, "`hf://` names a Hub model on the command line only", help=help
            )
            return None
        return Path().convert(value, scope)

    def describe(self, *, mark: str = "") -> str:
        return f"a path in quotes, or {mark}hub(...){mark}"

    def render(self, value: str) -> str:
        if not is_hub(value):
            return Path().render(value)
        model = parse_hub(value)
        return render_call("hub", Hub(model.repository, model.revision))


def hub_help(path: str) -> str | None:
    """Return the help for a path that is shaped like a repository of the Hub; None for another path."""
    if not is_repository(path):
        return None
    written = f'hub("{path}", revision = "<commit>")'
    return f"for a Hub model write `{written}`, then run `planc inventory hf://{path}@<commit>`"


def other_source(hf: str, *, base: FilePath) -> str | None:
    """The model that a path was most likely meant to name: a sibling directory, or a model of the Hub."""
    folder = base / hf
    try:
        beside = [] if is_hub(hf) or folder.exists() else list(islice(folder.parent.iterdir(), 1000))
    except OSError:
        return hub_help(hf)
    near = closest(folder.name, (one.name for one in beside if one.is_dir()))
    return f"did you mean `{posixpath.join(posixpath.dirname(hf), near)}`?" if near else None
