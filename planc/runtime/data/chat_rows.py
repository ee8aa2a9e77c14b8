"""The meaning of each key of a conversation's row.

A dropped key would change the training silently, so an unknown key is an error.
Other sources read one text of a row: there, further columns are what a corpus knows about its documents.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planc.data_sources.kinds import Thinking, TrainOn
from planc.runtime.data.errors import ChatRowError, DataError
from planc.runtime.data.json_rows import parsed
from planc.tables import plural

Message = dict[str, Any]
Messages = list[Message]

ANSWERING_ROLES = ("assistant", "model")
"""The roles whose messages the model writes."""

IMAGE_PART = {"type": "image"}
"""The part of a message's content that an image is in the place of."""

_LISTS = ("messages", "conversations")
_PAIR = ("prompt", "completion")
_BESIDE = ("tools", "chat_template_kwargs")
ROW_KEYS = (*_LISTS, *_PAIR, *_BESIDE)
"""The keys of a row of conversations, unless its source names another."""
_WEIGHTS = ("weight", "train", "trainable", "loss", "loss_mask")
"""The keys by which formats exclude a message from training, with 0 or false."""
REASONING = ("reasoning_content", "thinking", "reasoning")
_TEXTS = (*REASONING, "name", "tool_call_id")
_SENDERS: Mapping[str, str] = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
}
"""Roles as rows of `from` and `value` spell them; others are the same."""
_RESERVED = frozenset(
    (
        *("messages", "conversation", "tools", "chat_template", "add_generation_prompt", "tokenize"),
        *("continue_final_message", "sanitize_control_tokens", "padding", "truncation", "max_length"),
        *("return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
    )
)
"""Arguments of templates that rows can't give: planc passes them itself, or transformers takes them out."""
_FOREIGN: Mapping[str, str] = {
    **dict.fromkeys(
        ("instruction", "input", "output", "question", "answer", "query", "response"),
        "rename what the model reads `prompt`, and what it writes `completion`",
    ),
    **dict.fromkeys(
        ("chosen", "rejected"),
        "read them with `pairs(...)` for `loss = dpo()`, or rename `chosen` to `completion`",
    ),
    "function_call": "write it as `tool_calls`",
    "documents": "pass it in `chat_template_kwargs`",
    "system": "make it the first of the messages",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """Options for reading rows. `field` is the key of the messages; None for those that rows usually have.

    `ignore` names keys of rows and of messages to leave out.
    """

    field: str | None = None
    train_on: TrainOn = "answers"
    thinking: Thinking = "last"
    ignore: Collection[str] = ()
    trains_end: bool = True
    """Whether the end of a completion that is a text is trained on."""
    image: str | None = None
    """The key of a row's image, which messages then show by a part of their content; None without one."""


def talks(row: Mapping[str, object], *, reading: Reading, origin: str) -> list[dict[str, Any]]:
    """The conversations of a row as the template gets them: one, or one for each turn if all turns think.

    Raises ChatRowError that names the row and the key.
    """
    apart = (*reading.ignore, reading.image)
    row = {key: value for key, value in row.items() if value is not None and key not in apart}
    kind = _kind(row, field=reading.field, origin=origin)
    _require_known(row, (*kind, *_BESIDE), origin=origin)
    if kind == _PAIR and isinstance(row["prompt"], str):
        return [_text_pair(row, reading=reading, origin=origin)]
    num_prompt = None
    messages, trained = _messages(row[kind[0]], reading=reading, origin=f'"{kind[0]}" of {origin}')
    if kind == _PAIR:
        num_prompt = len(messages)
        more, also = _messages(row["completion"], reading=reading, origin=f'"completion" of {origin}')
        messages, trained = messages + more, trained + also
    if reading.image is not None:
        _require_one_image(messages, origin=origin)
    common: dict[str, Any] = {"arguments": _arguments(row.get("chat_template_kwargs"), origin=origin)}
    if "tools" in row:
        common["tools"] = _tools(row["tools"], origin=origin)
    turns = _turns(messages, trained, num_prompt=num_prompt, reading=reading)
    return [{**turn, **common} for turn in turns]


def _require_one_image(messages: Messages, *, origin: str) -> None:
    """Raises ChatRowError unless the messages have the place of one image."""
    contents = (message.get("content") for message in messages)
    number = sum(content.count(IMAGE_PART) for content in contents if isinstance(content, list))
    if number != 1:
        raise ChatRowError(
            f"the messages of {origin} have {plural(number, 'image')}, and each row has 1",
            help='write {"type": "image"} once, among the parts of the content that it belongs to',
        )


def _kind(row: Mapping[str, object], *, field: str | None, origin: str) -> tuple[str, ...]:
    """The keys of a row that hold its conversation."""
    if field is not None:
        if field not in row:
            names = ", ".join(row) or "none"
            raise ChatRowError(f'{origin} has no field "{field}"', help=f"name one of its fields: {names}")
        return (field,)
    kinds: list[tuple[str, ...]] = [(name,) for name in _LISTS if name in row]
    if any(name in row for name in _PAIR):
        missing = [name for name in _PAIR if name not in row]
        if missing:
            hints = hints_of(row)
            text, help = f'{origin} has no "{missing[0]}"', "write both `prompt` and `completion`"
            raise ChatRowError(text, help="; ".join((*hints, *(() if hints else (help,)))))
        kinds.append(_PAIR)
    if len(kinds) > 1:
        names = " and ".join(f'"{one[0]}"' for one in kinds)
        raise ChatRowError(
            f"{origin} has {names}, which are conversations both",
            help="name one of them as `field` in `chat(...)`, and list the other in `ignore`",
        )
    if not kinds:
        hints = hints_of(row)
        names = ", ".join(row) or "none"
        raise ChatRowError(
            f"{origin} has no messages, and no prompt and completion",
            help="; ".join(hints)
            or f"name the key of its messages as `field` in `chat(...)`: it has {names}",
        )
    return kinds[0]


def hints_of(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the help for keys of other formats."""
    return tuple(dict.fromkeys(_FOREIGN[key] for key in keys if key in _FOREIGN))


def _require_known(keys: Mapping[str, object], known: Collection[str], *, origin: str) -> None:
    """Raises ChatRowError for keys that nothing reads."""
    unread = [key for key in keys if key not in known]
    if not unread:
        return
    is_one = len(unread) == 1
    written = ", ".join(f'"{key}"' for key in unread)
    hints = hints_of(unread)
    raise ChatRowError(
        f"{origin} has {'a key' if is_one else 'keys'} that planc does not read: {written}",
        help="; ".join((*hints, f"write `ignore = [{written}]` in `chat(...)` to train without "
        f"{'it' if is_one else 'them'}")),
    )  # fmt: skip


def _text_pair(row: Mapping[str, Any], *, reading: Reading, origin: str) -> dict[str, Any]:
    prompt, completion = row["prompt"], row["completion"]
    if not isinstance(completion, str):
        raise ChatRowError(
            f"{origin} has a text as prompt, and not as completion",
            help="write two texts, or two lists of messages",
        )
    _require_known(row, _PAIR, origin=f"{origin}, whose prompt no template renders,")
    found = {"prompt": prompt, "completion": completion, "target": _target(reading, is_pair=True)}
    return found if reading.trains_end else {**found, "trains_end": False}


def _target(reading: Reading, *, is_pair: bool) -> str:
    if reading.train_on == "all":
        return "all"
    return "completion" if is_pair else "answers"


def _messages(value: object, *, reading: Reading, origin: str) -> tuple[Messages, list[bool]]:
    """The messages, and which of them may be trained on. Raises ChatRowError."""
    if not isinstance(value, list) or not value:
        raise ChatRowError(
            f"{origin} is not a list of messages",
            help='write [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]',
        )
    messages: Messages = []
    trained: list[bool] = []
    for number, message in enumerate(value, start=1):
        where = f"message {number} in {origin}"
        if not isinstance(message, dict):
            raise ChatRowError(f"{where} is not an object", help="write a role and a content")
        # As transformers does: templates take a key without a value for a text.
        keys = {key: part for key, part in message.items() if part is not None and key not in reading.ignore}
        trained.append(_weight(keys, origin=where))
        messages.append(_message(keys, has_images=reading.image is not None, origin=where))
    return messages, trained


def _weight(message: Mapping[str, Any], *, origin: str) -> bool:
    """Whether a message may be trained on, from its keys. Raises ChatRowError."""
    weights = {key: message[key] for key in _WEIGHTS if key in message}
    for key, value in weights.items():
        if value not in (0, 1) or not isinstance(value, (bool, int, float)):
            raise ChatRowError(
                f'{origin} has "{key}": {json.dumps(value)[:80]}',
                help="write 0 or false for a message without a loss; planc does not weigh losses",
            )
    if len({bool(value) for value in weights.values()}) > 1:
        names = " and ".join(f'"{key}"' for key in weights)
        raise ChatRowError(f"{origin} has {names}, which disagree", help="keep one of them")
    return all(weights.values())


def _message(keys: Mapping[str, Any], *, has_images: bool, origin: str) -> Message:
    """A message as templates read it: `from` and `value` have their usual names. Raises ChatRowError."""
    is_shared = "role" not in keys and "from" in keys
    role, content = ("from", "value") if is_shared else ("role", "content")
    known = (role, content, *_TEXTS, "tool_calls", *_WEIGHTS)
    _require_known(keys, known, origin=origin)
    if not isinstance(keys.get(role), str) or not keys[role]:
        raise ChatRowError(f"{origin} has no role", help="write who says it: user, assistant, system or tool")
    if is_shared and keys[role] == "function_call":
        raise ChatRowError(
            f"{origin} is from function_call", help="write it as `tool_calls` of an assistant's message"
        )
    message: Message = {}
    for key, value in keys.items():
        if key == role:
            message["role"] = _SENDERS.get(value, value) if is_shared else value
        elif key == content:
            message["content"] = _content(value, has_images=has_images, origin=origin)
        elif key == "tool_calls":
            if not isinstance(value, list) or not all(isinstance(call, dict) for call in value):
                raise ChatRowError(
                    f"{origin} has tool_calls that are not a list of objects", help="write a list"
                )
            message[key] = value
        elif key in _TEXTS:
            if not isinstance(value, str):
                raise ChatRowError(f'"{key}" of {origin} is not a text', help="write a text")
            message[key] = value
    if not {"content", "tool_calls", *REASONING} & {*message}:
        raise ChatRowError(f"{origin} has no content", help="write its text as `content`")
    return _with_reasoning(message)


def _with_reasoning(message: Message) -> Message:
    """The message with its reasoning under the names that templates read, as transformers gives it."""
    reasoning = next((message[key] for key in REASONING if key in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _content(value: object, *, has_images: bool, origin: str) -> object:
    """A text, or a list of parts that are texts, or the place of an image. Raises ChatRowError."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ChatRowError(f"the content of {origin} is neither a text nor a list", help="write a text")
    parts = []
    for one in value:
        part = {key: text for key, text in one.items() if text is not None} if isinstance(one, dict) else one
        if has_images and part in (IMAGE_PART, {**IMAGE_PART, "index": 0}):
            parts.append(IMAGE_PART)
            continue
        if has_images and isinstance(part, dict) and part.get("type") in ("image", "image_url"):
            raise ChatRowError(
                f"the content of {origin} has an image with more than its place",
                help='write {"type": "image"}, and the path of the file under the row\'s `image`',
            )
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else None
            raise ChatRowError(
                f"the content of {origin} has a part that is not text"
                + (f": {json.dumps(kind)[:80]}" if kind not in (None, "text") else ""),
                help='planc trains on texts: write {"type": "text", "text": "..."}, or a text alone',
            )
        _require_known(part, ("type", "text"), origin=f"a part of {origin}")
        parts.append(part)
    return parts


def _tools(value: object, *, origin: str) -> list[object]:
    """The tools; a text is JSON, as tables keep what varies from row to row. Raises ChatRowError."""
    if isinstance(value, str):
        try:
            value = parsed(value, origin=f'"tools" of {origin}')
        except DataError:
            raise
        except (ValueError, RecursionError) as error:
            raise ChatRowError(
                f'"tools" of {origin} is a text, and not JSON: {error}', help="write a list"
            ) from error
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ChatRowError(
            f'"tools" of {origin} is not a list of objects', help="write a list of JSON schemas"
        )
    return value


def _arguments(value: object, *, origin: str) -> dict[str, object]:
    """The template's variables of a row. Raises ChatRowError."""
    if value is None:
        return {}
    where = f'"chat_template_kwargs" of {origin}'
    if not isinstance(value, dict):
        raise ChatRowError(f"{where} is not an object", help="write the template's variables by name")
    for name in value:
        if name in _RESERVED:
            raise ChatRowError(
                f'{where} has "{name}", which is not a variable of the template',
                help="write `messages` and `tools` as keys of the row, and leave other arguments out",
            )
    return value


def _turns(
    messages: Messages, trained: Sequence[bool], *, num_prompt: int | None, reading: Reading
) -> Iterator[dict[str, Any]]:
    """A conversation, or one for each turn, which ends with it; each with what is trained on."""
    is_last_only = reading.train_on == "last_answer"
    target = _target(reading, is_pair=num_prompt is not None and not is_last_only)
    answers = [index for index, one in enumerate(messages) if one["role"] in ANSWERING_ROLES]
    parts = [(0, len(messages))]
    if reading.thinking == "all" and not is_last_only:
        parts = _parts(messages, num_prompt=num_prompt if target == "completion" else None)
    for start, stop in parts:
        first = max(num_prompt or 0, start) if target == "completion" else start
        possible = answers if target == "answers" else range(first, stop)
        yield {
            "messages": messages[:stop],
            "target": target,
            "first": first,
            "skipped": [
                index
                for index in possible
                if index < stop
                and (index < start or not trained[index] or (is_last_only and index != answers[-1]))
            ],
        }


def _parts(messages: Messages, *, num_prompt: int | None) -> list[tuple[int, int]]:
    """Return the start and stop of each turn: a question after answers starts the next one."""
    starts, has_answer = [0], False
    for index, message in enumerate(messages):
        if has_answer and message["role"] == "user":
            starts.append(index)
            has_answer = False
        has_answer = has_answer or message["role"] in ANSWERING_ROLES
    if not has_answer and len(starts) > 1:
        # Nothing answers the last question.
        starts.pop()
    stops = [*starts[1:], len(messages)]
    return [part for part in zip(starts, stops, strict=True) if part[1] > (num_prompt or 0)]
