"""An editor's capabilities, and its messages, whose length is a number that anybody may write."""

from __future__ import annotations

import json
from enum import Enum
from typing import IO, Any

from cattrs import Converter
from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams, JsonRpcInvalidRequest
from pygls.protocol import JsonRPCRequestMessage, LanguageServerProtocol, default_converter

from planc.record import record

MAX_MESSAGE_BYTES = 1 << 26
"""A plan has at most a few MiB; editors send it whole."""
_MAX_SKIPPED_BYTES = 1 << 32
_PART_BYTES = 1 << 16
OVERSIZED = "planc/oversized"
"""The method of a request in place of a message that is too long. Its answer is an error."""


class BoundedReader:
    """An editor's messages, of which one that is too long is skipped."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def readline(self) -> bytes:
        return self._stream.readline(_PART_BYTES)

    def read(self, size: int) -> bytes:
        """A body; a request to OVERSIZED in place of one that is too long.

        No body follows a length that no message has: it would be waited for without an end.
        """
        if size <= MAX_MESSAGE_BYTES:
            return self._stream.read(size)
        left = size if size <= _MAX_SKIPPED_BYTES else 0
        while left and (part := self._stream.read(min(left, _PART_BYTES))):
            left -= len(part)
        request = {"jsonrpc": "2.0", "id": OVERSIZED, "method": OVERSIZED, "params": {"size": size}}
        return json.dumps(request).encode()


MALFORMED = "planc/malformed"
"""The method that a request gets whose parameters can't be read. Its answer is an error."""


@record
class Client:
    """Forms of answers that only some editors take."""

    takes_markdown: bool
    takes_nested_symbols: bool
    takes_actions: bool
    """Otherwise it takes commands only, which planc has none of."""
    takes_versions: bool
    """Whether it compares an edit's version with that of its text."""
    refreshes_hints: bool


def client_of(capabilities: types.ClientCapabilities) -> Client:
    def at(path: str) -> Any:
        found: Any = capabilities
        for name in path.split("."):
            found = getattr(found, name, None)
        return found

    return Client(
        takes_markdown=types.MarkupKind.Markdown in (at("text_document.hover.content_format") or ()),
        takes_nested_symbols=bool(at("text_document.document_symbol.hierarchical_document_symbol_support")),
        takes_actions=at("text_document.code_action.code_action_literal_support") is not None,
        takes_versions=bool(at("workspace.workspace_edit.document_changes")),
        refreshes_hints=bool(at("workspace.inlay_hint.refresh_support")),
    )


class Protocol(LanguageServerProtocol):
    """Answers every request, also one whose parameters can't be read."""

    def structure_message(self, data: dict[str, Any]) -> Any:
        try:
            return super().structure_message(data)
        except JsonRpcInvalidParams:
            if "id" not in data or "method" not in data:
                raise
            return JsonRPCRequestMessage(data["id"], MALFORMED, "2.0", data["method"])


def refuse(method: str) -> None:
    """The answer to a malformed request."""
    raise JsonRpcInvalidParams(f"the parameters of {method} are not those of the protocol")


def refuse_oversized(params: Any) -> None:
    """The answer to a message that is too long."""
    raise JsonRpcInvalidRequest(f"a message has {params.size:_} bytes, more than {MAX_MESSAGE_BYTES:_}")


def converter() -> Converter:
    """pygls's converter, for editors of any age: a number or a word of a newer protocol stays as it is."""
    found: Converter = default_converter()  # type: ignore[no-untyped-call]
    for kind in vars(types).values():
        if isinstance(kind, type) and issubclass(kind, Enum):
            found.register_structure_hook(kind, _member)
    return found


def _member(value: Any, kind: type[Enum]) -> Any:
    try:
        return kind(value)
    except ValueError:
        return value
