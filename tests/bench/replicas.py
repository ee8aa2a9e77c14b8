"""Trains whole replicas on bytes of text: with DistributedDataParallel, with accelerate, with HF Trainer.

Neither accelerate nor Trainer shards on CPUs: accelerate 1.15 takes an FSDP plugin there and trains with
DistributedDataParallel instead, without a word. So what is raced is what both do on CPUs.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from functools import partial
from threading import Semaphore, Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

from examples.by_hand import Settings, decay_groups, learning_rate_factor


@dataclass(frozen=True, slots=True)
class Parts:
    """What all three train: the same weights, optimizer kernel and schedule."""

    settings: Settings
    model: Any
    optimizer: AdamW
    schedule: LambdaLR
    tokens: Tensor

    def micro_batches(self, sample_ids: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Inputs and labels [micro_batch, sequence_length] of this rank's share of the sequences."""
        settings = self.settings
        own = sample_ids.view(settings.num_micro_steps, settings.dp_shard, settings.micro_batch)
        return [self.sequences(ids) for ids in own[:, dist.get_rank()]]

    def sequences(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        at = ids[:, None] * self.settings.sequence_length + torch.arange(self.settings.sequence_length)
        return self.tokens[at].long(), self.tokens[at + 1].long()


def make_parts(settings: Settings) -> Parts:
    """The whole model on this rank. The settings' `dp_shard` is the number of replicas here."""
    model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32, local_files_only=True)
    model.train()
    optimizer = AdamW(decay_groups(model, settings), lr=settings.lr, betas=settings.betas, fused=True)
    schedule = LambdaLR(optimizer, partial(learning_rate_factor, settings=settings))
    tokens = torch.frombuffer(bytearray(settings.text.read_bytes()), dtype=torch.uint8)
    return Parts(settings, model, optimizer, schedule, tokens)


@dataclass(frozen=True, slots=True)
class Ddp:
    """The loop that a good engineer writes around DistributedDataParallel."""

    parts: Parts
    replica: DistributedDataParallel

    @property
    def tokens(self) -> Tensor:
        return self.parts.tokens

    def step(self, sample_ids: Tensor) -> float:
        """The mean loss of the sequences `sample_ids`, before the weights have followed it."""
        parts, total = self.parts, torch.zeros(())
        batches = parts.micro_batches(sample_ids)
        for number, (inputs, labels) in enumerate(batches, start=1):
            with contextlib.nullcontext() if number == len(batches) else self.replica.no_sync():
                logits = self.replica(input_ids=inputs, use_cache=False).logits
                loss = cross_entropy(logits.flatten(0, 1), labels.flatten()) / len(batches)
                loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.replica.parameters(), parts.settings.max_norm)
        parts.optimizer.step()
        parts.optimizer.zero_grad()
        parts.schedule.step()
        dist.all_reduce(total, dist.ReduceOp.AVG)
        return total.item()


def build_ddp(settings: Settings) -> Ddp:
    parts = make_parts(settings)
    return Ddp(parts, DistributedDataParallel(parts.model, gradient_as_bucket_view=True))


@dataclass(frozen=True, slots=True)
class Accelerated:
    """The loop of accelerate's documentation, with its accumulation and its clipping."""

    parts: Parts
    accelerator: Any
    model: Any
    optimizer: Any
    schedule: Any

    @property
    def tokens(self) -> Tensor:
        return self.parts.tokens

    def step(self, sample_ids: Tensor) -> float:
        """The mean loss of the sequences `sample_ids`, before the weights have followed it."""
        accelerator, losses = self.accelerator, []
        for inputs, labels in self.parts.micro_batches(sample_ids):
            with accelerator.accumulate(self.model):
                logits = self.model(input_ids=inputs, use_cache=False).logits
                loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(self.model.parameters(), self.parts.settings.max_norm)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
            losses.append(loss.detach())
        return float(accelerator.reduce(torch.stack(losses).mean(), reduction="mean").item())


def build_accelerate(settings: Settings) -> Accelerated:
    """ModuleNotFoundError without accelerate, which `.[bench]` installs."""
    from accelerate import Accelerator

    parts = make_parts(settings)
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=settings.num_micro_steps, step_scheduler_with_optimizer=False
    )
    prepared = accelerator.prepare(parts.model, parts.optimizer, parts.schedule)
    return Accelerated(parts, accelerator, *prepared)


@dataclass(slots=True)
class Sequences(Dataset[dict[str, Tensor]]):
    """The sequences that Trainer asks for; `order` may change before it has asked."""

    parts: Parts
    order: Tensor

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        inputs, labels = self.parts.sequences(self.order[index][None])
        # Trainer counts `labels`; transformers' loss takes those that are shifted already, so none is lost.
        return {"input_ids": inputs[0], "labels": labels[0], "shift_labels": labels[0]}


class Turns(TrainerCallback):  # type: ignore[misc]
    """Stops Trainer's own loop, which runs in a thread, after each step."""

    def __init__(self) -> None:
        self.may_go, self.is_done = Semaphore(0), Semaphore(0)
        self.loss = math.nan
        self.failure: BaseException | None = None

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        self.loss = logs.get("loss", self.loss)
        self.is_done.release()
        self.may_go.acquire()

    def train(self, trainer: Any) -> None:
        self.may_go.acquire()
        try:
            trainer.train()
        except BaseException as error:
            self.failure = error
            self.is_done.release()


@dataclass(slots=True)
class HfTrainer:
    """HF Trainer, whose loop can't be called step by step."""

    sequences: Sequences
    turns: Turns
    num_done: int = 0

    @property
    def tokens(self) -> Tensor:
        return self.sequences.parts.tokens

    def step(self, sample_ids: Tensor) -> float:
        """The mean loss of a step. The first has the sequences `sample_ids`; Trainer reads others ahead."""
        first = self.num_done * len(sample_ids)
        self.sequences.order[first : first + len(sample_ids)] = sample_ids
        self.num_done += 1
        self.turns.may_go.release()
        self.turns.is_done.acquire()
        if self.turns.failure is not None:
            raise RuntimeError("Trainer has failed") from self.turns.failure
        return self.turns.loss


def build_trainer(settings: Settings) -> HfTrainer:
    """ImportError without accelerate, which `.[bench]` installs."""
    parts = make_parts(settings)
    order = torch.zeros(settings.steps * settings.global_batch, dtype=torch.int64)
    sequences, turns = Sequences(parts, order), Turns()
    arguments = TrainingArguments(
        output_dir=str(settings.model / "trainer"),
        use_cpu=True,
        max_steps=settings.steps,
        per_device_train_batch_size=settings.micro_batch,
        gradient_accumulation_steps=settings.num_micro_steps,
        max_grad_norm=settings.max_norm,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(
        model=parts.model,
        args=arguments,
        train_dataset=sequences,
        optimizers=(parts.optimizer, parts.schedule),
        callbacks=[turns],
    )
    Thread(target=turns.train, args=(trainer,), daemon=True).start()
    return HfTrainer(sequences, turns)
