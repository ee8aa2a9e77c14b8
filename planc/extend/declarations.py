"""Registrations of a file of extensions, read from its syntax alone: none of its code runs."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from planc.extend.decorators import Kind
from planc.record import record

_PUBLIC = "planc.extend"


@record
class Parameter:
    """A value that a plan gives. `annotation` is as written; empty without one."""

    name: str
    annotation: str
    is_required: bool


@record
class Declaration:
    """A declaration that a decorator registers; lines and columns start at 1."""

    kind: str
    name: str
    parameters: tuple[Parameter, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    """The arguments of the decorator after the name."""
    place: Place
    methods: tuple[str, ...] = ()
    """The methods that planc calls, of those that a class defines."""


@record
class Place:
    line: int
    column: int
    end_line: int
    end_column: int


@record
class Problem:
    """A reason that a file can't be used, at a place of it."""

    place: Place
    text: str
    help: str


def read_declarations(
    text: str, *, kinds: Mapping[str, Kind]
) -> tuple[tuple[Declaration, ...], tuple[Problem, ...]]:
    """A file's declarations in its order, and the problems with it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of escapes in strings, say: running the code repeats them.
            tree = ast.parse(text)
    except SyntaxError as error:
        line, column = error.lineno or 1, error.offset or 1
        place = Place(line, column, line, column + 1)
        return (), (Problem(place, f"not valid Python: {error.msg}", "correct the file's syntax"),)
    except (ValueError, RecursionError, MemoryError) as error:
        return (), (Problem(Place(1, 1, 1, 2), f"not valid Python: {error}", "correct the file's syntax"),)
    reader = _Reader(kinds)
    for statement in tree.body:
        reader.read(statement)
    return tuple(reader.declarations), tuple(reader.problems)


def imported_names(text: str) -> tuple[str, ...]:
    """The top-level names of all modules that a file imports anywhere; a dot for those of its own package."""
    names: dict[str, None] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names.update(dict.fromkeys(alias.name.partition(".")[0] for alias in node.names))
        elif isinstance(node, ast.ImportFrom):
            names["." if node.level else (node.module or "").partition(".")[0]] = None
    return tuple(names)


@dataclass(slots=True, eq=False, repr=False)
class _Reader:
    """The state of one reading: the names that the file gives to decorators, and what it found."""

    kinds: Mapping[str, Kind]
    decorators: dict[str, str] = field(default_factory=dict)
    """Dotted names in the file to words of kinds."""
    declarations: list[Declaration] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def read(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Import(names):
                for alias in names:
                    if alias.name == _PUBLIC:
                        self._module(alias.asname or _PUBLIC)
            case ast.ImportFrom(module="planc", names=names):
                for alias in names:
                    if alias.name == "extend":
                        self._module(alias.asname or alias.name)
            case ast.ImportFrom(module="planc.extend", names=names):
                self.decorators.update({alias.asname or alias.name: alias.name for alias in names})
            case ast.FunctionDef() | ast.ClassDef():
                for decorator in statement.decorator_list:
                    self._decorated(statement, decorator)

    def _module(self, name: str) -> None:
        self.decorators.update({f"{name}.{word}": word for word in self.kinds})

    def _decorated(self, target: ast.FunctionDef | ast.ClassDef, decorator: ast.expr) -> None:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        kind = self.kinds.get(self.decorators.get(ast.unparse(called), ""))
        if kind is None:
            return
        match decorator:
            case ast.Call(args=[ast.Constant(value=str(name))], keywords=keywords) if name.isidentifier():
                options = tuple(_option(kind, keyword) for keyword in keywords)
            case _:
                help = f'write `@{ast.unparse(called)}("{target.name}")`'
                self._report(decorator, "the name must be a plain string that is a word", help)
                return
        parameters = self._parameters(kind, target)
        if None in options:
            known = [f'{option} = ("name",)' for option in kind.options]
            known += [f'{option} = "{word}"' for option, words in kind.choices for word in words]
            help = f"write {_listed(known)}" if known else "give only the name"
            self._report(decorator, "an option must be a tuple of plain strings, or one of its words", help)
        elif taken := [word for _, words in filter(None, options) for word in words if word in kind.reserved]:
            text = f"planc keeps a value of its own as `{taken[0]}`"
            help = f"take a keyword-only parameter `{taken[0]}`, which planc passes, and remove the name here"
            self._report(decorator, text, help)
        elif parameters is not None:
            written, methods = tuple(filter(None, options)), _methods(kind, target)
            place = _place(decorator)
            self.declarations.append(Declaration(kind.word, name, parameters, written, place, methods))

    def _parameters(self, kind: Kind, target: ast.FunctionDef | ast.ClassDef) -> tuple[Parameter, ...] | None:
        """The parameters that a plan gives; None after a report."""
        if kind.methods and (text := _wrong_methods(kind, target)):
            names = [name for name in kind.methods if name.startswith("on_")]
            help = f"the methods are {_listed(names)}" if names else "write `def __call__(self, step):`"
            self._report(target, text, help)
            return None
        passes = () if kind.methods and isinstance(target, ast.ClassDef) else kind.passes
        function = _function(target)
        arguments = function.args if function is not None else ast.arguments([], [], None, [], [], None, [])
        by_position = [*arguments.posonlyargs, *arguments.args]
        if isinstance(target, ast.ClassDef):
            by_position = by_position[1:]
        name = "__init__" if isinstance(target, ast.ClassDef) else target.name
        own = ("self",) if isinstance(target, ast.ClassDef) else ()
        called = f"{name}({', '.join((*own, *passes, '*, ...'))})"
        if len(by_position) != len(passes) or arguments.vararg or arguments.kwarg:
            passed = _listed(passes) if passes else "nothing"
            text = f"{kind.noun} takes {passed} by position, and all others by name"
            self._report(target, text, f"write `def {called}`")
            return None
        names = [argument.arg for argument in arguments.kwonlyargs]
        if missing := [name for name in kind.needs if name not in names]:
            text = f"{kind.noun} takes `{missing[0]}` by name"
            listed = ", ".join((*passes, "*", missing[0], "..."))
            self._report(target, text, f"write `def {target.name}({listed})`")
            return None
        parameters = tuple(_by_name(arguments, without=kind.offers))
        if fixed := [one.name for one in parameters if one.name in kind.varies and not one.is_required]:
            text = f"`{fixed[0]}` has a default, but its value comes from the plan"
            self._report(target, text, f"remove the default of `{fixed[0]}`")
            return None
        return parameters

    def _report(self, node: ast.expr | ast.stmt, text: str, help: str) -> None:
        self.problems.append(Problem(_place(node), text, help))


def _option(kind: Kind, keyword: ast.keyword) -> tuple[str, tuple[str, ...]] | None:
    """An option of a decorator; None if it is not a tuple of plain words, or one of the words it can be."""
    words = dict(kind.choices).get(keyword.arg or "", ())
    match keyword:
        case ast.keyword(arg=str(name), value=ast.Constant(value=str(word))) if word in words:
            return name, (word,)
    if keyword.arg not in kind.options or not isinstance(keyword.value, ast.Tuple | ast.List):
        return None
    values = [part.value for part in keyword.value.elts if isinstance(part, ast.Constant)]
    words = tuple(word for word in values if isinstance(word, str) and word.isidentifier())
    return (keyword.arg, words) if len(words) == len(keyword.value.elts) else None


def _function(target: ast.FunctionDef | ast.ClassDef) -> ast.FunctionDef | None:
    """The function that takes the arguments: of a class, its `__init__`."""
    if isinstance(target, ast.FunctionDef):
        return target
    inits = (part for part in target.body if isinstance(part, ast.FunctionDef) and part.name == "__init__")
    return next(inits, None)


def _methods(kind: Kind, target: ast.FunctionDef | ast.ClassDef) -> tuple[str, ...]:
    """The methods of a kind that a class defines, in the kind's order."""
    defined = {part.name for part in target.body if isinstance(part, ast.FunctionDef)}
    return tuple(name for name in kind.methods if isinstance(target, ast.ClassDef) and name in defined)


def _wrong_methods(kind: Kind, target: ast.FunctionDef | ast.ClassDef) -> str:
    """The reason that a declaration has other methods than its kind; empty if it does not."""
    if isinstance(target, ast.FunctionDef):
        return "" if kind.passes else f"a {kind.word} is a class"
    defined = [part for part in target.body if isinstance(part, ast.FunctionDef)]
    unknown = [part.name for part in defined if part.name.startswith("on_") and part.name not in kind.methods]
    if unknown:
        return f"`{unknown[0]}` would never be called"
    if not _methods(kind, target):
        return f"`{target.name}` defines none of the methods that planc calls"
    wrong = [part.name for part in defined if part.name in kind.methods and not _takes_one(part)]
    return f"`{wrong[0]}` must take `self` and one argument" if wrong else ""


def _takes_one(method: ast.FunctionDef) -> bool:
    """Whether a method can be called with one argument; one with a decorator of its own may be."""
    arguments = method.args
    by_position = len(arguments.posonlyargs) + len(arguments.args)
    needed = by_position - len(arguments.defaults)
    is_fit = needed <= 2 and (by_position >= 2 or arguments.vararg is not None)
    return bool(method.decorator_list) or (is_fit and None not in arguments.kw_defaults)


def _by_name(arguments: ast.arguments, *, without: Sequence[str]) -> Iterator[Parameter]:
    for written, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if written.arg not in without:
            annotation = ast.unparse(written.annotation) if written.annotation else ""
            yield Parameter(written.arg, annotation, is_required=default is None)


def _place(node: ast.expr | ast.stmt) -> Place:
    """The first line of a statement, or a whole expression."""
    end = node.end_lineno or node.lineno
    if isinstance(node, ast.stmt):
        return Place(node.lineno, node.col_offset + 1, node.lineno, node.col_offset + 2)
    return Place(node.lineno, node.col_offset + 1, end, (node.end_col_offset or node.col_offset) + 1)


def _listed(names: Sequence[str]) -> str:
    *others, last = (f"`{name}`" for name in names)
    return f"{', '.join(others)} and {last}" if others else last
