"""Random rows of conversations, which a shape of template takes."""

from __future__ import annotations

import random
from typing import Any

from tests.data.against_transformers.chat_shapes import Shape

Row = dict[str, Any]

_WORDS = (
    *("the", "cat", "sat", "yes", "no", "fine", "thanks", "hello", "world", "USER:", "assistant", "user"),
    *("café", "naïve", "e\u0301", "你好", "世界", "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467"),
    *("مرحبا", "ﬁ", "①", "İ", "<", ">", "<b>", "{}", '"', "'", "\\", "1+1=2", "\u00a0", "\u200b", "\t"),
)
_EDGES = ("", "", "", "", " ", "  ", "\n", "\n\n", "\t", " \n")
_TOOLS = (
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "find_é", "description": "<x>", "parameters": {"a": None}}},
)


def text(draw: random.Random, *, is_filled: bool = False) -> str:
    """A few words, with spaces around them at times; empty at times, if it may be."""
    if not is_filled and draw.random() < 0.06:
        return draw.choice(("", "", " ", "\n"))
    words = draw.choices(_WORDS, k=draw.randint(1, 5))
    joined = "".join(word + draw.choice((" ", " ", " ", "", "\n")) for word in words).strip(" ")
    return draw.choice(_EDGES) + joined + draw.choice(_EDGES)


def row(draw: random.Random, shape: Shape, *, has_weights: bool) -> Row:
    """A row that the shape's template renders."""
    has_tools = shape.takes_tools and draw.random() < 0.4
    messages: list[dict[str, Any]] = []
    if draw.random() < 0.5:
        messages.append({"role": "system", "content": text(draw)})
    if not shape.alternates and draw.random() < 0.1:
        messages.append(_answer(draw, shape))
    for turn in range(draw.randint(1, 4)):
        if turn and not shape.alternates and draw.random() < 0.15:
            messages.append(_answer(draw, shape))
        messages.append({"role": "user", "content": _content(draw, shape)})
        while has_tools and draw.random() < 0.4:
            messages += _call(draw, shape)
        messages.append(_answer(draw, shape))
    if draw.random() < 0.15:
        messages.append({"role": "user", "content": _content(draw, shape)})
    if has_weights:
        for message in messages:
            if message["role"] == "assistant" and draw.random() < 0.3:
                key = draw.choice(("weight", "train", "trainable", "loss", "loss_mask"))
                message[key] = draw.choice((0, 1, False, True))
    found: Row = {"messages": messages}
    if has_tools:
        found["tools"] = draw.sample(_TOOLS, draw.randint(1, 2))
    # What a template writes of reasoning after a prompt that excludes it is for no model to learn.
    is_silent = not any("reasoning_content" in one or "</think>" in str(one["content"]) for one in messages)
    if shape.takes_reasoning and is_silent and draw.random() < 0.5:
        found["chat_template_kwargs"] = {"enable_thinking": draw.choice((True, False))}
    return found


def _content(draw: random.Random, shape: Shape) -> Any:
    if shape.takes_parts and draw.random() < 0.3:
        return [{"type": "text", "text": text(draw)} for _ in range(draw.randint(1, 2))]
    return text(draw)


def _answer(draw: random.Random, shape: Shape) -> dict[str, Any]:
    answer: dict[str, Any] = {"role": "assistant", "content": _content(draw, shape)}
    if shape.takes_reasoning and draw.random() < 0.5:
        thought = text(draw, is_filled=True)
        if draw.random() < 0.5:
            answer["reasoning_content"] = thought
        else:
            answer["content"] = f"<think>\n{thought}\n</think>\n\n{answer['content']}"
    return answer


def _call(draw: random.Random, shape: Shape) -> list[dict[str, Any]]:
    function = {"name": draw.choice(("weather", "find_é")), "arguments": {"city": text(draw)}}
    call: dict[str, Any] = {
        "role": "assistant",
        "content": draw.choice((None, "", text(draw))) if shape.takes_reasoning else None,
        "tool_calls": [{"type": "function", "function": function}],
    }
    if call["content"] is None and draw.random() < 0.5:
        call["content"] = ""
    if shape.takes_reasoning and draw.random() < 0.5:
        call["reasoning_content"] = text(draw, is_filled=True)
    return [call, {"role": "tool", "name": "weather", "content": text(draw)}]
