"""The repository of the Hugging Face Hub that an export is pushed to."""

from __future__ import annotations

import re

from planc.hub.names import is_repository
from planc.plan import codes
from planc.plan.keys import key, keyed
from planc.plan.model_source import Repository
from planc.plan.scalars import Bool, Text
from planc.plan.scope import Scope
from planc.plan.types import Optional, Variant
from planc.record import record
from planc.syntax import ast

_BRANCH = re.compile(r"(?!refs/)[A-Za-z0-9][\w-]*([./][\w-]+)*", re.ASCII)


@record
class _Branch:
    def convert(self, value: ast.Value, scope: Scope) -> str | None:
        text: str | None = Text().convert(value, scope)
        if text is None or _BRANCH.fullmatch(text):
            return text
        what = f'"{text}" is not the name of a branch'
        scope.report(
            codes.WRONG_ARGUMENTS, value.span, what, help='write a name such as `"main"` or `"v1.0"`'
        )
        return None

    def describe(self, *, mark: str = "") -> str:
        return "a branch in quotes"

    def render(self, value: str) -> str:
        return Text().render(value)


@keyed
class HubPush:
    """A model repository of the Hugging Face Hub, created by the first push."""

    repository: str = key(Repository(), doc="the repository, as in `org/name`", positional=True)
    private: bool = key(
        Bool(), unsaid=True, doc="whether the repository is private; a push to one that differs is refused"
    )
    revision: str = key(_Branch(), unsaid="main", doc="the branch; the push creates one that is missing")


def _written(text: str) -> tuple[str, bool]:
    """The call to write for a repository in quotes."""
    return f'hub("{text}")', is_repository(text)


PUSH = Optional(Variant({"hub": HubPush}, "push", from_text=_written))
