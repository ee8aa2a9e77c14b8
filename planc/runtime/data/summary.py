"""One line about a dataset, as `run`, `data prepare`, `data show` and `check --data` print it."""

from __future__ import annotations

import numpy as np

from planc.runtime.data.dataset import Dataset
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.data.padded import LabeledDataset

_MAX_READ = 256


def summary_of(dataset: Dataset) -> str:
    """Its documents, tokens and sequences, what is unused, and the share of labels unless all tokens are.

    Labels are counted in all sequences, or in _MAX_READ of them that are spread over all.
    """
    if isinstance(dataset, LabeledDataset):
        return dataset.summary()
    total = dataset.num_sequences
    chosen = np.unique(np.linspace(0, total - 1, num=min(total, _MAX_READ)).astype(np.int64))
    num_labels = sum(int(np.count_nonzero(dataset[int(one)][1] != IGNORED_LABEL)) for one in chosen)
    share = num_labels / max(1, len(chosen)) * total / max(1, dataset.num_tokens)
    about = "" if len(chosen) == total else "about "
    # Of joined documents, the first token and those that fill no sequence are not labels.
    is_all = num_labels == len(chosen) * dataset.sequence_length
    return dataset.summary() if is_all else f"{dataset.summary()}; {about}{100 * share:.1f} % labels"
