"""The page on a plan's own code, from the docstrings of its decorators."""

from __future__ import annotations

import inspect

from planc import extend

_INTRODUCTION = """\
# extension

`extension "losses.py"`, at the top of a plan, names a Python file in the plan's directory. Each function with
a decorator of `planc.extend` then has a name that the plan can use where it names one of planc's own:

    extension "losses.py"

    train {
      loss = focal(gamma = 2.0)
    }

- The file is a part of the plan: its SHA-256 is in the plan's hash, in checkpoints, and in `planc diff`. A
  run with another text is refused.
- planc reads the file's syntax to know what it registers. Only `planc run` runs it, and with
  `--run-extensions` also `check`, `data`, `report`, `tune` and `verify`.
- It imports installed packages, and no other file of the plan's directory.
- Before the first step every rank tries what the code does, and refuses what would train something else on
  another mesh. `planc check --deep --run-extensions` and `planc verify --run-extensions` print what it
  showed."""


def extension_page() -> str:
    """The contract of every kind."""
    kinds = [_kind(word, kind.setting) for word, kind in extend.KINDS.items()]
    return "\n\n".join((_INTRODUCTION, *kinds)) + "\n"


def _kind(word: str, setting: str) -> str:
    return f"## {word}: `{setting}`\n\n{inspect.getdoc(getattr(extend, word))}"
