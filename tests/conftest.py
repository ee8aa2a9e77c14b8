"""What all tests share: isolation from the user who runs them, and the options that change a session."""

from __future__ import annotations

import gc
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.isolation import changed_files, files_of_checkout, isolate
from tests.limits import LIMIT_SECONDS, SLOW_LIMIT_SECONDS, limited
from tests.slow import longest_first, mark_sampled

_HOME = pytest.StashKey[Path]()
_FILES = pytest.StashKey[frozenset[str]]()
_TRACE = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-goldens", action="store_true", help="rewrite expected outputs; read the change in review"
    )
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="run modules, and the tests of each, in another order"
    )


# How long one example takes says more about what else the machine does than about the code.
settings.register_profile("planc", deadline=None)
settings.load_profile("planc")


def pytest_configure(config: pytest.Config) -> None:
    # A copy: while a test runs, pytest has stderr redirected into a file.
    config.stash[_TRACE] = os.dup(2)
    # Before any library reads where its cache lies. Workers of xdist get what this process has set.
    if hasattr(config, "workerinput"):
        return
    home = config.stash[_HOME] = Path(tempfile.mkdtemp(prefix="home-"))
    isolate(os.environ, home=home)
    files = files_of_checkout()
    if files is not None:
        config.stash[_FILES] = files | changed_files()


def pytest_unconfigure(config: pytest.Config) -> None:
    home = config.stash.get(_HOME, None)
    if home is not None:
        shutil.rmtree(home, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collects without looking for garbage: modules, libraries and tests stay until the session's end.

    Else each full collection of a test's garbage would go through all of them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_sampled(items)
    seed = config.getoption("--shuffle")
    if seed is None:
        longest_first(items, Path(__file__).parent)
        return
    order = random.Random(seed)
    keys = {module: order.random() for module in dict.fromkeys(item.path for item in items)}
    # Modules stay whole: what a module makes once should be made once.
    items.sort(key=lambda item: (keys[item.path], order.random()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    return (yield from _limited(item, "setup"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    return (yield from _limited(item, "call"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    return (yield from _limited(item, "teardown"))


def _limited(item: pytest.Item, phase: str) -> Generator[None, None, None]:
    seconds = SLOW_LIMIT_SECONDS if item.get_closest_marker("slow") else LIMIT_SECONDS
    with limited(f"{item.nodeid} ({phase})", seconds=seconds, trace=item.config.stash[_TRACE]):
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    # Lazy: it imports xdist, which a run without workers may lack.
    from tests.workers import FilesOnce

    # Files stay in the order of `longest_first`.
    config.option.loadscopereorder = False
    return FilesOnce(config, log)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a session whose tests have written into the checkout."""
    before = session.config.stash.get(_FILES, None)
    if before is None or session.config.getoption("--update-goldens"):
        return
    new = sorted(((files_of_checkout() or frozenset()) | changed_files()) - before)
    if new:
        print(f"\nfiles of the checkout were written during the tests: {', '.join(new[:20])}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def match_golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compares a text with a golden file, or rewrites the file under --update-goldens."""

    def match(path: Path, text: str) -> None:
        if request.config.getoption("--update-goldens"):
            path.write_text(text, encoding="utf-8", newline="\n")
        assert text == path.read_text(encoding="utf-8"), f"{path.name} differs; see --update-goldens"

    return match


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the models and the text of `tests.parity`, for the tests of one module."""
    # Lazy: most tests need none of it.
    from tests.parity.cases import make_workspace

    return make_workspace(tmp_path_factory.mktemp("workspace") / "models")
