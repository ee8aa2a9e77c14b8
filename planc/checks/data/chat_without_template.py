"""Conversations for a tokenizer without a chat template."""

from __future__ import annotations

from planc.checks.data.tokenizer_file import chat_templates
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.hub.tokenizer_files import DEFAULT_TEMPLATE, TOOLS_TEMPLATE
from planc.plan.conversations import Chat, Pairs
from planc.plan.data import ByteTokenizer
from planc.plan.scalars import listed

CODE = Code("P731", "chat-without-template", "the tokenizer has no chat template")

_OF_TEXTS = "; for prompts and completions that are texts, write `template = none` in `chat(...)`"


@reports(CODE, unless_refused=True)
def check(subject: Subject) -> Findings:
    """One finding for each source of conversations without an own template, if the tokenizer has none."""
    data = subject.plan.data
    own = ""
    # If the plan names a file, only its path changes; its other arguments stay.
    write = "set the path of `tokenizer` to"
    if isinstance(data.tokenizer, ByteTokenizer):
        text, write = "`bytes` has no chat template", "write `tokenizer = file(...)` with"
    else:
        templates = None if subject.base is None else chat_templates(subject.base / data.tokenizer.path)
        if templates is None or not templates.isdisjoint((DEFAULT_TEMPLATE, TOOLS_TEMPLATE)):
            return
        text = f"no chat template next to `{data.tokenizer.path}`"
        own = '; or write `template = "path/to/template.jinja"` in `chat(...)`'
        if templates:
            text = f"`{data.tokenizer.path}` has no template `{DEFAULT_TEMPLATE}`"
            own = f"; or name one of its own in `chat(..., template = ...)`: {listed(templates)}"
    for path, source in data.sources():
        # Bytes have no tokens for the ends of turns either; rows of texts have no turns.
        if isinstance(source, Chat | Pairs) and (source.template == "auto" or (source.template and not own)):
            yield CODE.at(
                subject.plan.span(path),
                "the tokenizer's template turns messages into text",
                secondary=(Label(subject.plan.span("data.tokenizer"), text),),
                help=f"{write} a directory that has a chat_template.jinja, or a chat_template in its "
                f"tokenizer_config.json{own}{_OF_TEXTS if isinstance(source, Chat) else ''}",
            )
