"""The kernels that a plan counts on are asked of PyTorch before step 1."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from planc.devices.attention_kernels import AttentionCall
from planc.graph.ops import AttachAttention
from planc.runtime.torch.attention.asking import missing_kernels
from planc.vocab import DType
from tests.plans import PLANS, checked

CPU = torch.device("cpu")


@pytest.fixture
def without_flash() -> Iterator[None]:
    torch.backends.cuda.enable_flash_sdp(False)
    yield
    torch.backends.cuda.enable_flash_sdp(True)


@pytest.mark.parametrize("dtype", DType)
def test_a_cpu_has_the_kernels_of_every_dtype(dtype: DType) -> None:
    calls = [AttentionCall(dtype, 64, 64), AttentionCall(dtype, 192, 128), AttentionCall(dtype, 18, 18)]
    assert [*missing_kernels(calls, device=CPU)] == []


@pytest.mark.usefixtures("without_flash")
def test_a_kernel_that_is_not_taken_is_named() -> None:
    calls = [AttentionCall(DType.FLOAT32, 64, 64)]
    assert [*missing_kernels(calls, device=CPU)] == [("takes math for float32 64, not flash", "")]


def calls_of(plan: str, *settings: str) -> list[str]:
    graph = checked(PLANS / plan, *settings).graph
    assert graph is not None
    (attach,) = [op for op in graph.setup if isinstance(op, AttachAttention)]
    return [str(call) for call in attach.calls]


@pytest.mark.parametrize(
    ("plan", "settings", "calls"),
    [
        # 128 features over 8 heads.
        ("launch-fsdp4.plan", (), ["float32 16"]),
        ("launch-fsdp4.plan", ("fsdp.param_dtype=bfloat16",), ["bfloat16 16"]),
        ("launch-one-process.plan", ("model.attention=eager",), []),
        # Each document is computed by itself.
        ("launch-one-process.plan", ("data.packing=isolate",), ["float32 16"]),
        ("launch-cp4.plan", ("data.packing=isolate",), ["float32 16"]),
        # Windows of 512 tokens in five of six layers; head dims of 256.
        ("gemma-3-1b.plan", (), ["bfloat16 256 masked", "bfloat16 256"]),
        # Latent attention: keys of 128 + 64, values of 128.
        ("deepseek-v2-lite.plan", (), ["bfloat16 192/128"]),
    ],
)
def test_a_graph_states_the_calls_that_its_model_makes(
    plan: str, settings: tuple[str, ...], calls: list[str]
) -> None:
    assert calls_of(plan, *settings) == calls
