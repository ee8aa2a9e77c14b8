"""Numbers of what was compared, and the first differences in words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_MAX_EXAMPLES = 20


@dataclass
class Comparison:
    """How many pairs of values were compared by subject, and how many of them differ."""

    compared: Counter[str] = field(default_factory=Counter)
    different: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, subject: str, where: str, *, planc: object, transformers: object) -> None:
        """Compare one value."""
        self.compared[subject] += 1
        if planc != transformers:
            self.different[subject] += 1
            if len(self.examples) < _MAX_EXAMPLES:
                self.examples.append(
                    f"{where}: {subject}: planc {planc!r:.300}, transformers {transformers!r:.300}"
                )

    def lines(self) -> list[str]:
        """A line for each subject, and one for each example."""
        return [
            *(
                f"{subject}: {number:_} compared, {self.different[subject]:_} different"
                for subject, number in self.compared.items()
            ),
            *self.examples,
        ]
