"""Trains on bytes of text the straightforward way: the whole model on every rank, gradients one by one.

examples/by_hand.py does the same with less memory and fewer messages.

torchrun --nproc-per-node 4 examples/straightforward.py MODEL_FOLDER TEXT_FILE
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import AdamW
from transformers import AutoModelForCausalLM


@dataclass(frozen=True, slots=True)
class Settings:
    """`tokens_per_step` over all ranks, `micro_batch` in sequences of one rank."""

    model: Path
    text: Path
    sequence_length: int = 256
    micro_batch: int = 4
    tokens_per_step: int = 4096
    steps: int = 120
    lr: float = 4e-3
    max_norm: float = 1.0


@dataclass(frozen=True, slots=True)
class Trainer:
    """The whole model, on every rank; a process group must stand."""

    settings: Settings
    model: Any
    optimizer: AdamW
    tokens: Tensor

    def step(self, sample_ids: Tensor) -> float:
        """The mean loss of the sequences `sample_ids`, before the weights have followed it."""
        world_size, length = dist.get_world_size(), self.settings.sequence_length
        batches = sample_ids.chunk(world_size)[dist.get_rank()].split(self.settings.micro_batch)
        total = torch.zeros(())
        for ids in batches:
            inputs = torch.stack([self.tokens[i * length : (i + 1) * length] for i in ids]).long()
            labels = torch.stack([self.tokens[i * length + 1 : (i + 1) * length + 1] for i in ids]).long()
            logits = self.model(input_ids=inputs).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()) / len(batches)
            loss.backward()
            total += loss.detach()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.all_reduce(total)
        return total.item() / world_size


def build(settings: Settings) -> Trainer:
    model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32, local_files_only=True)
    model.train()
    tokens = torch.frombuffer(bytearray(settings.text.read_bytes()), dtype=torch.uint8)
    return Trainer(settings, model, AdamW(model.parameters(), lr=settings.lr), tokens)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=120)
    settings = Settings(**vars(parser.parse_args()))
    dist.init_process_group("gloo")
    trainer = build(settings)
    num_sequences = (len(trainer.tokens) - 1) // settings.sequence_length
    num_a_step = settings.tokens_per_step // settings.sequence_length
    generator = torch.Generator().manual_seed(0)
    for number in range(1, settings.steps + 1):
        # The same numbers on every rank, which takes its own part of them.
        loss = trainer.step(torch.randint(num_sequences, (num_a_step,), generator=generator))
        if dist.get_rank() == 0:
            print(f"step {number}/{settings.steps}  loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
