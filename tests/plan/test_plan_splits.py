"""Splits are those that `datasets` reads: no more, no less, and without its import."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planc.api import check_source
from planc.plan.conversations import split_problem
from planc.source import SourceFile
from tests.patience import WAIT_SECONDS
from tests.plans import PLANS, TINY

NAMES = st.sampled_from(["train", "test", "a.b", "ä_1", "", "tr-ain", "a."])
BOUNDS = st.sampled_from(["", "5", "-5", "10%", "-100%", "101%", "1_0", "_", "1__0", "x", "1.5%", "٣", "--1"])
SLICES = st.one_of(
    st.just(""), st.builds("[{}:{}]".format, BOUNDS, BOUNDS), st.sampled_from(["[5]", "[:", "[1:2:3]", "[]"])
)
ROUNDINGS = st.sampled_from(["", "(closest)", "(pct1_dropremainder)", "(other)", "()", "(closest"])
PARTS = st.builds("{}{}{}".format, NAMES, SLICES, ROUNDINGS)
SPLITS = st.lists(PARTS, min_size=1, max_size=4).flatmap(
    lambda parts: st.sampled_from(["+", " + ", "  +", "++"]).map(lambda sign: sign.join(parts))
)


def is_read(split: str) -> bool:
    """Whether `datasets` itself reads a split."""
    from datasets.arrow_reader import ReadInstruction

    try:
        ReadInstruction.from_spec(split)
    except (ValueError, AssertionError):
        return False
    return True


@settings(max_examples=500)
@given(SPLITS)
@example("train[:10%](pct1_dropremainder)+test+train[90%:]")
@example("train[:10%]+test[:5%](pct1_dropremainder)")
@example("test+train[:10%]+test[:5%](pct1_dropremainder)")
@example(" train")
@example("train ")
@example("train[10:20%]")
def test_a_split_is_right_if_datasets_reads_it(split: str) -> None:
    assert (split_problem(split) is None) == is_read(split), split


@pytest.mark.parametrize("source", ['hf_dataset("a.parquet"', 'chat("a.jsonl"'])
@pytest.mark.parametrize(
    ("split", "problem"),
    [
        ("train[:10 %]", "`train[:10 %]` is neither a name nor a part such as `train[:10%]`"),
        ("train[:110%]", "a bound of `train[:110%]` is beyond 100 %"),
        ("train[:10](closest)", "`train[:10](closest)` has a rounding and no percent"),
    ],
)
def test_a_wrong_split_is_an_error_at_its_value(source: str, split: str, problem: str) -> None:
    text = TINY.replace('text("data/*.txt")', f'{source}, split = "{split}")')
    assert text != TINY
    found = check_source(SourceFile("x.plan", text), base=PLANS).diagnostics
    (one,) = (one for one in found if "is not a split" in one.primary.text)
    assert one.primary.text == f"`{split}` is not a split: {problem}"
    line = text.splitlines()[one.primary.span.line - 1]
    assert line[one.primary.span.column - 1 :].startswith(f'"{split}"')


def test_a_check_of_a_split_imports_no_datasets() -> None:
    script = (
        "import sys\n"
        "from planc.plan.conversations import split_problem\n"
        "assert split_problem('train[:10%]') is None and split_problem('train[') is not None\n"
        "assert 'datasets' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=WAIT_SECONDS)
