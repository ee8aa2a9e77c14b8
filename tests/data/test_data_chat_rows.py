"""Every key of a conversation's row: read, or an error that names it."""

from __future__ import annotations

from typing import Any

import pytest

from planc.runtime.data.chat_rows import Reading, talks
from planc.runtime.data.errors import DataError

QUESTION = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}


def read(row: dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
    return talks(row, reading=Reading(**settings), origin="rows.jsonl:7")


def refused(row: dict[str, Any], **settings: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        read(row, **settings)
    assert "rows.jsonl:7" in caught.value.message
    return caught.value


@pytest.mark.parametrize("key", ["messages", "conversations"])
def test_messages_have_either_name(key: str) -> None:
    (talk,) = read({key: [QUESTION, ANSWER]})
    assert talk["messages"] == [QUESTION, ANSWER]


def test_two_lists_of_messages_are_ambiguous() -> None:
    error = refused({"messages": [QUESTION], "conversations": [QUESTION]})
    assert error.message.endswith('has "messages" and "conversations", which are conversations both')


def test_shared_conversations_get_roles() -> None:
    senders = ("system", "human", "gpt", "tool")
    (talk,) = read({"conversations": [{"from": one, "value": "x"} for one in senders]})
    assert [one["role"] for one in talk["messages"]] == ["system", "user", "assistant", "tool"]
    assert {one["content"] for one in talk["messages"]} == {"x"}


def test_roles_that_are_unknown_go_to_the_template() -> None:
    (talk,) = read({"messages": [{"role": "developer", "content": "x"}, ANSWER]})
    assert talk["messages"][0]["role"] == "developer"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": [QUESTION], "id": 3}, 'rows.jsonl:7 has a key that planc does not read: "id"'),
        (
            {"messages": [QUESTION], "id": 3, "source": "web"},
            'rows.jsonl:7 has keys that planc does not read: "id", "source"',
        ),
        (
            {"messages": [QUESTION, {**ANSWER, "audio": {}}]},
            'message 2 in "messages" of rows.jsonl:7 has a key that planc does not read: "audio"',
        ),
        (
            {"messages": [{"role": "user", "value": "x"}]},
            'message 1 in "messages" of rows.jsonl:7 has a key that planc does not read: "value"',
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]}]},
            'a part of message 1 in "messages" of rows.jsonl:7 has a key that planc does not read: '
            '"cache_control"',
        ),
    ],
)
def test_a_key_that_nothing_reads_is_an_error(row: dict[str, Any], message: str) -> None:
    error = refused(row)
    assert error.message == message
    assert "write `ignore = [" in error.help


def test_a_plan_may_leave_keys_out() -> None:
    row = {"messages": [QUESTION, {**ANSWER, "audio": {}, "weight": 0}], "id": 3}
    (talk,) = read(row, ignore=("id", "audio", "weight"))
    assert talk["messages"][1] == ANSWER
    assert talk["skipped"] == []


def test_other_tools_keys_have_a_help_of_their_own() -> None:
    assert "`prompt`" in refused({"instruction": "x", "output": "y"}).help
    assert "`pairs(...)`" in refused({"messages": [QUESTION], "chosen": "x"}).help


def test_keys_without_a_value_are_not_there() -> None:
    row = {"messages": [QUESTION, {**ANSWER, "audio": None, "tool_calls": None}], "id": None, "tools": None}
    (talk,) = read(row)
    assert talk["messages"][1] == ANSWER
    assert "tools" not in talk


@pytest.mark.parametrize("key", ["weight", "train", "trainable", "loss", "loss_mask"])
@pytest.mark.parametrize("value", [0, False, 0.0])
def test_messages_may_say_that_they_are_not_trained_on(key: str, value: object) -> None:
    (talk,) = read({"messages": [QUESTION, {**ANSWER, key: value}, QUESTION, {**ANSWER, key: 1}]})
    assert talk["skipped"] == [1]
    assert all(key not in one for one in talk["messages"])


@pytest.mark.parametrize("value", [0.5, 2, "no", [0]])
def test_losses_are_not_weighed(value: object) -> None:
    assert refused({"messages": [QUESTION, {**ANSWER, "weight": value}]}).message.startswith(
        'message 2 in "messages" of rows.jsonl:7 has "weight": '
    )


def test_weights_that_disagree_are_refused() -> None:
    error = refused({"messages": [{**ANSWER, "weight": 1, "train": False}]})
    assert error.message.endswith('has "weight" and "train", which disagree')


@pytest.mark.parametrize("key", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_has_the_names_that_templates_read(key: str) -> None:
    (talk,) = read({"messages": [QUESTION, {**ANSWER, key: "hm"}]})
    message = talk["messages"][1]
    assert message["reasoning_content"] == message["thinking"] == message[key] == "hm"


def test_tools_and_template_arguments_are_passed_on() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    result = {"role": "tool", "name": "f", "tool_call_id": "1", "content": "x"}
    row = {"messages": [QUESTION, call, result], "tools": [{"name": "f"}]}
    (talk,) = read({**row, "chat_template_kwargs": {"enable_thinking": False}})
    assert talk["messages"][1:] == [{"role": "assistant", "tool_calls": call["tool_calls"]}, result]
    assert (talk["tools"], talk["arguments"]) == ([{"name": "f"}], {"enable_thinking": False})
    # Tables have one column of texts for what varies from row to row.
    assert read({**row, "tools": '[{"name": "f"}]'})[0]["tools"] == [{"name": "f"}]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [QUESTION], "tools": {"name": "f"}},
        {"messages": [QUESTION], "tools": "f"},
        {"messages": [QUESTION], "chat_template_kwargs": {"messages": []}},
        {"messages": [QUESTION], "chat_template_kwargs": {"add_generation_prompt": True}},
        {"messages": [QUESTION], "chat_template_kwargs": "x"},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": {"text": "x"}}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "image": "x.png"}]}]},
        {"messages": [{"role": "user", "content": ["x"]}]},
        {"messages": [{"content": "x"}]},
        {"messages": ["x"]},
        {"messages": [{**ANSWER, "tool_calls": "f()"}]},
        {"conversations": [{"from": "function_call", "value": "{}"}]},
        {"prompt": "x"},
        {"prompt": "x", "completion": [ANSWER]},
        {"prompt": [QUESTION], "completion": "x"},
        {"prompt": "x", "completion": "y", "tools": [{"name": "f"}]},
        {"text": "x"},
    ],
)
def test_what_would_be_lost_is_refused(row: dict[str, Any]) -> None:
    refused(row)


def test_the_messages_may_have_any_name_that_the_plan_gives() -> None:
    row = {"dialogue": [QUESTION, ANSWER], "tools": [{"name": "f"}]}
    assert read(row, field="dialogue")[0]["messages"] == [QUESTION, ANSWER]
    assert refused({**row, "messages": []}, field="dialogue").message.endswith('"messages"')
    assert refused(row, field="talk").help == "name one of its fields: dialogue, tools"


def test_the_last_answer_alone_may_be_trained_on() -> None:
    messages = [QUESTION, ANSWER, QUESTION, ANSWER, QUESTION]
    assert read({"messages": messages}, train_on="last_answer")[0]["skipped"] == [1]


def test_each_turn_may_be_rendered_as_when_it_was_answered() -> None:
    first, second = [QUESTION, ANSWER, ANSWER], [QUESTION, ANSWER]
    found = read({"messages": [*first, *second]}, thinking="all")
    assert [one["messages"] for one in found] == [first, [*first, *second]]
    assert [one["skipped"] for one in found] == [[], [1, 2]]
    # A question without an answer is nothing to train on.
    assert len(read({"messages": [*first, QUESTION]}, thinking="all")) == 1


def test_a_completion_is_what_follows_its_prompt() -> None:
    (talk,) = read({"prompt": [QUESTION], "completion": [ANSWER]})
    assert (talk["messages"], talk["target"], talk["first"]) == ([QUESTION, ANSWER], "completion", 1)
    assert read({"prompt": "x", "completion": "y"}) == [
        {"prompt": "x", "completion": "y", "target": "completion"}
    ]
