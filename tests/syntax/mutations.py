"""Damaged plans: every kind of slip an editor, a merge or an attacker makes."""

from __future__ import annotations

import re

from hypothesis import strategies as st

from tests.plans import canonical_plans

TOKEN = re.compile(r'"[^"\n]*"|#[^\n]*|[A-Za-z_]\w*|-?\d[\w.+]*|->|==|\.\.|[ \t]+|\s|.')
TEXTS = tuple(path.read_text(encoding="utf-8") for path in canonical_plans())
STRANGE = (
    *(
        "1e999",
        "1e-400",
        "2.0",
        "-1",
        "0.5",
        "0",
        "9223372036854775808",
        "9" * 40,
        "1_000",
        "60 GiB",
        "3 steps",
    ),
    *("true", "none", "override", "param", "on", "expect", "auto", "x", "tp", "steps"),
    *('"**"', '"{a,b}"', '"{"', '"a..b"', '"{0..999999}"', '"*a*a*b"', '""', '"ä"', '"'),
    *(
        "Shard(9)",
        "Replicate()",
        "f(",
        "[",
        "]",
        "{",
        "}",
        "(",
        ")",
        ",",
        "=",
        "->",
        "==",
        "..",
        "#",
        "\n",
        "\r",
    ),
    *("\t", "\0", "\ufeff", "\u202e", "\ud800", "٣", "é", "$", "'"),
)
WORDS = (
    tuple(sorted({token for text in TEXTS for token in TOKEN.findall(text) if not token.isspace()})) + STRANGE
)


def _kind(token: str) -> str:
    return "word" if token[:1].isalpha() else "number" if token[:1].isdecimal() else token[:1]


@st.composite
def damaged_characters(draw: st.DrawFn) -> str:
    """A plan with characters deleted, inserted, doubled or swapped."""
    characters = list(draw(st.sampled_from(TEXTS)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(characters) - 2))
        match draw(st.sampled_from(["delete", "insert", "double", "swap"])):
            case "delete":
                del characters[at]
            case "insert":
                characters.insert(at, draw(st.characters() | st.sampled_from(STRANGE)))
            case "double":
                characters.insert(at, characters[at])
            case _:
                characters[at], characters[at + 1] = characters[at + 1], characters[at]
    return "".join(characters)


@st.composite
def damaged_tokens(draw: st.DrawFn) -> str:
    """A plan with tokens deleted, doubled, swapped or replaced, most often by one of their kind."""
    tokens = TOKEN.findall(draw(st.sampled_from(TEXTS)))
    solid = [at for at, token in enumerate(tokens) if not token.isspace()]
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.sampled_from(solid))
        match draw(st.sampled_from(["like", "like", "like", "any", "delete", "double", "swap"])):
            case "like":
                alike = [word for word in WORDS if _kind(word) == _kind(tokens[at])]
                tokens[at] = draw(st.sampled_from(alike or WORDS))
            case "any":
                tokens[at] = draw(st.sampled_from(WORDS))
            case "delete":
                tokens[at] = ""
            case "double":
                tokens[at] = f"{tokens[at]} {tokens[at]}"
            case _:
                other = draw(st.sampled_from(solid))
                tokens[at], tokens[other] = tokens[other], tokens[at]
    return "".join(tokens)


def damaged() -> st.SearchStrategy[str]:
    return damaged_characters() | damaged_tokens()
