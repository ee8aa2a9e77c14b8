"""Text from a model's directory, by transformers' own generate on one device."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from planc.modeling.language_part import language_config, sees_images
from planc.modeling.tasks import tasks_of
from planc.runtime.data.encoding.client import Tokens
from planc.runtime.data.errors import DataError
from planc.runtime.data.sources import Document
from planc.runtime.data.tokenizers import TokenizerFiles
from planc.runtime.errors import RunError
from planc.runtime.model_files import refuse_remote_code
from planc.tables import plural
from planc.vocab import Task


@dataclass(frozen=True, slots=True)
class Sampling:
    """The choice of tokens. A temperature of 0 takes the likeliest one."""

    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A continuation of a prompt, or an encoder-decoder's answer to an input.

    `text` has none of the special tokens around an answer. `is_ended` is true if the model ended its text
    itself.
    """

    text: str
    is_answer: bool
    num_prompt_tokens: int
    num_tokens: int
    is_ended: bool


def sample(folder: Path, tokenizer: TokenizerFiles, prompt: str, how: Sampling) -> Sample:
    """Return what the model in `folder` writes after a prompt, or of an input, which begins as training
    documents do.

    Only `how` decides: a generation_config.json changes nothing but the ends of texts. RunError for a prompt
    or a number of tokens that the model can't take.
    """
    refuse_remote_code(folder)
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    is_answer = _task_of_writer(config) is Task.SEQ2SEQ_LM
    loaded = replace(tokenizer, has_classes=is_answer).load(num_processes=1)
    try:
        (encoded,) = loaded.encode([Document("the text", prompt, len(prompt.encode()))])
        if not isinstance(encoded, Tokens):
            raise RunError(f"the text {encoded.reason}", help=encoded.help)
        ids, end = [*encoded.ids.tolist(), *(loaded.after if is_answer else ())], loaded.end_of_document
        kind = _loader_of(config, is_answer=is_answer)
        with _quiet():
            model = kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False, dtype="auto")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = model.to(device).eval()
        _require_room(language_config(model.config), ids, how)
        ends = _ends(model, end)
        new = _generated(model, ids, how, ends=ends, num_known=loaded.vocab_size)
        is_ended = bool(new) and new[-1] in ends
        known, written = [] if is_answer else ids, new[: len(new) - is_ended]
        if is_answer:
            written = _without_marks(written, loaded.special_ids)
        whole, before = loaded.decode([known + written, known])
        # A decoder may write the first of several tokens in another way than one that follows.
        text = whole.removeprefix(before) if whole.startswith(before) else loaded.decode([written])[0]
        return Sample(text, is_answer, len(ids), len(new), is_ended)
    except DataError as error:
        raise RunError(error.message, help=error.help) from error
    finally:
        loaded.close()


def _loader_of(config: PreTrainedConfig, *, is_answer: bool) -> Any:
    """The class of transformers that loads a model; one that sees images is given a text alone."""
    if sees_images(config):
        return AutoModelForImageTextToText
    return AutoModelForSeq2SeqLM if is_answer else AutoModelForCausalLM


def _without_marks(ids: list[int], special_ids: Container[int]) -> list[int]:
    """An answer's ids without the special tokens around its text, which targets of training have."""
    own = [place for place, token in enumerate(ids) if token not in special_ids]
    return ids[own[0] : own[-1] + 1] if own else []


_NOT_WRITERS = {
    Task.MASKED_LM: "is a masked language model: it fills in hidden tokens, and writes no text",
    Task.EMBEDDING: "has no head: it makes vectors of texts, and writes none",
    Task.SEQUENCE_CLASSIFICATION: "tells the class of a text, and writes none",
    Task.TOKEN_CLASSIFICATION: "tells the class of each token, and writes no text",
}


def _task_of_writer(config: PreTrainedConfig) -> Task:
    """The task of a model that writes texts. RunError for one that does not."""
    tasks = tasks_of(config.model_type)
    known = [(name, tasks.get(name, Task.CAUSAL_LM)) for name in config.architectures or ()]
    for name, task in known:
        if (reason := _NOT_WRITERS.get(task)) is not None:
            raise RunError(f"{name} {reason}", help="`planc eval` computes its loss")
    return known[0][1] if known else Task.CAUSAL_LM


def _ends(model: PreTrainedModel, end_of_document: int) -> list[int]:
    """The ids that end a text: a document's in training, and those of the model's generation settings."""
    own = model.generation_config.eos_token_id if model.generation_config is not None else None
    return sorted({end_of_document, *([own] if isinstance(own, int) else own or ())})


def _require_room(config: object, ids: list[int], how: Sampling) -> None:
    """RunError unless the model has tokens and positions for the text and what follows it."""
    if not ids:
        raise RunError("the text has no tokens", help="write some text to continue")
    size, positions = (getattr(config, name, None) for name in ("vocab_size", "max_position_embeddings"))
    if size is not None and max(ids) >= size:
        raise RunError(
            f"token {max(ids)} of the text is outside of the model's vocabulary of {size}",
            help="the tokenizer is another model's",
        )
    if getattr(config, "is_encoder_decoder", False):
        # Each side has all positions.
        _require_positions(config, len(ids), how)
        return
    if positions is not None and len(ids) + how.max_new_tokens > positions:
        raise RunError(
            f"{plural(len(ids), 'token')} and {how.max_new_tokens} new ones exceed the model's {positions} "
            "positions",
            help=f"set --max-new-tokens to at most {positions - len(ids)}, or shorten the text"
            if positions > len(ids)
            else "shorten the text",
        )


def _require_positions(config: object, num_tokens: int, how: Sampling) -> None:
    """RunError unless an encoder has positions for the input, and its decoder for the answer."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and max(num_tokens, how.max_new_tokens + 1) > positions:
        raise RunError(
            f"{plural(num_tokens, 'token')}, or {how.max_new_tokens} new ones after the first, exceed the "
            f"model's {positions} positions",
            help="shorten the text" if num_tokens > positions else f"set --max-new-tokens to {positions - 1}",
        )


def _generated(
    model: PreTrainedModel, ids: list[int], how: Sampling, *, ends: list[int], num_known: int
) -> list[int]:
    """The new tokens, with the one that ends the text if there is one."""
    unknown = list(range(num_known, language_config(model.config).vocab_size))
    settings = GenerationConfig(
        max_new_tokens=how.max_new_tokens,
        do_sample=how.temperature > 0,
        eos_token_id=ends,
        pad_token_id=ends[0],
        decoder_start_token_id=getattr(model.config, "decoder_start_token_id", None),
        suppress_tokens=unknown or None,
        **({"temperature": how.temperature, "top_p": how.top_p, "top_k": 0} if how.temperature > 0 else {}),
    )
    torch.manual_seed(how.seed)
    # Its own settings would fill in what these leave open: beams, or an end after the last token.
    model.generation_config = settings
    given = torch.tensor([ids], device=model.device)
    with torch.no_grad(), _quiet():
        whole = model.generate(given, attention_mask=torch.ones_like(given), generation_config=settings)
    num_given = 1 if model.config.is_encoder_decoder else len(ids)
    return [int(token) for token in whole[0, num_given:]]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep progress bars and advice of transformers out of the output."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()
