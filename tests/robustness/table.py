"""Prints every bad plan and file with what planc answers: `python -m tests.robustness.table`.

The declared code stands beside those that are seen, then the time and the memory that the answer took. The
exit code is 1 when an answer is not the declared one, is late, or touches anything.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.robustness.bad_files import ELSEWHERE, FILE_CASES, FileCase
from tests.robustness.bad_inputs import CASES, Case
from tests.robustness.file_answers import FileAnswer, Folders, answer, problems
from tests.robustness.outcomes import Answer, answers, misconduct

_MAX_CODES = 3
_MAX_SECONDS = 2.0


def verdict(case: Case, answer: Answer) -> str:
    """`ok`, or what is wrong with an answer."""
    wrong = [*misconduct(answer.machine), *misconduct(answer.person)]
    if _seconds(answer) >= _MAX_SECONDS:
        wrong.append(f"took {_seconds(answer):.1f} s")
    expected = case.exit_code if case.code else 0
    if not answer.machine.code == answer.person.code == expected:
        wrong.append(f"exit codes {answer.machine.code} and {answer.person.code}, not {expected}")
    if case.code and not any(case.help in (one["help"] or "") for one in answer.fitting(case)):
        wrong.append(f"no {case.code} on line {case.line} that helps")
    return "; ".join(wrong) or "ok"


def _seconds(answer: Answer) -> float:
    return max(answer.machine.seconds, answer.person.seconds)


def row(case: Case, answer: Answer) -> str:
    """One line of the table; seconds and megabytes of the slower and larger of two runs."""
    number, _, name = case.row.partition(" ") if case.row[0].isdigit() else ("", "", case.row)
    codes = list(dict.fromkeys(one["code"] for one in answer.errors))
    seen = " ".join(codes[:_MAX_CODES]) + (" ..." if len(codes) > _MAX_CODES else "")
    megabytes = max(answer.machine.peak_bytes, answer.person.peak_bytes) / 2**20
    return (
        f"{number:>3} {name:<32}{case.code or 'sound':<9}{seen or 'sound':<19}{_seconds(answer):>6.2f}"
        f"{megabytes:>7.0f}  {verdict(case, answer)}"
    )


def file_row(case: FileCase, answer: FileAnswer) -> str:
    """One line of the second table: the command, the exit code that is declared, and the one that is seen."""
    number, _, name = case.row.partition(" ")
    wrong = "; ".join(problems(case, answer)) or "ok"
    command = " ".join(case.command[:2])
    return (
        f"{number:>3} {name:<32}{command:<20}{case.code:>9}{answer.code!s:>6}{answer.seconds:>7.1f}  {wrong}"
    )


def print_files(folder: Path) -> int:
    """How many answers to bad files and environments are not as declared."""
    folders, num_wrong = Folders(folder), 0
    print(f"\n{'row':>3} {'input':<32}{'command':<20}{'declared':>9}{'seen':>6}{'s':>7}  verdict")
    for number, case in enumerate(FILE_CASES):
        found = answer(case, folders.of(case, number))
        num_wrong += any(problems(case, found))
        print(file_row(case, found), flush=True)
    for row, suite in ELSEWHERE.items():
        number_of_row, _, name = row.partition(" ")
        print(f"{number_of_row:>3} {name:<32}{suite}")
    print(
        f"{len(FILE_CASES) - num_wrong} of {len(FILE_CASES)} as declared; those of several processes by suite"
    )
    return num_wrong


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = answers(Path(folder))
    print(f"{'row':>3} {'input':<32}{'declared':<9}{'seen':<19}{'s':>6}{'MB':>7}  verdict")
    for case in CASES:
        print(row(case, found[case.row]))
    num_ok = sum(verdict(case, found[case.row]) == "ok" for case in CASES)
    print(f"{num_ok} of {len(CASES)} as declared")
    with tempfile.TemporaryDirectory() as folder:
        num_wrong = print_files(Path(folder))
    return 0 if num_ok == len(CASES) and not num_wrong else 1


if __name__ == "__main__":
    sys.exit(main())
