"""What an editor takes, as its capabilities state, and how its messages become values."""

from __future__ import annotations

from enum import Enum
from typing import Any

from cattrs import Converter
from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams, JsonRpcInvalidRequest
from pygls.protocol import JsonRPCRequestMessage, LanguageServerProtocol, default_converter

from planc.lsp.bounded import MAX_MESSAGE_BYTES
from planc.record import record

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
