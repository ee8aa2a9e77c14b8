"""A conversation as text, with the parts that are trained on, and those parts as tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Protocol

from planc.runtime.data.chat_rows import ANSWERING_ROLES, IMAGE_PART, REASONING, Message
from planc.runtime.data.encoding.answers import Places, changed
from planc.runtime.data.encoding.template import (
    Compiled,
    Render,
    Span,
    TemplateFault,
    require_no_address,
    unmarked,
)
from planc.runtime.data.encoding.turn import Turn, with_ends

_ALWAYS = frozenset(("role", "content", "tool_call_id"))
"""Keys that every template reads; and which call a result belongs to, which many leave to the order."""
_PART = re.compile(r"\{'type': 'text'|\{'text': |\{\"type\": \"text\"|\{\"text\": ")
"""A list of parts as a template writes it that does not expect one."""


class Encoding(Protocol):
    """The tokens of one text, as the tokenizers library has them."""

    @property
    def offsets(self) -> Sequence[Span]: ...
    def char_to_token(self, char_pos: int, /) -> int | None: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Rendered:
    """`targets` are the parts that are trained on; `are_marked` if the template marks them."""

    text: str
    targets: Sequence[Span]
    are_marked: bool = False
    is_text: bool = False
    """Whether no template wrote it: then it begins and ends as other texts do."""
    trains_end: bool = False
    """Whether the end of the document that follows is trained on."""
    stops: bool = True
    """Whether an end of a turn is trained on, or that of the document, as far as it is known."""
    unread: Sequence[str] = ()
    """Keys of the row that the template does not read."""


def rendered(talk: Mapping[str, Any], template: Compiled | None, turn: Turn | None = None) -> Rendered:
    """The text of a conversation as `chat_rows.talks` has it. Raises TemplateFault.

    `turn` is what the template writes around answers, if it is known.
    """
    rendering = _rendered(talk, template, turn)
    if rendering.is_text or template is None:
        return rendering
    if turn is not None:
        rendering = _ended(rendering, talk, turn, trains_ends=template.template.trains_ends)
    messages, tools, arguments = talk["messages"], talk.get("tools"), talk["arguments"]
    unread = _unread(messages, tools=tools, arguments=arguments, template=template)
    return replace(rendering, unread=unread) if unread else rendering


def _rendered(talk: Mapping[str, Any], template: Compiled | None, turn: Turn | None) -> Rendered:
    if "completion" in talk:
        start = len(talk["prompt"]) if talk["target"] == "completion" else 0
        text, trains_end = talk["prompt"] + talk["completion"], talk.get("trains_end", True)
        return Rendered(text, ((start, len(text)),), is_text=True, trains_end=trains_end, stops=trains_end)
    if template is None:
        raise TemplateFault("there is none for this row", help="name one in `chat(..., template = ...)`")
    trains_ends = template.template.trains_ends
    if trains_ends is not None and turn is None:
        raise TemplateFault(
            "it renders no plain conversation, so the end of a turn is unknown",
            help="leave `train_on_end_of_turn` out",
        )
    tools = talk.get("tools")
    render = template.render(tools=tools, arguments=talk["arguments"])
    messages = _with_joined_parts(talk["messages"], render)
    if talk["target"] == "answers" and template.marks_answers:
        return _marked(messages, talk["skipped"], render)
    places = Places(messages, render, turn.endings if turn is not None else ())
    require_no_address(places.text, messages)
    if talk["target"] == "answers":
        wanted = [index for index in places.answers if index not in talk["skipped"]]
        return Rendered(places.text, [*places.answers_of(wanted)])
    start = places.start(talk["first"], is_whole=talk["target"] == "all")
    holes = [*places.whole(talk["skipped"])]
    if trains_ends is False and turn is not None:
        spans = places.answers_of([answer for answer in places.answers if answer >= talk["first"]])
        ends = (turn.end_in(places.text, span) for span in spans)
        holes = sorted((*holes, *(end for end in ends if end is not None)))
    return Rendered(places.text, _without((start, len(places.text)), holes))


def _ended(rendering: Rendered, talk: Mapping[str, Any], turn: Turn, *, trains_ends: bool | None) -> Rendered:
    """Add the ends of turns that the plan trains on to the targets, and remove the others."""
    targets, text, last = rendering.targets, rendering.text, len(talk["messages"]) - 1
    if trains_ends is not None and talk["target"] == "answers":
        targets = [*with_ends(text, targets, turn, is_trained=trains_ends)]
    ends_answer = talk["messages"][last]["role"] in ANSWERING_ROLES and last not in talk["skipped"]
    trains_end = bool(
        trains_ends and targets and ends_answer and turn.end_in(text, max(targets, key=itemgetter(1))) is None
    )
    has_end = any(end in text[slice(*one)] for one in targets for end in turn.ends if end)
    stops = trains_ends is not False and (trains_end or has_end)
    return replace(rendering, targets=targets, trains_end=trains_end, stops=stops)


def _unread(
    messages: Sequence[Message],
    *,
    tools: Sequence[object] | None,
    arguments: Mapping[str, object],
    template: Compiled,
) -> tuple[str, ...]:
    """The keys of a row that the template leaves out without so much as asking for them.

    Only what it does not mention is tried: a template may also write all keys that there are.
    """
    keys = {key for message in messages for key in message} - _ALWAYS
    if not template.words.isdisjoint(REASONING):
        keys -= {*REASONING}
    unread = keys - template.words
    unread_arguments = arguments.keys() - template.words
    other_tools = tools if "tools" in template.words else None
    if not (unread or unread_arguments or other_tools is not tools):
        return ()
    fewer = [{key: value for key, value in one.items() if key not in unread} for one in messages]
    known = {key: value for key, value in arguments.items() if key not in unread_arguments}
    text = "".join(template.render(tools=tools, arguments=arguments)(messages, False))
    if text != "".join(template.render(tools=other_tools, arguments=known)(fewer, False)):
        return ()
    # Reasoning is given under each of its names.
    reasoning = (REASONING[0],) if not unread.isdisjoint(REASONING) else ()
    return (
        *(("tools",) if other_tools is not tools else ()),
        *(("chat_template_kwargs",) if unread_arguments else ()),
        *sorted(unread - {*REASONING}),
        *reasoning,
    )


def _marked(messages: Sequence[Message], skipped: Sequence[int], render: Render) -> Rendered:
    """Render the answers that the template marks, without those of the skipped messages."""
    text, targets = unmarked("".join(render(messages, False)))
    require_no_address(text, messages)
    if skipped:
        other, others = unmarked("".join(render(changed(messages, at=skipped), False)))
        if len(others) != len(targets):
            raise TemplateFault(
                "its marks of answers change with the words in them, so those of a message are unknown",
                help="remove the messages that are not trained on, or write `train_on = all` in `chat(...)`",
            )
        both = zip(targets, others, strict=True)
        targets = [one for one, also in both if text[slice(*one)] == other[slice(*also)]]
    return Rendered(text, targets, are_marked=True)


def _with_joined_parts(messages: Sequence[Message], render: Render) -> Sequence[Message]:
    """The messages with lists of parts as texts, unless the template writes the texts of such a list."""
    contents = [message["content"] for message in messages if isinstance(message.get("content"), list)]
    if not contents or any(IMAGE_PART in content for content in contents):
        return messages
    joined = [
        {**message, "content": "".join(part["text"] for part in message["content"])}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]
    try:
        text = unmarked("".join(render(messages, False)))[0]
    except TemplateFault:
        # It expects a text.
        return joined
    lists = [message["content"] for message in messages if isinstance(message.get("content"), list)]
    takes_lists = all(part["text"].strip() in text for parts in lists for part in parts)
    return messages if takes_lists and not _PART.search(text) else joined


def _without(span: Span, holes: Sequence[Span]) -> list[Span]:
    """The parts of a span outside of others, which ascend."""
    pieces: list[Span] = []
    start, end = span
    for hole_start, hole_stop in holes:
        if hole_start > start:
            pieces.append((start, min(hole_start, end)))
        start = max(start, hole_stop)
    if start < end:
        pieces.append((start, end))
    return pieces


def mask(encoding: Encoding, found: Rendered) -> bytearray:
    """A 1 for each token that is trained on, else 0."""
    if found.are_marked:
        return _mask_of_marks(encoding, found.targets)
    is_target = bytearray(len(encoding))
    spans = sorted(span for span in found.targets if span[0] < span[1])
    place = 0
    for index, (first, last) in enumerate(encoding.offsets):
        while place < len(spans) and spans[place][1] <= first:
            place += 1
        # A token counts that holds any character of an answer.
        is_target[index] = place < len(spans) and first < last and spans[place][0] < last
    return is_target


def _mask_of_marks(encoding: Encoding, targets: Sequence[Span]) -> bytearray:
    """The mask that `apply_chat_template(..., return_assistant_tokens_mask=True)` gives in transformers."""
    is_target = bytearray(len(encoding))
    for start, stop in targets:
        if stop == 0:
            continue
        first, last = encoding.char_to_token(start), encoding.char_to_token(stop - 1)
        if first is None:
            break
        end = last + 1 if last else len(encoding)
        is_target[first:end] = bytes([1]) * max(0, end - first)
    return is_target
