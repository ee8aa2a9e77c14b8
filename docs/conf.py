"""Sphinx's settings. `make docs` builds the site; `tests/docs` builds it too, with every warning an error."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pygments.lexer import RegexLexer, bygroups
from pygments.token import Generic, Text
from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import generate  # noqa: E402

from planc import __version__  # noqa: E402
from planc.highlight.pygments import PlanLexer  # noqa: E402

project = "planc"
author = "the planc authors"
copyright = author
release = version = __version__

extensions = ["myst_parser", "sphinx_copybutton", "sphinx_design"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_generated", "_build"]
nitpicky = True

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"planc {__version__}"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
html_static_path: list[str] = []
# The prompt of a session and what the command printed are not part of what one copies.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"

_NAMED_FENCE = re.compile(
    r"^```(plan|yaml|json|python|text) (\S+\.\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


class SessionLexer(RegexLexer):
    """A prompt, a command, and what it prints: whatever that is, it is not read as a shell's."""

    name = "session"
    tokens = {  # noqa: RUF012 (as Pygments declares it)
        "root": [
            (r"^(\$ )((?:[^\n\\]|\\(?:.|\n))+\n?)", bygroups(Generic.Prompt, Text)),
            (r"[^\n]*\n|[^\n]+", Generic.Output),
        ]
    }


def name_files(app: Sphinx, docname: str, source: list[str]) -> None:
    """Shows the name of a file over its text: "```plan first.plan" becomes a block with a caption."""
    source[0] = _NAMED_FENCE.sub(r"```{code-block} \1\n:caption: \2\n\n\3```", source[0])


def setup(app: Sphinx) -> None:
    generate.write(HERE)
    app.add_lexer("plan", PlanLexer)
    app.add_lexer("console", SessionLexer)
    app.connect("source-read", name_files)
