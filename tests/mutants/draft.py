"""A plan as data that mutations can edit: blocks, settings and rules, each as it is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

_HEADER = re.compile(r"(\w+)(?: on ([\w, ]+))? \{")
_SETTING = re.compile(r"  (\w+) = (.+)")
_RULE = re.compile(r"  (override )?(\[.+?\]|\".+?\") -> (\w+)\((.*)\)")
_COMPARISON = re.compile(r"  (\w+) (==|!=|<=|>=|<|>) (\S+)")
_DIRECTIVE = re.compile(r"  (\w+|\w+ \"[^\"]+\" \{.*\})")
_LONG_CALL = re.compile(r"\(\n([^()]*)\)")
_ARGUMENT = re.compile(r"(?:(\w+) = )?((?:[^,()\[\]]|\([^()]*\)|\[[^\]]*\])+)(?:, |$)")


@dataclass(frozen=True, slots=True)
class Rule:
    """`patterns -> action(arguments)`. An argument without a name has the name ""."""

    patterns: tuple[str, ...]
    action: str
    arguments: tuple[tuple[str, str], ...] = ()
    override: bool = False

    def __str__(self) -> str:
        texts = [f'"{pattern}"' for pattern in self.patterns]
        patterns = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
        arguments = ", ".join(f"{name} = {value}" if name else value for name, value in self.arguments)
        call = f"{self.action}({arguments})" if arguments else self.action
        return f"{'override ' if self.override else ''}{patterns} -> {call}"

    def argument(self, name: str) -> str | None:
        return dict(self.arguments).get(name)

    def with_argument(self, name: str, value: str) -> Rule:
        kept = tuple(argument for argument in self.arguments if argument[0] != name)
        return replace(self, arguments=(*kept, (name, value)))


@dataclass(frozen=True, slots=True)
class Block:
    """One block. `directives` are bare words, and blocks on one line; `comparisons` are those of `expect`."""

    kind: str
    on: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    directives: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    comparisons: tuple[tuple[str, str, str], ...] = ()

    def __str__(self) -> str:
        on = f" on {', '.join(self.on)}" if self.on else ""
        return "\n".join([f"{self.kind}{on} {{", *(f"  {line}" for line in self._lines()), "}"])

    def _lines(self) -> Iterator[str]:
        yield from (f"{name} = {value}" for name, value in self.settings)
        yield from self.directives
        yield from map(str, self.rules)
        yield from (" ".join(comparison) for comparison in self.comparisons)

    def get(self, name: str) -> str | None:
        return dict(self.settings).get(name)

    def having(self, name: str, value: str) -> Block:
        """The block with a setting changed where it stands, or added."""
        if self.get(name) is None:
            return replace(self, settings=(*self.settings, (name, value)))
        settings = tuple((key, value if key == name else old) for key, old in self.settings)
        return replace(self, settings=settings)

    def with_rule(self, index: int, *rules: Rule) -> Block:
        """The block with another rule, several or none in place of one."""
        return replace(self, rules=(*self.rules[:index], *rules, *self.rules[index + 1 :]))


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan, block by block."""

    blocks: tuple[Block, ...]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.blocks)) + "\n"

    def get(self, kind: str) -> Block | None:
        return next((block for block in self.blocks if block.kind == kind), None)

    def block(self, kind: str) -> Block:
        """A block that every plan has."""
        found = self.get(kind)
        assert found is not None, f"plans without {kind} do not resolve"
        return found

    def edit(self, kind: str, change: Callable[[Block], Block]) -> Draft:
        """The plan with one block changed; unchanged where it has no such block."""
        return Draft(tuple(change(block) if block.kind == kind else block for block in self.blocks))

    def setting(self, kind: str, name: str, value: object) -> Draft:
        return self.edit(kind, lambda block: block.having(name, str(value)))

    def without(self, kind: str) -> Draft:
        return Draft(tuple(block for block in self.blocks if block.kind != kind))

    def mesh(self) -> Mapping[str, int]:
        """The sizes of the mesh dims, those of one rank included."""
        return {name: int(value) for name, value in self.block("mesh").settings if name in MESH_DIMS}

    def world_size(self) -> int:
        product = 1
        for size in self.mesh().values():
            product *= size
        return product


MESH_DIMS = ("pp", "dp_replicate", "dp_shard", "cp", "ep", "tp")
"""Settings of `mesh` that are sizes of mesh dims, those of planned dims included."""


def read_draft(text: str) -> Draft:
    """The draft of a resolved plan's text, which has one fact a line. ValueError at any other line."""
    blocks: list[Block] = []
    for line in _LONG_CALL.sub(_on_one_line, text).splitlines():
        content = line.rstrip()
        if not content or content == "}" or content.lstrip().startswith("#"):
            continue
        if found := _HEADER.fullmatch(content):
            on = tuple(name.strip() for name in (found[2] or "").split(",") if name.strip())
            blocks.append(Block(found[1], on))
        else:
            blocks[-1] = _with_line(blocks[-1], content)
    return Draft(tuple(blocks))


def _on_one_line(call: re.Match[str]) -> str:
    """A call whose arguments stand on lines of their own."""
    return f"({', '.join(argument.strip() for argument in call[1].split(',') if argument.strip())})"


def _with_line(block: Block, line: str) -> Block:
    if found := _RULE.fullmatch(line):
        patterns = tuple(re.findall(r'"([^"]+)"', found[2]))
        arguments = tuple((name, value) for name, value in _ARGUMENT.findall(found[4]))
        rule = Rule(patterns, found[3], arguments, found[1] is not None)
        return replace(block, rules=(*block.rules, rule))
    if found := _SETTING.fullmatch(line):
        return replace(block, settings=(*block.settings, (found[1], found[2])))
    if found := _COMPARISON.fullmatch(line):
        return replace(block, comparisons=(*block.comparisons, (found[1], found[2], found[3])))
    if found := _DIRECTIVE.fullmatch(line):
        return replace(block, directives=(*block.directives, found[1]))
    raise ValueError(f"not a line of a resolved plan: {line!r}")
