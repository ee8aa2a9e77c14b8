"""Prints what drawing initial weights takes of one of several ranks: seconds, and memory beside its part.

A Llama of `--layers` layers is divided by rows over 1, 4 and 8 ranks, as FSDP divides it; each measurement is
of one rank, alone, in a process of its own. `whole` is how a rank draws without draws by place: all of each
tensor by torch's generator, of which it keeps its part.
"""

from __future__ import annotations

import argparse
import multiprocessing
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from planc.modeling.initialization import draw
from planc.modeling.placed_draws import Values
from tests.bench.weights import allocated_bytes

_SAMPLE_SECONDS = 0.001
_NUM_RANKS = (1, 4, 8)


@dataclass(frozen=True, slots=True)
class Taken:
    """What one rank took."""

    num_parameters: int
    num_held: int
    seconds: float
    """Of processor time."""
    beside_bytes: int


def _draw_by_place(model: PreTrainedModel, held: Mapping[str, Tensor], num_ranks: int) -> None:
    def keep(name: str, values: Values) -> None:
        if name in held:
            out = held[name]
            values.fill(out, tuple(slice(0, size) for size in out.shape))

    draw(model, seed=0, keep=keep)


def _draw_whole(model: PreTrainedModel, held: Mapping[str, Tensor], num_ranks: int) -> None:
    for name, parameter in model.named_parameters():
        whole = torch.full(parameter.shape, torch.nan, dtype=parameter.dtype)
        if parameter.dim() > 1:
            whole.normal_(std=0.02)
        else:
            whole.fill_(1.0)
        assert not whole.isnan().any()
        held[name].copy_(whole[: len(held[name])])


WAYS: Mapping[str, Callable[[PreTrainedModel, Mapping[str, Tensor], int], None]] = {
    "whole": _draw_whole,
    "by place": _draw_by_place,
}


def measured(way: str, num_ranks: int, num_layers: int) -> Taken:
    """What rank 0 takes."""
    torch.set_num_threads(1)
    config = LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=num_layers, num_attention_heads=16
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    held = {
        name: torch.zeros((-(-len(one) // num_ranks), *one.shape[1:]), dtype=one.dtype)
        for name, one in model.named_parameters()
    }
    # What a first draw imports and allocates once is no part of what draws take.
    draw(LlamaForCausalLM(LlamaConfig(**_TINY)).to("meta"), seed=0, keep=lambda *_: None)
    done = threading.Event()
    start = peak = allocated_bytes()

    def sample() -> None:
        nonlocal peak
        while not done.wait(_SAMPLE_SECONDS):
            peak = max(peak, allocated_bytes())

    watcher = threading.Thread(target=sample, daemon=True)
    watcher.start()
    before = time.thread_time()
    WAYS[way](model, held, num_ranks)
    seconds = time.thread_time() - before
    done.set()
    watcher.join()
    return Taken(
        sum(one.numel() for one in model.parameters()),
        sum(one.numel() for one in held.values()),
        seconds,
        peak - start,
    )


_TINY = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}


def main() -> int:
    """Prints a line for each way and number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=6)
    num_layers = parser.parse_args().layers
    for way in WAYS:
        for num_ranks in _NUM_RANKS:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                taken = pool.apply(measured, (way, num_ranks, num_layers))
            print(
                f"{way:<8} {num_ranks} ranks: {taken.seconds:6.2f} s of a processor, "
                f"{taken.seconds / taken.num_parameters * 1e9:6.2f} s a billion of the model's parameters, "
                f"{taken.seconds / taken.num_held * 1e9:6.2f} s a billion of those held, "
                f"{taken.beside_bytes / 2**20:7.1f} MiB beside {taken.num_held * 2 / 2**20:,.0f} MiB"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
