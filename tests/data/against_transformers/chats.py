"""Conversations as ids and masks: planc's beside those of `apply_chat_template`.

Where a template marks answers, masks are those that transformers returns. Where it does not, an answer is
what the same template with marks has between them, and a token is trained on that holds any of it: the
places of tokens come from `AutoTokenizer`. Nothing of planc makes what it is compared with.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from planc.data_sources.kinds import ChatSource
from planc.runtime.data.documents import source_documents
from planc.runtime.data.errors import DataError
from planc.runtime.data.packing import encode
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.spec import DataSpec
from tests.data.against_transformers import chat_tokenizers
from tests.data.against_transformers.chat_rows import Row, row
from tests.data.against_transformers.chat_shapes import SHAPES, Shape

NUM_CONVERSATIONS = 5_000
_WEIGHTS = ("weight", "train", "trainable", "loss", "loss_mask")
Pair = tuple[list[int], list[int]]
"""Ids, and for each 1 if it is trained on, else 0."""


@dataclass(frozen=True)
class Case:
    kind: str
    shape: str
    is_marked: bool
    train_on: Any = "answers"
    thinking: Any = "last"


def compare(
    folder: Path,
    *,
    num_conversations: int = NUM_CONVERSATIONS,
    kinds: Sequence[str] = (),
    is_in_turn: bool = False,
) -> int:
    """Print how many conversations differ, by shape; the number of them.

    In turn, each kind of tokenizer meets every shape, and one of them meets it marked.
    """
    chosen = cases(kinds or [*chat_tokenizers.KINDS])
    if is_in_turn:
        names = [*SHAPES]
        chosen = [
            case
            for case in chosen
            if (kinds.index(case.kind) + names.index(case.shape) + case.is_marked) % len(kinds) == 0
        ]
    each = -(-num_conversations // len(chosen))
    counts: dict[str, Counter[str]] = {shape: Counter() for shape in SHAPES}
    for number, case in enumerate(chosen):
        for fault in differences(
            case, folder / str(number), seed=number, num_rows=each, count=counts[case.shape]
        ):
            print(f"  {case}: {fault}")
    print(f"{'template':<20} {'conversations':>13} {'tokens':>9} {'trained on':>10} {'different':>9}")
    total: Counter[str] = Counter()
    for shape, count in counts.items():
        _print(shape, count)
        total += count
    _print(f"{len({case.kind for case in chosen})} tokenizers", total)
    return total["different"]


def _print(name: str, count: Counter[str]) -> None:
    figures = (count["conversations"], count["tokens"], count["trained"], count["different"])
    print(f"{name:<20} {figures[0]:>13_} {figures[1]:>9_} {figures[2]:>10_} {figures[3]:>9_}")


def cases(kinds: Sequence[str]) -> list[Case]:
    """Every tokenizer with every shape, marked and not; other settings take turns."""
    settings = itertools.cycle(
        [
            ("answers", "last"),
            ("answers", "last"),
            ("last_answer", "last"),
            ("answers", "all"),
            ("all", "last"),
        ]
    )
    return [
        Case(kind, shape, is_marked, *next(settings))
        for kind in kinds
        for shape in SHAPES
        for is_marked in (True, False)
    ]


def differences(case: Case, folder: Path, *, seed: int, num_rows: int, count: Counter[str]) -> list[str]:
    """What differs in random rows of one case, each in a line."""
    shape = SHAPES[case.shape]
    draw = random.Random(seed)
    rows = [row(draw, shape, has_weights=case.train_on == "answers") for _ in range(num_rows)]
    tokenizer_folder = chat_tokenizers.save(case.kind, folder / "tokenizer")
    template = shape.marked if case.is_marked else shape.plain
    (tokenizer_folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    text = "".join(json.dumps(one, ensure_ascii=bool(seed % 2)) + "\n" for one in rows)
    (folder / "rows.jsonl").write_text(text, encoding="utf-8")
    day = datetime.now().date().isoformat()
    loaded = AutoTokenizer.from_pretrained(tokenizer_folder, local_files_only=True)
    expected = [_expected(one, case, shape, loaded) for one in rows]
    faults = []
    number = 0
    try:
        made, end = _made(case, folder, day=day)
    except DataError as error:
        made, end = [], None
        faults.append(error.message)
        count["different"] += num_rows
    for one, pairs in zip(rows, expected, strict=True) if made else ():
        count["conversations"] += 1
        found, number = made[number : number + len(pairs)], number + len(pairs)
        is_equal = len(found) == len(pairs)
        for (ids, mask), (other_ids, other_mask) in zip(pairs, found, strict=False):
            count["tokens"] += len(ids)
            count["trained"] += sum(mask)
            rest = other_ids[len(ids) :]
            is_ended = rest == ([] if ids and ids[-1] == end else [end])
            is_equal &= ids == other_ids[: len(ids)] and mask == other_mask[: len(ids)] and is_ended
        if not is_equal:
            count["different"] += 1
            texts = [[_shown(pair, loaded) for pair in part] for part in (pairs, found)]
            faults.append(json.dumps(one, ensure_ascii=False) + "".join(f"\n    {part}" for part in texts))
    shutil.rmtree(folder)
    return faults


def _shown(pair: Pair, tokenizer: Any) -> str:
    """The tokens of ids, with brackets around each that is trained on."""
    tokens = tokenizer.convert_ids_to_tokens(pair[0])
    return "".join(f"[{one}]" if is_target else one for one, is_target in zip(tokens, pair[1], strict=True))


def _made(case: Case, folder: Path, *, day: str) -> tuple[list[Pair], int]:
    """What planc makes of the rows in a folder, and the id that ends a document."""
    source = ChatSource(("rows.jsonl",), train_on=case.train_on, thinking=case.thinking, date=day)
    wanted = want(DataSpec(source, "tokenizer", 64, 0), base=folder)
    with contextlib.closing(wanted.tokenizer.load()) as tokenizer:
        found = encode(source_documents(source, base=folder), tokenizer=tokenizer)
        pairs = [(one.tokens.tolist(), (one.is_target.astype(int)).tolist()) for one in found]  # type: ignore[union-attr]
        return pairs, tokenizer.end_of_document


def _expected(one: Row, case: Case, shape: Shape, tokenizer: Any) -> list[Pair]:
    messages = one["messages"]
    if case.thinking != "all":
        return [_pair(messages, one, case, shape, tokenizer, first=0)]
    starts = [
        index
        for index in range(1, len(messages))
        if messages[index]["role"] == "user"
        and any(m["role"] == "assistant" for m in messages[_last_user(messages, index) : index])
    ]
    bounds = [0, *starts, len(messages)]
    turns = [(start, stop) for start, stop in itertools.pairwise(bounds)]
    if len(turns) > 1 and all(m["role"] != "assistant" for m in messages[turns[-1][0] :]):
        turns[-2:] = [(turns[-2][0], len(messages))]
    return [_pair(messages[:stop], one, case, shape, tokenizer, first=start) for start, stop in turns]


def _last_user(messages: list[dict[str, Any]], index: int) -> int:
    """The last question before a message; 0 if there is none."""
    return max((at for at in range(index) if messages[at]["role"] == "user"), default=0)


def _pair(
    messages: list[dict[str, Any]], one: Row, case: Case, shape: Shape, tokenizer: Any, *, first: int
) -> Pair:
    """The ids and the mask of one conversation, of which answers before `first` are not trained on."""
    arguments = {"tools": one.get("tools"), **one.get("chat_template_kwargs", {})}
    marked = tokenizer.apply_chat_template(
        messages, chat_template=shape.marked, return_dict=True, return_assistant_tokens_mask=True, **arguments
    )
    texts = [
        tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **arguments)
        for template in (shape.marked, shape.plain)
    ]
    assert texts[0] == texts[1], "both variants of a shape write the same"
    ids = marked["input_ids"]
    if case.train_on == "all":
        encoded = tokenizer(texts[0], add_special_tokens=False, return_offsets_mapping=True)
        return ids, [int(start < stop) for start, stop in encoded["offset_mapping"]]
    cleaned = [{key: value for key, value in m.items() if value is not None} for m in messages]
    _, (spans,) = render_jinja_template(
        [cleaned],
        chat_template=shape.marked,
        return_assistant_tokens_mask=True,
        **{**tokenizer.special_tokens_map, **arguments},
    )
    answers = [index for index, m in enumerate(messages) if m["role"] == "assistant"]
    assert len(answers) == len(spans), "a shape marks every answer once"
    kept = [
        span
        for index, span in zip(answers, spans, strict=True)
        if index >= first
        and all(messages[index].get(key, 1) for key in _WEIGHTS)
        and (case.train_on == "answers" or index == answers[-1])
    ]
    if not case.is_marked:
        encoded = tokenizer(texts[0], add_special_tokens=False, return_offsets_mapping=True)
        places = encoded["offset_mapping"]
        return ids, [int(any(max(a, c) < min(b, d) for c, d in kept)) for a, b in places]
    if len(kept) == len(spans):
        return ids, marked["assistant_masks"]
    return ids, _mask_of_spans(tokenizer(texts[0], add_special_tokens=False), kept)


def _mask_of_spans(encoded: Any, spans: Sequence[tuple[int, int]]) -> list[int]:
    """As transformers makes a mask of the marked parts of a text, for some of the parts."""
    mask = [0] * len(encoded["input_ids"])
    for start, stop in spans:
        first, last = encoded.char_to_token(0, start), encoded.char_to_token(0, stop - 1)
        if first is None:
            break
        for place in range(first, last + 1 if last else len(mask)):
            mask[place] = 1
    return mask
