"""Tokens hidden from a masked language model: which, and by what, follows from a sequence's place alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from planc.runtime.data.errors import DataError
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.data.spec import Masking
from planc.runtime.data.tokenizers import Tokenizer

Ids = npt.NDArray[np.int64]

_TRAINING, _EVALUATION = 1, 2
_DRAWS = 3
"""The draws of a token: whether it is chosen, what becomes of it, and which token replaces it."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenMasks:
    """Hides tokens of sequences, by numbers drawn from a seed and the sequence's place.

    Of training data the place is that in the order of samples, which counts on from epoch to epoch, so no
    mesh and no resume changes a mask. numpy keeps PCG64's raw output for good, as `order` says.
    """

    masking: Masking
    mask_id: int
    replacements: Ids
    """The ids that may replace a token, and may be chosen: all but those of special tokens."""
    seed: int
    stream: int = _TRAINING

    def for_evaluation(self) -> TokenMasks:
        """The masks of evaluation data, by the numbers of its sequences: the same in every run."""
        return replace(self, seed=0, stream=_EVALUATION)

    def hide(self, tokens: Ids, place: int) -> tuple[Ids, Ids]:
        """(inputs, labels) of the tokens [S] of the sequence at a place; most have no label."""
        source = np.random.PCG64(np.random.SeedSequence([self.seed, place, 0, self.stream]))
        drawn = source.random_raw(_DRAWS * len(tokens)).reshape(_DRAWS, -1)
        choice, fate = (drawn[:2] >> np.uint64(11)).astype(np.float64) * 2.0**-53
        masking = self.masking
        is_chosen = (choice < masking.probability) & np.isin(tokens, self.replacements)
        is_random = fate < masking.mask_replace + masking.random_replace
        others = self.replacements[(drawn[2] % np.uint64(len(self.replacements))).astype(np.int64)]
        inputs = np.where(is_chosen & is_random, others, tokens)
        inputs = np.where(is_chosen & (fate < masking.mask_replace), self.mask_id, inputs)
        return inputs, np.where(is_chosen, tokens, IGNORED_LABEL)


def masks_of(masking: Masking, tokenizer: Tokenizer, *, seed: int, model_vocab_size: int) -> TokenMasks:
    """The masks of training data. DataError without a mask token that the model has."""
    mask_id = tokenizer.mask_id
    if mask_id is None:
        raise DataError(
            f"{tokenizer.name} has no mask token",
            help='use the tokenizer of a masked language model, or add `"mask_token"` to its '
            "tokenizer_config.json",
        )
    if mask_id >= model_vocab_size:
        raise DataError(
            f"the mask token is id {mask_id}, but the model has {model_vocab_size} token ids",
            help="use the model's own tokenizer, or a model with a larger vocab_size",
        )
    known = np.arange(min(tokenizer.vocab_size, model_vocab_size), dtype=np.int64)
    special = np.array(sorted({*tokenizer.special_ids, tokenizer.end_of_document, mask_id}), dtype=np.int64)
    return TokenMasks(masking, mask_id, np.setdiff1d(known, special), seed)
