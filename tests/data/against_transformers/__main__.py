"""Compare planc's data with transformers': `python -m tests.data.against_transformers [PART]`.

It exits with 1 on a difference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.data.against_transformers import chats, tokenizers


def _tokenizers(folder: Path) -> int:
    compared, built = tokenizers.compare()
    kinds = {name.split()[0] for name in built if "Tokenizer" in name.split()[0]}
    print(f"tokenizers: {len(built)} directories, of {len(kinds)} classes")
    print("\n".join(compared.lines()), flush=True)
    return 1 if compared.different else 0


PARTS: Mapping[str, Callable[[Path], int]] = {"tokenizers": _tokenizers, "chats": chats.compare}
"""Each prints what it compares, in an empty directory, and returns 0 if nothing differs."""


def main() -> int:
    num_different = 0
    for name in sys.argv[1:] or PARTS:
        with TemporaryDirectory() as folder:
            num_different += PARTS[name](Path(folder))
    return 1 if num_different else 0


if __name__ == "__main__":
    sys.exit(main())
