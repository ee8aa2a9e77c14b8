"""planc's table of attention kernels against PyTorch: `python -m tests.gpu.kernels [--device cuda]`.

PyTorch's own answers for the attention of every architecture, as planc asks for it; every kind of call that
planc makes, forward and backward, against products and a softmax in float64 on the CPU; and on a device the
peak and time of a layer's attention, planc's and what PyTorch does unasked. `--costs` measures just these: on
a CPU a long sequence under a window, which planc computes in tiles and PyTorch under one mask.
Exits with 1 if an answer or a result differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.nn.functional import pad, scaled_dot_product_attention

from planc.devices.attention_kernels import AttentionCall, Kernel, head_dim_multiple, kernel_of
from planc.runtime.torch.attention.allgather import allgather_attention, attend_to_end
from planc.runtime.torch.attention.asking import reasons
from planc.runtime.torch.attention.documents import Documents
from planc.runtime.torch.attention.kernels import BlockOutput, block_backward, block_forward, merge
from planc.runtime.torch.attention.plain import plain_attention
from planc.runtime.torch.attention.ring import ring_attention
from planc.runtime.torch.attention.windows import Windows
from planc.vocab import DType
from tests.bench.meter import memory, reset_peak, return_freed_memory
from tests.gpu.architecture_shapes import Shape, shapes

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
LIMITS = {"bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}
"""Relative to the largest element of the expectation."""
BACKENDS = {0: "math", 1: "flash", 2: "memory-efficient", 3: "cudnn", 4: "overrideable"}
"""The values of torch.nn.attention.SDPBackend."""
ACCEPTED = {Kernel.FLASH: ("flash", "cudnn"), Kernel.EFFICIENT: ("memory-efficient",), Kernel.MATH: ("math",)}
BATCH, SCALE = 2, 0.2
LENGTH, TIMED_LENGTH = 160, 2048


@dataclass(frozen=True, slots=True)
class Case:
    """A call: `before` are keys before the first query's, `window` hides all but the last keys.

    `documents` are the lengths of those in each sample, which see nothing of each other.
    """

    name: str
    dtype: str
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    before: int = 0
    window: int | None = None
    length: int = LENGTH
    batch: int = BATCH
    documents: tuple[tuple[int, ...], ...] = ()
    softcap: float | None = None


CASES = (
    Case("grouped, bfloat16", "bfloat16", 8, 2, 64, 64),
    Case("head dim 100, bfloat16", "bfloat16", 4, 4, 100, 100),
    Case("head dim 256, bfloat16", "bfloat16", 4, 1, 256, 256),
    Case("head dim 512, bfloat16", "bfloat16", 4, 1, 512, 512),
    Case("latent, bfloat16", "bfloat16", 4, 4, 192, 128),
    Case("window, bfloat16", "bfloat16", 8, 2, 64, 64, window=33),
    Case("lower right, bfloat16", "bfloat16", 8, 2, 64, 64, before=77),
    Case("ungrouped, float32", "float32", 4, 4, 64, 64),
    Case("grouped, float32", "float32", 8, 2, 128, 128),
    Case("head dim 18, float32", "float32", 4, 2, 18, 18),
    Case("latent, float32", "float32", 4, 4, 192, 128),
    Case("window, float32", "float32", 8, 2, 64, 64, window=33),
    Case("lower right, float32", "float32", 8, 2, 64, 64, before=77),
    Case("grouped, float64", "float64", 4, 2, 64, 64),
    Case("lower right, float64", "float64", 4, 2, 64, 64, before=77),
    Case("soft cap, bfloat16", "bfloat16", 8, 4, 256, 256, softcap=2.0, length=600),
    Case("soft cap, window, float32", "float32", 8, 4, 64, 64, window=33, softcap=2.0, length=600),
    Case("soft cap, lower right, float64", "float64", 4, 2, 64, 64, before=77, softcap=2.0),
    # Computed in tiles: the last one is short, and no tile's keys start at a multiple of a kernel's block.
    Case("long window, bfloat16", "bfloat16", 2, 1, 64, 64, window=1001, length=4200, batch=1),
    Case("long window, float32", "float32", 2, 1, 64, 64, window=1001, length=4200, batch=1),
    Case("long window, lower right, float32", "float32", 2, 1, 64, 64, 77, window=33, length=4200, batch=1),
)
PACKED = ((50, 1, 70, 39), (3, 157))
"""Documents of each sample: across the middle, up to it, and of one token."""

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def answers(device: str) -> Iterator[dict[str, Any]]:
    """PyTorch's choice for each call of each architecture, as planc passes it: padded, and repeated."""
    for shape, names in shapes().items():
        for dtype in ("bfloat16", "float32"):
            for has_mask in (False, True) if shape.window else (False,):
                yield _answer(shape, names, device=device, dtype=dtype, has_mask=has_mask)


def _answer(
    shape: Shape, names: tuple[str, ...], *, device: str, dtype: str, has_mask: bool
) -> dict[str, Any]:
    call = AttentionCall(DType(dtype), shape.head_dim, shape.value_dim, has_mask=has_mask)
    kernel = kernel_of(call, device=device)
    multiple = head_dim_multiple(kernel, device=device, dtype=call.dtype)
    kv_heads = shape.kv_heads if kernel is Kernel.FLASH else shape.heads
    value_dim = shape.head_dim if kernel is Kernel.FLASH else shape.value_dim
    asked = _ask(shape.heads, kv_heads, shape.head_dim, value_dim, multiple, device, dtype, has_mask)
    unasked = _ask(
        *(shape.heads, shape.kv_heads, shape.head_dim, shape.value_dim, 1), *(device, dtype, has_mask)
    )
    return {
        "architectures": names,
        "shape": str(shape),
        "dtype": dtype,
        "mask": has_mask,
        "table": str(kernel),
        "torch": asked,
        "torch_unasked": unasked,
        "agrees": any(one in ACCEPTED[kernel] for one in asked),
    }


def _ask(
    heads: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int,
    multiple: int,
    device: str,
    dtype: str,
    has_mask: bool,
) -> tuple[str, ...]:
    """What PyTorch would choose, and on a device the kernels that it says could be used."""
    query, key, value = (
        pad(
            torch.empty(1, num, 32, dim, dtype=DTYPES[dtype], device=device, requires_grad=True),
            (0, -dim % multiple),
        )
        for num, dim in ((heads, head_dim), (kv_heads, head_dim), (kv_heads, value_dim))
    )
    bias = torch.zeros(1, 1, 32, 32, dtype=DTYPES[dtype], device=device) if has_mask else None
    arguments = (query, key, value, bias, 0.0, not has_mask)
    grouped = heads != kv_heads
    chosen = BACKENDS[torch._fused_sdp_choice(*arguments, enable_gqa=grouped)]
    if device != "cuda":
        return (chosen,)
    parameters = torch.backends.cuda.SDPAParams(*arguments, grouped)
    usable = {
        "flash": torch.backends.cuda.can_use_flash_attention,
        "memory-efficient": torch.backends.cuda.can_use_efficient_attention,
        "cudnn": torch.backends.cuda.can_use_cudnn_attention,
    }
    return (chosen, *(name for name, can_use in usable.items() if name != chosen and can_use(parameters)))


def results(device: str) -> Iterator[dict[str, Any]]:
    """The error of the output and of each gradient, of every case and of a ring's second block."""
    for case in CASES:
        yield from _errors(case, partial(_alone, _planc(case)), device)
    for dtype in DTYPES:
        case = Case(f"ring's blocks, {dtype}", dtype, 4, 2, 64, 64, before=LENGTH)
        yield from _errors(case, _ring, device)
    group = _group_of_one(device)
    for kind in ("all-gather", "ring"):
        for dtype in DTYPES:
            case = Case(f"documents, {kind}, {dtype}", dtype, 4, 2, 64, 64, documents=PACKED)
            yield from _errors(case, partial(_alone, _over_cp(kind, case, group, device)), device)
            case = replace(case, name=f"window, {case.name}", window=33)
            yield from _errors(case, partial(_alone, _over_cp(kind, case, group, device)), device)
    dist.destroy_process_group()


def _inputs(case: Case, device: str) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    length, num_keys = case.length, case.before + case.length
    sizes = (
        *((case.heads, length, case.head_dim), (case.kv_heads, num_keys, case.head_dim)),
        *((case.kv_heads, num_keys, case.value_dim), (case.heads, length, case.value_dim)),
    )
    dtype = DTYPES[case.dtype]
    return tuple(torch.randn(case.batch, *size, generator=generator).to(dtype).to(device) for size in sizes)


def _planc(case: Case) -> Attention:
    attend: Callable[..., Tensor] = attend_to_end if case.before else plain_attention
    settings = {"scale": SCALE, "windows": Windows(), "window": case.window, "softcap": case.softcap}
    return lambda query, key, value: attend(query, key=key, value=value, **settings)


def _group_of_one(device: str) -> dist.ProcessGroup:
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None, "it has just been made"
    return dist.group.WORLD


def _over_cp(kind: str, case: Case, group: dist.ProcessGroup, device: str) -> Attention:
    """On the one rank of a mesh dim: its two halves of the sequence are computed apart, as on more ranks."""
    places = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in case.documents])
    documents = Documents()
    documents.begin(places.numpy(), on_device=places.to(device))
    if kind == "ring":
        attend = partial(ring_attention, documents=documents)
    else:
        attend = partial(allgather_attention, documents=documents)
    return lambda query, key, value: attend(
        query,
        key=key,
        value=value,
        scale=SCALE,
        group=group,
        balance="headtail",
        windows=Windows(),
        window=case.window,
    )


def _errors(case: Case, compute: Callable[..., tuple[Tensor, ...]], device: str) -> Iterator[dict[str, Any]]:
    tensors = _inputs(case, device)
    try:
        found = compute(*tensors)
    except (RuntimeError, TypeError, ValueError) as error:
        # The cases after it run.
        text = f"{type(error).__name__}: {error}"[:300]
        yield {"name": f"{case.name}: {text}", "error": float("inf"), "limit": LIMITS[case.dtype]}
        return
    yield from _compared(case, found, *tensors)


def _alone(
    attention: Attention, query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor
) -> tuple[Tensor, ...]:
    inputs = [one.detach().requires_grad_() for one in (query, key, value)]
    out = attention(*inputs)
    return (out.detach(), *torch.autograd.grad(out, inputs, grad_out))


def _compared(case: Case, found: tuple[Tensor, ...], *tensors: Tensor) -> Iterator[dict[str, Any]]:
    *inputs, grad_out = (one.detach().cpu().double() for one in tensors)
    inputs = [one.requires_grad_() for one in inputs]
    out = _plain(case, *inputs)
    expected = (out.detach(), *torch.autograd.grad(out, inputs, grad_out))
    for name, one, other in zip(("out", "query", "key", "value"), found, expected, strict=True):
        error = float((one.double().cpu() - other).abs().max() / other.abs().max())
        yield {"name": f"{case.name}: {name}", "error": error, "limit": LIMITS[case.dtype]}


def _plain(case: Case, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    key, value = (one.repeat_interleave(case.heads // case.kv_heads, 1) for one in (key, value))
    seen = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril(case.before)
    if case.window is not None:
        seen = seen.triu(case.before + 1 - case.window)
    if case.documents:
        numbers = torch.tensor([_numbers(row) for row in case.documents])
        seen = seen & (numbers[:, :, None] == numbers[:, None, :]).unsqueeze(1)
    scores = query @ key.mT * SCALE
    if case.softcap is not None:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    scores = scores.masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ value


def _numbers(lengths: tuple[int, ...]) -> list[int]:
    """Which document each token is of."""
    return [number for number, length in enumerate(lengths) for _ in range(length)]


def _ring(query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor) -> tuple[Tensor, ...]:
    """Output and gradients from two blocks of keys: the first is seen whole, the second up to each query."""
    halves = [
        (one.contiguous(), other.contiguous())
        for one, other in zip(key.chunk(2, 2), value.chunk(2, 2), strict=True)
    ]
    causality = (False, True)
    blocks = [
        block_forward(query, key=one, value=other, causal=is_causal, scale=SCALE)
        for (one, other), is_causal in zip(halves, causality, strict=True)
    ]
    wide = torch.promote_types(query.dtype, torch.float32)
    out, lse = merge(blocks[0].out.to(wide), blocks[0].lse.to(wide), block=blocks[1])
    gradients = [
        block_backward(
            grad_out,
            query=query,
            key=one,
            value=other,
            merged=BlockOutput(out.to(query.dtype), lse, block.state),
            causal=is_causal,
            scale=SCALE,
        )
        for (one, other), block, is_causal in zip(halves, blocks, causality, strict=True)
    ]
    keys, values = (torch.cat([getattr(one, name) for one in gradients], 2) for name in ("key", "value"))
    return out, gradients[0].query + gradients[1].query, keys, values


def costs(device: str) -> Iterator[dict[str, Any]]:
    """Bytes kept, peak and milliseconds of one layer's attention: planc's call, and PyTorch's unasked."""
    for case in _costly(device):
        yield {
            "name": case.name,
            "planc": _cost(case, _planc(case), device),
            "torch": _cost(case, _torch(case, device), device),
        }


def _costly(device: str) -> tuple[Case, ...]:
    timed = partial(Case, length=TIMED_LENGTH, batch=1)
    long = partial(timed, head_dim=128, value_dim=128, window=1024, length=4 * TIMED_LENGTH)
    if device == "cpu":
        dtypes = ("bfloat16", "float32")
        return tuple(long(f"long window, {dtype}", dtype, heads=2, kv_heads=1) for dtype in dtypes)
    return (
        timed("Qwen3-0.6B, bfloat16", "bfloat16", 16, 8, 128, 128),
        timed("Qwen3-0.6B, float32", "float32", 16, 8, 128, 128),
        timed("DeepSeek-V3, bfloat16", "bfloat16", 16, 16, 192, 128),
        timed("window 512, bfloat16", "bfloat16", 16, 8, 128, 128, window=512),
        timed("window 512, float32", "float32", 16, 8, 128, 128, window=512),
        long("long window, bfloat16", "bfloat16", heads=16, kv_heads=8),
        long("long window, float32", "float32", heads=16, kv_heads=8),
        timed("all-gather's second half, bfloat16", "bfloat16", 16, 8, 128, 128, before=TIMED_LENGTH),
        timed("Qwen3-0.6B, float64", "float64", 16, 8, 128, 128),
        timed("Gemma-2-2B, bfloat16", "bfloat16", 8, 4, 256, 256, softcap=50.0),
    )


def _torch(case: Case, device: str) -> Attention:
    """What a model would call."""
    keys = case.before + case.length
    mask = torch.ones(case.length, keys, dtype=torch.bool, device=device).tril(case.before)
    if case.window:
        mask = mask.triu(case.before + 1 - case.window)
    has_mask = bool(case.window or case.before)

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        groups = case.heads // case.kv_heads
        if has_mask and groups > 1:
            key, value = (one.repeat_interleave(groups, 1) for one in (key, value))
        return scaled_dot_product_attention(
            *(query, key, value, mask if has_mask else None),
            is_causal=not has_mask,
            scale=SCALE,
            enable_gqa=groups > 1 and not has_mask,
        )

    return attention


def _cost(case: Case, attention: Attention, device: str) -> Mapping[str, Any]:
    *inputs, grad = _inputs(case, device)
    try:
        return _measured(attention, [one.requires_grad_() for one in inputs], grad)
    except (RuntimeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def _measured(attention: Attention, inputs: list[Tensor], grad: Tensor) -> Mapping[str, Any]:
    on_device = grad.is_cuda
    torch.autograd.grad(attention(*inputs), inputs, grad)
    before = _held(on_device)
    _reset_peak(on_device)
    out = attention(*inputs)
    kept = _held(on_device) - before
    torch.autograd.grad(out, inputs, grad)
    peak = _peak(on_device) - before
    del out
    times = 10 if on_device else 1
    started = time.perf_counter()
    for _ in range(times):
        torch.autograd.grad(attention(*inputs), inputs, grad)
    if on_device:
        torch.cuda.synchronize()
    milliseconds = (time.perf_counter() - started) * 1000 / times
    return {
        "kept_mib": round(kept / 2**20, 1),
        "peak_mib": round(peak / 2**20, 1),
        "ms": round(milliseconds, 3),
    } | ({"kernels": _kernels(attention, inputs, grad)} if on_device else {})


def _held(on_device: bool) -> int:
    return torch.cuda.memory_allocated() if on_device else memory("RssAnon")


def _reset_peak(on_device: bool) -> None:
    if on_device:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    else:
        reset_peak()


def _peak(on_device: bool) -> int:
    if on_device:
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    return memory("VmHWM") - memory("RssFile") - memory("RssShmem")


def _kernels(attention: Attention, inputs: list[Tensor], grad: Tensor) -> list[str]:
    """The names of the longest kernels of forward and backward."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        torch.autograd.grad(attention(*inputs), inputs, grad)
        torch.cuda.synchronize()
    events = sorted(profile.key_averages(), key=lambda one: -one.device_time_total)
    return [one.key[:60] for one in events[:3]]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.kernels")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--costs", action="store_true", help="measure costs, and nothing else")
    arguments = parser.parse_args(argv)
    if arguments.costs:
        return_freed_memory()
        for cost in costs(arguments.device):
            print(json.dumps(cost))
        return 0
    found: dict[str, Any] = {"answers": [], "results": [], "costs": []} | {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
    }
    found["results"] = [*results(arguments.device)]
    for one in found["results"]:
        is_far = not one["error"] <= one["limit"]
        print(f"{one['name']:<40} {one['error']:.1e}", f"ABOVE {one['limit']}" if is_far else "")
    found["answers"] = [*answers(arguments.device)]
    for one in found["answers"]:
        mark = "" if one["agrees"] else "  DIFFERS"
        mask = "mask" if one["mask"] else ""
        chosen = f"{one['table']:<16} PyTorch {', '.join(one['torch'])}; unasked {one['torch_unasked'][0]}"
        architectures = f"{len(one['architectures'])} architectures"
        print(f"{one['shape']:<28} {one['dtype']:<8} {mask:<4} {chosen:<70} {architectures}{mark}")
    if arguments.device == "cuda":
        found["costs"] = [*costs(arguments.device)]
        for one in found["costs"]:
            print(json.dumps(one))
        wide = torch.zeros(1, 2, 32, 64, dtype=torch.float64, device="cuda")
        print("no kernel in float64:", reasons(wide, wide, wide, device=wide.device))
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    wrong = [one for one in found["results"] if not one["error"] <= one["limit"]]
    differing = [one for one in found["answers"] if not one["agrees"]]
    print(
        f"{len(found['results'])} results, {len(wrong)} above their limit; "
        f"{len(found['answers'])} answers, {len(differing)} unlike the table"
    )
    return int(bool(wrong or differing))


if __name__ == "__main__":
    sys.exit(main())
