"""Offences against the style guide of planc's prose: `python -m tests.prose [PATH...]`.

Reads every docstring, comment and message of planc, its explain pages and documents. Exits with 1
if there are any.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

FORBIDDEN: dict[str, str] = {
    r"(?<!there )\b(?:is|are|was|were|be) no (?!longer\b|more\b|less\b|later\b)": "write `is not a`",
    r"\b(?:beside|besides)\b": "write `next to`, `with`, or `in addition to`",
    r"\b(?:anew|alike|thereof|whereof|hitherto)\b": "write `again`, or `the same`",
    r"\bso that\b": "write `so`, or `to`",
    r"\bin order that\b": "write `so`",
    r"\bstands? (?:in|at|for|on|behind|beside|there|above|alone|written)\b": "write `is in`",
    r"\blies? (?:in|at|on|over|between|behind|beside|below|above|within|there)\b": "write `is in`",
    r"\b(?:is|are|was|were|be|being|been) told\b": "name the signal, or the message, and who sends it",
    r"\bprocessors?\b": "write `CPU`",
    r"\bsays? (?:what|whether|which|how|so|of|that)\b": "programs print, report, state, or show",
    r"\bwhat is (?:no|not) ": "name the noun",
    r"\bfor no \w+": "write `because no`",
    r"\bput together\b": "write `gather`, or `combine`",
    r"\bgoes? on\b|\bgo on\b|\bgoing on\b|\bwent on\b": "write `continue`, or `resume`",
    r"\b(?:is|are) to be\b|\bhas to be had\b": "write `must be`",
    r"\bbut (?:to|for) (?:look|the|what)\b": "write `except`, or `unless`",
    r"\b(?:mend|mends|mended|mending)\b": "write `fix`",
    r"\bwords and signs\b": "write `tokens`",
    r"\b(?:is|are) concerned\b": "write `affected`",
    r"\b(?:younger|oftener|likewise)\b": "write `newer`, `more often`, or `also`",
    r"\bin vain\b|\bwithout a word\b|\bever(?:y)? so many\b": "name what happens",
    r"\b(?:initial|material|serial|normal|optim|recogn|real|summar|util)is(?:e|ing|ation)\w*": "-ize",
    r"\b(?:colour|neighbour|behaviour|favour|honour|labelled|cancelled|travell|modell)\w*": "American",
    r"(?<!-)\bdivided\b(?!-| by\b)": "write `sharded`, or `split`",
}
"""Patterns that a sentence must not match, each with what to write instead."""

CODE = re.compile(r"``.*?``|`[^`\n]*`|https?://\S+", re.DOTALL)
FENCES = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "plans/README.md",
    "docs",
    "planc/diagnostics/explain",
    "planc/diagnostics/symptoms",
)
PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), advice) for pattern, advice in FORBIDDEN.items())


@dataclass(frozen=True)
class Offence:
    """A place that a pattern matches."""

    path: str
    line: int
    text: str
    advice: str


def offences_in(text: str, *, path: str, first_line: int = 1) -> Iterator[Offence]:
    """What a text does wrong, code left out."""
    plain = CODE.sub(lambda match: re.sub(r"[^\n]", "`", match.group()), text)
    for pattern, advice in PATTERNS:
        for match in pattern.finditer(plain):
            line = plain.count("\n", 0, match.start())
            yield Offence(path, first_line + line, plain.splitlines()[line].strip(), advice)


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file, each with the line that it starts on."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield 1, FENCES.sub(lambda match: "\n" * match.group().count("\n"), text)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def files(paths: list[str]) -> Iterator[Path]:
    """The files to read: all of planc's, or those of `paths`."""
    for name in paths or ("planc", *DOCUMENTS):
        path = ROOT / name
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.suffix in {".py", ".md"})
        elif path.exists():
            yield path


def offences(paths: list[str]) -> Iterator[Offence]:
    """Every offence in the files of `paths`, or in all of planc's."""
    for path in files(paths):
        name = path.relative_to(ROOT).as_posix()
        for line, text in prose_of(path):
            yield from offences_in(text, path=name, first_line=line)


def main(paths: list[str]) -> int:
    """Print every offence."""
    found = list(dict.fromkeys(offences(paths)))
    for offence in found:
        print(f"{offence.path}:{offence.line}: {offence.text[:120]}\n    {offence.advice}")
    print(f"{len(found)} offences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
