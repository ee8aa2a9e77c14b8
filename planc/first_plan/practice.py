"""The settings of a run by practitioners' recipes, the size of its model and of its data."""

from __future__ import annotations

from planc.first_plan.purpose import Purpose
from planc.first_plan.recipes import Recipe, Value, recipe_of
from planc.record import record

BYTES_PER_TOKEN = 4
"""About, of English text with a tokenizer of tens of thousands of tokens."""
_PER_PARAMETER = 20
"""Training tokens of a compute-optimal run, by Chinchilla."""
UNKNOWN_STEPS = 1_000
LEAST_STEPS = 100
"""Steps of a run over given data, at least, where its batch can be smaller: Alpaca has 1,200."""


@record
class Practice:
    """The settings of a run that do not depend on its devices, each with the reason as a comment."""

    learning_rate: float
    rate_reason: str
    tokens_per_step: int
    tokens_reason: str
    recipe: Recipe


@record
class DataSize:
    """The size of the data: their bytes, and rows as far as they were counted; 0 where there are none."""

    num_bytes: int = 0
    num_rows: int = 0

    def tokens(self, purpose: Purpose, sequence_length: int) -> int:
        """The tokens of a pass: about, of text, and of sequences that a row has for itself."""
        if purpose.is_in_epochs:
            return self.num_rows * recipe_of(purpose).sequences_per_row * sequence_length
        return self.num_bytes // BYTES_PER_TOKEN


def practice_of(purpose: Purpose, num_parameters: int) -> Practice:
    """The settings for a model of this size."""
    recipe = recipe_of(purpose)
    rate, tokens = _for(recipe.rates, num_parameters), _for(recipe.tokens, num_parameters)
    number, reason = rate.number, f"The peak of {rate.source}."
    if recipe.third_source:
        number = float(f"{rate.number / 3:.1e}")
        reason = f"A third of the peak of pretraining ({rate.source}), as {recipe.third_source}."
    return Practice(number, reason, int(tokens.number), f"As {tokens.source}.", recipe)


def tokens_for(purpose: Purpose, *, wanted: int, of_data: int, least: int) -> int:
    """The tokens of a step: fewer than wanted where a pass over the data has few, but at least `least`."""
    passes = recipe_of(purpose).passes
    if not passes or not of_data:
        return wanted
    return min(wanted, max(least, passes * of_data // LEAST_STEPS))


def _for(values: tuple[Value, ...], num_parameters: int) -> Value:
    return next(value for value in values if num_parameters <= value.most_parameters)


@record
class Length:
    """The length of a run and of its warm-up, with their reasons."""

    steps: int
    """0 of a run whose epochs are given."""
    epochs: int
    reason: str
    warmup: str
    """Steps or a share, written out as in a plan."""
    warmup_reason: str


def length_of(
    purpose: Purpose, *, num_parameters: int, tokens_per_step: int, data_tokens: int, given: int | None
) -> Length:
    """The length of a run over data of this many tokens, 0 where there are none yet."""
    recipe = recipe_of(purpose)
    warmup, passes = recipe.warmup, recipe.passes
    pass_name = "1 pass" if passes == 1 else f"{passes} passes"
    steps, epochs = UNKNOWN_STEPS, 0
    reason = f"Set it for your data: {pass_name} of its tokens / tokens_per_step."
    if given is not None:
        steps, reason = given, "As given to planc new."
    elif purpose.is_in_epochs:
        steps, epochs = 0, passes
        reason = f"As {recipe.passes_source}."
    elif not passes:
        steps = max(1, round(_PER_PARAMETER * num_parameters / tokens_per_step))
        reason = "20 tokens for each parameter, by Chinchilla."
    elif data_tokens:
        steps = max(1, round(passes * data_tokens / tokens_per_step))
        reason = f"About {pass_name} over the data of today, at {BYTES_PER_TOKEN} bytes for each token."
    if warmup.percent:
        share = f"{warmup.percent:g} %"
        written = share if epochs else f"{max(1, int(steps * warmup.percent / 100))} steps"
        return Length(steps, epochs, reason, written, warmup.reason)
    number = max(1, min(warmup.most_steps, steps // 10))
    short = "" if number == warmup.most_steps else ", at most a tenth of the steps"
    return Length(steps, epochs, reason, f"{number} steps", f"{warmup.reason}{short}")


def tokens_on(devices: int, *, wanted: int, unit: int) -> int:
    """Tokens of a step near the wanted ones that are whole units, such as sequences, on every rank.

    With more devices than units, groups of up to 64 devices share one.
    """
    ranks = devices
    while ranks % 2 == 0 and ranks * unit > wanted and devices // ranks < 64:
        ranks //= 2
    step = ranks * unit
    return max(1, round(wanted / step)) * step
