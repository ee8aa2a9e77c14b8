"""`record` makes what `dataclass` makes, and a clean check loads little."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest

from planc.record import record
from tests.patience import WAIT_SECONDS

ROOT = Path(__file__).parents[2]


def example(decorate: Callable[[type[Any]], Any]) -> Any:
    class Example:
        """Fields of every kind."""

        name: str
        size: int = 2
        parts: tuple[str, ...] = ()
        table: dict[str, int] = field(default_factory=dict)
        place: int = field(default=0, compare=False)
        hidden: str = field(default="", repr=False)
        later: int = field(init=False, compare=False, repr=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "later", self.size + 1)

    return decorate(Example)


Record = example(record)
Dataclass = example(dataclass(frozen=True, slots=True))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("a",), {}),
        (("a", 3), {"place": 7}),
        ((), {"name": "a", "hidden": "x"}),
        (("a", 1, ("b",), {"c": 1}), {}),
    ],
)
def test_a_record_is_made_as_a_dataclass_is(arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    made, wanted = Record(*arguments, **named), Dataclass(*arguments, **named)
    assert repr(made) == repr(wanted)
    assert asdict(made) == asdict(wanted)
    assert repr(replace(made, size=9)) == repr(replace(wanted, size=9))
    assert [one.name for one in fields(made)] == [one.name for one in fields(wanted)]
    assert (made == Record(*arguments, **named), made.later) == (True, wanted.later)


@pytest.mark.parametrize("named", [{}, {"name": "a", "other": 1}, {"size": 1}])
def test_wrong_arguments_are_refused(named: dict[str, Any]) -> None:
    for made in (Record, Dataclass):
        with pytest.raises(TypeError):
            made(**named)


def test_defaults_from_a_factory_are_not_shared() -> None:
    assert Record("a").table is not Record("a").table


def test_what_is_compared_decides_on_equality_and_hash() -> None:
    @record
    class Point:
        x: int
        label: str = field(default="", compare=False)

    assert Point(1, "a") == Point(1, "b")
    assert hash(Point(1, "a")) == hash(Point(1, "b"))
    assert Point(1) != Point(2)
    assert Point(1) != (1,)


def test_a_record_cannot_be_changed() -> None:
    made = Record("a")
    with pytest.raises(FrozenInstanceError):
        made.name = "b"
    with pytest.raises(FrozenInstanceError):
        del made.name
    assert not hasattr(made, "__dict__")


def test_a_record_is_matched_by_position() -> None:
    match Record("a", 3):
        case Record(name, size):
            assert (name, size) == ("a", 3)


def test_fields_that_are_given_by_name_only_may_follow_defaults() -> None:
    @record(kw_only=True)
    class Base:
        span: int = 0

    @record(kw_only=True)
    class Derived(Base):
        name: str

    assert (Derived(name="a").span, Derived(name="a", span=1).name) == (0, "a")
    with pytest.raises(TypeError):
        Derived("a")


def test_the_end_of_making_a_record_is_its_own() -> None:
    @record
    class Checked:
        size: int

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError("negative")

    assert Checked(1).size == 1
    with pytest.raises(ValueError, match="negative"):
        Checked(-1)


NOT_NEEDED = (
    *("planc.syntax.recovery", "planc.syntax.messages", "planc.syntax.islands", "planc.syntax.blocks"),
    *(
        "planc.cli.support.fixing",
        "planc.cli.commands.run",
        "planc.cli.commands.diff",
        "planc.cli.commands.fmt",
        "planc.graph.artifact",
    ),
    *("planc.cli.support.deep", "planc.runtime", "planc.diff", "planc.fmt", "planc.capacity.fits"),
    *("planc.plan.foreign_training", "planc.plan.foreign_parallelism", "statistics"),
    *("torch", "transformers", "numpy", "rich", "pydantic", "asyncio", "multiprocessing"),
)


def test_a_clean_check_loads_only_what_it_needs() -> None:
    """What is loaded for every plan, most users wait for."""
    program = (
        "import sys\n"
        "from planc.cli.main import main\n"
        "code = main(['check', 'plans/quickstart.plan'])\n"
        f"print(sorted(set({NOT_NEEDED!r}) & set(sys.modules)))\n"
        "sys.exit(code)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_SECONDS
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == "[]"


def test_what_a_check_loads_is_made_of_records() -> None:
    """`dataclass` would cost a check a quarter of a millisecond for each class."""
    program = (
        "import sys\n"
        "from planc.cli.main import main\n"
        "code = main(['check', 'plans/quickstart.plan'])\n"
        "for module in [m for name, m in sys.modules.items() if name.startswith('planc.')]:\n"
        "    for one in vars(module).values():\n"
        "        of_dataclass = getattr(one, '__dataclass_params__', None)\n"
        "        if of_dataclass and of_dataclass.frozen and '__slots__' in vars(one):\n"
        "            print('frozen:', one.__module__, one.__name__)\n"
        "sys.exit(code)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_SECONDS
    )
    frozen = {line for line in result.stdout.splitlines() if line.startswith("frozen:")}
    assert frozen == {"frozen: planc.source Span"}, "ordering is what `record` does not do"
