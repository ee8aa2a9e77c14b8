"""Prints every bad plan with what planc answers: `python -m tests.robustness.table`.

The declared code stands beside those that are seen, then the time and the memory that the answer took. The
exit code is 1 when an answer is not the declared one, is late, or touches anything.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.robustness.bad_inputs import CASES, Case
from tests.robustness.outcomes import Answer, answers, misconduct

_MAX_CODES = 3


def verdict(case: Case, answer: Answer) -> str:
    """`ok`, or what is wrong with an answer."""
    wrong = [*misconduct(answer.machine), *misconduct(answer.person)]
    expected = case.exit_code if case.code else 0
    if not answer.machine.code == answer.person.code == expected:
        wrong.append(f"exit codes {answer.machine.code} and {answer.person.code}, not {expected}")
    if case.code and not any(case.help in (one["help"] or "") for one in answer.fitting(case)):
        wrong.append(f"no {case.code} on line {case.line} that helps")
    return "; ".join(wrong) or "ok"


def row(case: Case, answer: Answer) -> str:
    """One line of the table; seconds and megabytes of the slower and larger of two runs."""
    number, _, name = case.row.partition(" ") if case.row[0].isdigit() else ("", "", case.row)
    codes = list(dict.fromkeys(one["code"] for one in answer.errors))
    seen = " ".join(codes[:_MAX_CODES]) + (" ..." if len(codes) > _MAX_CODES else "")
    seconds = max(answer.machine.seconds, answer.person.seconds)
    megabytes = max(answer.machine.peak_bytes, answer.person.peak_bytes) / 2**20
    return (
        f"{number:>3} {name:<32}{case.code or 'sound':<9}{seen or 'sound':<19}{seconds:>6.2f}"
        f"{megabytes:>7.0f}  {verdict(case, answer)}"
    )


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = answers(Path(folder))
    print(f"{'row':>3} {'input':<32}{'declared':<9}{'seen':<19}{'s':>6}{'MB':>7}  verdict")
    for case in CASES:
        print(row(case, found[case.row]))
    num_ok = sum(verdict(case, found[case.row]) == "ok" for case in CASES)
    print(f"{num_ok} of {len(CASES)} as declared")
    return 0 if num_ok == len(CASES) else 1


if __name__ == "__main__":
    sys.exit(main())
