"""Practitioners' settings, by the purpose of a run and the size of its model.

Every value names its source; docs/how-to/write-a-plan.md has the references.
"""

from __future__ import annotations

from enum import StrEnum

from planc.record import record
from planc.tables import format_number

_MILLION, _BILLION = 10**6, 10**9
_ANY = 10**18


class Purpose(StrEnum):
    """The purpose of a run; the value is the word of the command line."""

    PRETRAIN = "pretrain"
    CONTINUE = "continue"
    CHATS = "chats"
    ADAPTERS = "adapters"

    @property
    def is_of_chats(self) -> bool:
        """True for a purpose whose rows are conversations."""
        return self in (Purpose.CHATS, Purpose.ADAPTERS)


@record
class Value:
    """A number for models of up to so many parameters, and whose practice it is."""

    most_parameters: int
    number: float
    source: str


_RATES = (
    Value(50 * _MILLION, 1e-3, "nanoGPT's smallest models"),
    Value(500 * _MILLION, 6e-4, "GPT-3 125M"),
    Value(3 * _BILLION, 4e-4, "TinyLlama 1.1B"),
    Value(20 * _BILLION, 3e-4, "Llama 2 7B and Llama 3 8B"),
    Value(100 * _BILLION, 1.5e-4, "Llama 2 70B and Llama 3 70B"),
    Value(_ANY, 8e-5, "Llama 3.1 405B"),
)
"""Peaks of pretraining."""
_CONTINUED = 3
"""Llemma's peaks are a third of those of pretraining: 1e-4 for 7B, 5e-5 for 34B."""
_CHAT_RATES = (
    Value(20 * _BILLION, 2e-5, "Alpaca 7B, Llama 2 Chat and Tulu 2 7B"),
    Value(100 * _BILLION, 1e-5, "Tulu 2 70B"),
    Value(_ANY, 2e-6, "Tulu 3 405B"),
)
_ADAPTER_RATES = (
    Value(20 * _BILLION, 2e-4, "QLoRA 7B and 13B"),
    Value(_ANY, 1e-4, "QLoRA 33B and 65B"),
)
_TOKENS = (
    Value(50 * _MILLION, 16_384, "nanoGPT's smallest models"),
    Value(1 * _BILLION, 524_288, "GPT-3 up to 760M"),
    Value(5 * _BILLION, 2_097_152, "TinyLlama 1.1B"),
    Value(100 * _BILLION, 4_194_304, "Llama 2"),
    Value(_ANY, 16_777_216, "Llama 3.1 405B"),
)
"""The tokens of a step of pretraining."""
_CHAT_TOKENS = Value(_ANY, 64 * 4_096, "Llama 2 Chat: 64 sequences of 4,096 tokens")
_ADAPTER_TOKENS = Value(_ANY, 16 * 4_096, "QLoRA 7B: 16 sequences")
SEQUENCE_LENGTH = 4_096
"""Llama 2's; less for a model with fewer positions."""
_PER_PARAMETER = 20
"""Training tokens of a compute-optimal run, by Chinchilla."""
BYTES_PER_TOKEN = 4
"""About, of English text with a tokenizer of tens of thousands of tokens."""
_PASSES = {Purpose.CONTINUE: 1, Purpose.CHATS: 3, Purpose.ADAPTERS: 3}
"""Over the data: Alpaca's three for chats."""
UNKNOWN_STEPS = 1_000


@record
class Practice:
    """The settings of a run that do not depend on its devices, each with the reason as a comment."""

    learning_rate: float
    rate_reason: str
    betas: str
    weight_decay: float
    decay_reason: str
    min_factor: float
    tokens_per_step: int
    tokens_reason: str


LEAST_STEPS = 100
"""Steps of a run over given data, at least, where its batch can be smaller: Alpaca has 1,200."""


def tokens_for(purpose: Purpose, *, wanted: int, data_bytes: int, least: int) -> int:
    """The tokens of a step: fewer than wanted where the data would be too few steps, but at least `least`."""
    if purpose not in _PASSES or not data_bytes:
        return wanted
    total = _PASSES[purpose] * data_bytes // BYTES_PER_TOKEN
    return min(wanted, max(least, total // LEAST_STEPS))


def practice_of(purpose: Purpose, num_parameters: int) -> Practice:
    """The settings for a model of this size."""
    rates = {Purpose.CHATS: _CHAT_RATES, Purpose.ADAPTERS: _ADAPTER_RATES}
    fixed = {Purpose.CHATS: _CHAT_TOKENS, Purpose.ADAPTERS: _ADAPTER_TOKENS}
    rate = _for(rates.get(purpose, _RATES), num_parameters)
    tokens = fixed.get(purpose) or _for(_TOKENS, num_parameters)
    tokens_reason = f"As {tokens.source}."
    if purpose.is_of_chats:
        whose = "QLoRA" if purpose is Purpose.ADAPTERS else "Alpaca and Tulu 2"
        reasons = f"The peak of {rate.source}.", f"No weight decay, as {whose}."
        return Practice(
            rate.number, reasons[0], "[0.9, 0.999]", 0.0, reasons[1], 0.0, int(tokens.number), tokens_reason
        )
    number, reason = rate.number, f"The peak of {rate.source}."
    if purpose is Purpose.CONTINUE:
        number = float(f"{rate.number / _CONTINUED:.1e}")
        reason = f"A third of the peak of pretraining ({rate.source}), as Llemma."
    decay = "Weight decay and betas as GPT-3 and Llama 2."
    return Practice(number, reason, "[0.9, 0.95]", 0.1, decay, 0.1, int(tokens.number), tokens_reason)


def _for(values: tuple[Value, ...], num_parameters: int) -> Value:
    return next(value for value in values if num_parameters <= value.most_parameters)


@record
class Steps:
    """The number of steps of a run, and of its warm-up, with their reasons."""

    number: int
    reason: str
    warmup: int
    warmup_reason: str


def steps_of(
    purpose: Purpose, *, num_parameters: int, tokens_per_step: int, data_bytes: int, given: int | None
) -> Steps:
    """The steps of a run; `data_bytes` is the size of its data, 0 where there is none yet."""
    number, reason = _steps(purpose, num_parameters, tokens_per_step, data_bytes)
    if given is not None:
        number, reason = given, "As given to planc new."
    if purpose.is_of_chats:
        return Steps(number, reason, max(1, number * 3 // 100), "a warm-up of 3 % of the steps, as Alpaca")
    most = 2_000 if purpose is Purpose.PRETRAIN else 500
    source = "Llama 2" if purpose is Purpose.PRETRAIN else "Llemma"
    warmup = max(1, min(most, number // 10))
    short = "" if warmup == most else ", at most a tenth of the steps"
    return Steps(number, reason, warmup, f"a warm-up of {format_number(most)} steps, as {source}{short}")


def _steps(purpose: Purpose, num_parameters: int, tokens: int, data_bytes: int) -> tuple[int, str]:
    if purpose is Purpose.PRETRAIN:
        wanted = _PER_PARAMETER * num_parameters
        return max(1, round(wanted / tokens)), "20 tokens for each parameter, by Chinchilla."
    passes = _PASSES[purpose]
    pass_name = "1 pass" if passes == 1 else f"{passes} passes"
    if not data_bytes:
        return UNKNOWN_STEPS, f"Set it for your data: {pass_name} of its tokens / tokens_per_step."
    number = max(1, round(passes * data_bytes / BYTES_PER_TOKEN / tokens))
    return number, f"About {pass_name} over the data of today, at 4 bytes for each token."


def tokens_on(devices: int, *, wanted: int, sequence_length: int) -> int:
    """Tokens of a step near the wanted ones that are whole sequences on every rank.

    With more devices than sequences, groups of up to 64 devices share one.
    """
    ranks = devices
    while ranks % 2 == 0 and ranks * sequence_length > wanted and devices // ranks < 64:
        ranks //= 2
    unit = ranks * sequence_length
    return max(1, round(wanted / unit)) * unit
