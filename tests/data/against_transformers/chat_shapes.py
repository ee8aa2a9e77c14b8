"""Chat templates in the shapes of published ones, written for these tests, in `shapes/`.

In `NAME.jinja`, `[[` and `]]` are around what the model writes: the marks become `{% generation %}` in one
variant, and are left out in the other. A shape that writes a turn in one piece has that variant in
`NAME.whole.jinja`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent / "shapes"


@dataclass(frozen=True)
class Shape:
    name: str
    alternates: bool = False
    """Whether it refuses conversations in which questions and answers do not alternate."""
    takes_tools: bool = False
    takes_reasoning: bool = False
    takes_parts: bool = False

    @property
    def marked(self) -> str:
        """The template that marks answers."""
        return self._text().replace("[[", "{% generation %}").replace("]]", "{% endgeneration %}")

    @property
    def plain(self) -> str:
        """The template without marks."""
        whole = _FOLDER / f"{self.name}.whole.jinja"
        if whole.exists():
            return whole.read_text(encoding="utf-8")
        return self._text().replace("[[", "").replace("]]", "")

    def _text(self) -> str:
        return (_FOLDER / f"{self.name}.jinja").read_text(encoding="utf-8")


_ALL = (
    Shape("chatml"),
    Shape("llama-3", takes_tools=True),
    Shape("mistral", alternates=True),
    Shape("gemma", alternates=True, takes_parts=True),
    Shape("qwen-3", takes_tools=True, takes_reasoning=True),
    Shape("deepseek", takes_reasoning=True),
    Shape("phi-3"),
    Shape("phi-4", takes_tools=True),
    Shape("command"),
    Shape("vicuna"),
    Shape("no-ends-of-turn"),
)
SHAPES: Mapping[str, Shape] = {shape.name: shape for shape in _ALL}
