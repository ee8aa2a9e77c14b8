"""`python -m tests.data.against_transformers [tokenizers]`"""

from __future__ import annotations

import sys

from tests.data.against_transformers import tokenizers


def main() -> int:
    compared, built = tokenizers.compare()
    kinds = {name.split()[0] for name in built if "Tokenizer" in name.split()[0]}
    print(f"tokenizers: {len(built)} directories, of {len(kinds)} classes")
    print("\n".join(compared.lines()), flush=True)
    return 1 if compared.different else 0


if __name__ == "__main__":
    sys.exit(main())
