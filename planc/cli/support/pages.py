"""Write an HTML page."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from planc.cli.support.exits import UsageError
from planc.inventory.files import write_atomically
from planc.outgoing import redactor

_SUFFIX = ".html"


def page_path(path: Path) -> Path:
    """The file to write a page to, links resolved. UsageError unless it is, or can become, a `.html` file.

    The suffix keeps a plan from being replaced by its own page.
    """
    try:
        output = path.resolve()
        is_replaceable = output.is_file() or not output.exists()
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    if not is_replaceable:
        raise UsageError(f"{path} is not a regular file")
    if output.suffix != _SUFFIX:
        raise UsageError(f"{path} is not an HTML file: name one that ends in {_SUFFIX}")
    return output


def write_page(path: Path, text: str) -> None:
    """Write or replace a page, without the environment's secrets. UsageError if that fails."""
    try:
        write_atomically(page_path(path), text=redactor(os.environ)(text))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    print(f"wrote {path}", file=sys.stderr)
