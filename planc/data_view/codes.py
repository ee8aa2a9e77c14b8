"""The codes of findings in data."""

from __future__ import annotations

from planc.diagnostics import Code, Severity

UNUSABLE = Code("P860", "data-unusable", "the data can't be used")
QUESTIONABLE = Code("P861", "data-questionable", "the data may not be what you want", Severity.WARNING)
CHAT_ROW = Code("P862", "chat-row-unusable", "the conversation can't be used")

CODES: tuple[Code, ...] = (UNUSABLE, QUESTIONABLE, CHAT_ROW)
