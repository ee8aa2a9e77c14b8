"""A good loop by hand, to measure planc beside: `python -m tests.gpu.hand MODE MODEL LENGTH STEPS FILE`.

Nothing of planc is in it: FSDP2 over one rank with parameters cast to bfloat16, fused AdamW, clipping by
foreach kernels, and transformers' own way to recompute or torch's to compile layers. MODE is eager, compiled
or recomputed.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

WARMUP_STEPS = 6
_BATCH = 2


def build(model: str, mode: str, device: str) -> Any:
    """The model with its layers sharded over one rank."""
    config = AutoConfig.from_pretrained(model, use_cache=False)
    with torch.device(device):
        built: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    built.train()
    if mode == "recomputed":
        built.gradient_checkpointing_enable({"use_reentrant": False})
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh(device, (1,))
    for layer in built.model.layers:
        if mode == "compiled":
            layer.compile(fullgraph=True)
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(built, mesh=mesh, mp_policy=policy)
    return built


def train(model: Any, device: str, *, length: int, num_steps: int) -> list[float]:
    """The seconds of each step, up to the value of its loss."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    seconds = []
    for _ in range(num_steps):
        wait()
        began = time.perf_counter()
        ids = torch.randint(0, 256, (_BATCH, length + 1), device=device)
        logits = model(ids[:, :-1]).logits
        loss = cross_entropy(logits.float().view(-1, logits.size(-1)), ids[:, 1:].reshape(-1))
        loss.backward()
        del logits
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        wait()
        seconds.append(time.perf_counter() - began)
    return seconds


def main(mode: str, model: str, length: int, num_steps: int, path: Path) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    seconds = train(build(model, mode, device), device, length=length, num_steps=num_steps)
    is_cuda = device == "cuda"
    found = {
        "seconds": statistics.median(seconds[WARMUP_STEPS:]),
        "first_seconds": seconds[0],
        "allocated_bytes": torch.cuda.max_memory_allocated() if is_cuda else 0,
        "reserved_bytes": torch.cuda.max_memory_reserved() if is_cuda else 0,
    }
    path.write_text(json.dumps(found), encoding="utf-8")
    print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
