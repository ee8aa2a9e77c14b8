"""YAML as leaves, by PyYAML's safe parts: no tag makes an object, and aliases count against the limits."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from planc.import_configs.leaf import MAX_DEPTH, Leaf, SourceError, Value, check_leaf

_COLLECTIONS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_MERGE = "tag:yaml.org,2002:merge"


def yaml_leaves(text: str) -> tuple[Leaf, ...]:
    """The leaves of one YAML document that is a table. SourceError for anything else."""
    try:
        _check_depth(text)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            raise SourceError("the file is not a table of keys")
        return tuple(_Walk().leaves(node, (), 1))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise SourceError(f"not YAML: {error.problem}", mark.line + 1 if mark else None) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"not YAML: {str(error).partition(chr(10))[0].partition(';')[0]}") from None


def _check_depth(text: str) -> None:
    """SourceError for nesting that `compose`, which recurses, should not see."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise SourceError(f"keys are nested deeper than {MAX_DEPTH}", event.start_mark.line + 1)


class _Walk:
    """One walk over a document; counts what it has seen, however aliases repeat it."""

    def __init__(self) -> None:
        self._num_seen = 0
        self._constructor = yaml.SafeLoader("")

    def leaves(self, node: yaml.Node, path: tuple[str, ...], line: int) -> Iterator[Leaf]:
        self._num_seen += 1
        check_leaf(path, self._num_seen, line)
        if isinstance(node, yaml.CollectionNode) and node.tag not in _COLLECTIONS:
            raise SourceError(f"the tag `{node.tag[:100]}` is not a plain value", line)
        if isinstance(node, yaml.MappingNode) and node.value:
            for key, value, at in self._pairs(node, path):
                yield from self.leaves(value, (*path, key), at)
        elif isinstance(node, yaml.SequenceNode) and not self._is_plain(node):
            for index, value in enumerate(node.value):
                yield from self.leaves(value, (*path, str(index)), value.start_mark.line + 1)
        else:
            yield Leaf(path, self._value(node, line), line)

    def _pairs(self, node: yaml.MappingNode, path: tuple[str, ...]) -> Iterator[tuple[str, yaml.Node, int]]:
        """Keys, values and lines; own keys come before those that `<<` merges."""
        own: dict[str, int] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == _MERGE:
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise SourceError("a key is not text", line)
            if key.value in own:
                raise SourceError(f"the key `{key.value[:100]}` is also in line {own[key.value]}", line)
            own[key.value] = line
            yield key.value, value, line
        for base in merged:
            self._num_seen += 1
            check_leaf((*path, "<<"), self._num_seen, base.start_mark.line + 1)
            if not isinstance(base, yaml.MappingNode):
                raise SourceError("`<<` merges a value that is not a table", base.start_mark.line + 1)
            for name, value, line in self._pairs(base, (*path, "<<")):
                if name not in own:
                    own[name] = line
                    yield name, value, line

    def _is_plain(self, node: yaml.SequenceNode) -> bool:
        return all(isinstance(one, yaml.ScalarNode) for one in node.value)

    def _value(self, node: yaml.Node, line: int) -> Value:
        if isinstance(node, yaml.ScalarNode):
            try:
                made = self._constructor.construct_object(node)
            except yaml.constructor.ConstructorError:
                raise SourceError(f"the tag `{node.tag[:100]}` is not a plain value", line) from None
            return made if made is None or isinstance(made, str | int | float | bool) else str(node.value)
        return tuple(self._value(one, line) for one in node.value)
