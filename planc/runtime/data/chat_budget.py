"""Limit what a chat template may do: a template is a program, and comes with a tokenizer from anywhere.

The limits count steps and characters, not seconds: the same template and messages are rejected on every
machine and rank, or on none. The size of a text or list is computed before it is made.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from planc.runtime.data.chat_guard import Guard, private
from planc.runtime.data.chat_sizes import GROWING, STRING_METHODS, Size, require_narrow
from planc.runtime.data.chat_steps import Budget, BudgetError

MAX_TEMPLATE_CHARACTERS = 2**17
"""The longest published templates have about a fifth of it."""
_STEPS_A_CALL = 4
MAX_BITS = 2**14
"""The size limit of an integer."""
_DROPPED_FILTERS = ("random", "urlize", "xmlattr", "pprint", "striptags")
"""Random, or without a bound on what they search; chats don't need them."""
_DROPPED_GLOBALS = ("lipsum",)
_STRING_NAMES = """
capitalize casefold center count endswith expandtabs find format format_map index isalnum isalpha isascii
isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip
partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines
startswith strip swapcase title upper zfill
"""
_STRING_METHODS = frozenset(_STRING_NAMES.split())
_FORMATS = ("format", "format_map")
_OF_DICTS = frozenset(dir(dict))
_METHODS: Mapping[object, frozenset[str]] = {
    str: _STRING_METHODS,
    list: frozenset(("copy", "count", "index")),
    tuple: frozenset(("count", "index")),
    dict: frozenset(("copy", "get", "items", "keys", "values")),
}
"""The methods that may be called on values, by type; of other types, none that Python itself defines."""
_WRITTEN_CHARACTERS = 2**16
"""How much may be written before it counts against the budget."""
_JINJAS_OWN = ("_loop_vars", "_block_vars")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with a budget. `budget` is for the conversation that is being rendered.

    Sums in an expression are not checked, because templates have them in every line: an expression can only
    make a text some times longer than its parts. Values that a template assigns, passes on or writes are
    checked.
    """

    intercepted_binops = frozenset(("*", "**", "%"))

    def __init__(
        self, *, tojson: Callable[..., str], raise_exception: Callable[..., Any], **options: Any
    ) -> None:
        super().__init__(**options)
        self.budget = Budget(lambda: 0)
        self.filters["tojson"] = tojson
        self.globals["raise_exception"] = raise_exception
        for name in _DROPPED_FILTERS:
            del self.filters[name]
        for name in _DROPPED_GLOBALS:
            del self.globals[name]
        for name, size in GROWING.items():
            self.filters[name] = _bounded(self.filters[name], environment=self, size=size)
        for name in _ITERATING_NAMES.split():
            self.filters[name] = _counting(self.filters[name], environment=self)
        for method in (self.items, self.kept, self.added, self.joined):
            self.filters[private(method.__name__)] = method

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = Guard().visit(super()._parse(source, name, filename))
        return tree

    def concat(self, parts: Iterable[str]) -> str:
        """The text of a template, a macro or a block, which Jinja joins with this."""
        found: list[str] = []
        length = 0
        for part in parts:
            length += len(part)
            if length > _WRITTEN_CHARACTERS:
                self.budget.make(length)
                length = 0
            found.append(part)
        self.budget.make(length)
        return "".join(found)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`a.b` as in the sandbox, but faster for the most frequent attributes."""
        kind = type(obj)
        if kind is dict and attribute in obj and attribute not in _OF_DICTS:
            return obj[attribute]
        if kind is str and attribute in _STRING_METHODS and attribute not in _FORMATS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def items(self, value: Any) -> Any:
        """The values that a loop iterates over."""
        if isinstance(value, Sized):
            self.budget.step(len(value))
            return value
        return self._counted(value) if isinstance(value, Iterable) else value

    def kept(self, value: Any) -> Any:
        """A value that is assigned to a name, or becomes a part of a list or a dict."""
        if isinstance(value, str):
            self.budget.make(len(value))
        elif isinstance(value, list | tuple | Mapping | Namespace):
            self.budget.weigh(value)
        return value

    def added(self, left: Any, right: Any) -> Any:
        """`a + b` in an expression of many sums."""
        return self.kept(left + right)

    def joined(self, *parts: Any) -> str:
        """`a ~ b` in an expression of many sums."""
        joined: str = self.kept("".join(map(str, parts)))
        return joined

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        match operator:
            case "*" if isinstance(left, int | float) and isinstance(right, int | float):
                _require_bits(_bits(left) + _bits(right))
            case "*":
                text, times = (left, right) if isinstance(right, int) else (right, left)
                if isinstance(times, int) and times > 0:
                    self.budget.make(self.budget.weigh(text) * times)
                    self.budget.step(times if isinstance(text, list | tuple) else 1)
            case "**":
                _require_bits(_bits(left) * abs(right) if isinstance(right, int) else 0)
            case "%" if isinstance(left, str):
                require_narrow(left)
                self.budget.make(len(left) * (1 + self.budget.weigh(right)))
        return self.binop_table[operator](left, right)

    def call(__self, __context: Any, __callee: Any, *arguments: Any, **named: Any) -> Any:
        budget = __self.budget
        budget.step(_STEPS_A_CALL)
        if type(__callee) is types.BuiltinMethodType and __callee.__self__ is not None:
            # Unlike Jinja's own functions it takes nothing of Jinja's.
            if named:
                named = {name: value for name, value in named.items() if name not in _JINJAS_OWN}
            _require_method(type(__callee.__self__), __callee)
            if (size := STRING_METHODS.get(__callee.__name__)) is not None:
                budget.make(size(budget, __callee.__self__, *arguments, **named))
            return __callee(*arguments, **named)
        if isinstance(__callee, LoopContext):
            arguments = tuple(map(__self.items, arguments))
        else:
            owner = getattr(getattr(__callee, "__wrapped__", __callee), "__self__", None)
            if isinstance(owner, str):
                _require_method(str, __callee)
                if (size := STRING_METHODS.get(__callee.__name__)) is not None:
                    given = {name: value for name, value in named.items() if name not in _JINJAS_OWN}
                    budget.make(size(budget, owner, *arguments, **given))
        found = super().call(__context, __callee, *arguments, **named)
        if __callee is dict or __callee is Namespace:
            budget.weigh(found)
        return found

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.budget.step()
            yield value


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _require_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise BudgetError(f"it computes a number of {bits:_} bits")


def _require_method(kind: type, method: Any) -> None:
    name = getattr(method, "__name__", "")
    if name not in _METHODS.get(kind, ()):
        raise BudgetError(f"it calls `{kind.__name__}.{name}`, which chat templates do not need")


_Filter = Callable[..., Any]
_ITERATING_NAMES = """
list map select selectattr reject rejectattr sum sort unique groupby dictsort items min max reverse
"""


def _bounded(filter: _Filter, *, environment: BoundedEnvironment, size: Size) -> Callable[..., Any]:
    """A filter whose output size is checked first. Jinja may pass it a context as its first argument."""
    has_context = hasattr(filter, "jinja_pass_arg")

    @wraps(filter)
    def bounded(*arguments: Any, **named: Any) -> Any:
        skipped, rest = (arguments[:1], arguments[1:]) if has_context else ((), arguments)
        # The values of a generator are counted, and kept: it could not be read twice.
        rest = (_kept(environment, rest[0]), *rest[1:])
        environment.budget.make(size(environment.budget, *rest, **named))
        return filter(*skipped, *rest, **named)

    return bounded


def _counting(filter: _Filter, *, environment: BoundedEnvironment) -> _Filter:
    """A filter that iterates over its argument, which is counted as in a loop."""
    has_context = hasattr(filter, "jinja_pass_arg")

    @wraps(filter)
    def counting(*arguments: Any, **named: Any) -> Any:
        skipped, rest = (arguments[:1], arguments[1:]) if has_context else ((), arguments)
        return filter(*skipped, environment.items(rest[0]), *rest[1:], **named)

    return counting


def _kept(environment: BoundedEnvironment, value: Any) -> Any:
    is_stream = isinstance(value, Iterator) and not isinstance(value, str)
    return list(environment.items(value)) if is_stream else value
