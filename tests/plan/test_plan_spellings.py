"""Words of PyTorch, Python and YAML, and words that planc does not have yet."""

from __future__ import annotations

import pytest

from planc.api import Checked, check_source
from planc.diagnostics import Applicability
from planc.diagnostics.fixes import apply_fixes
from planc.source import SourceFile
from tests.plan.resolving import edited, fault, resolved
from tests.plans import PLANS


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("dtype = float32", "dtype = fp32"),
        ("dtype = float32", "dtype = float"),
        ("dtype = float32", "dtype = torch.float32"),
        ("dtype = float32", 'dtype = "torch.float32"'),
        ("keep_last = 2", "keep_last = 2\n  save_last = True"),
        ("clip_grad_norm = 1.0", "clip_grad_norm = None"),
        ("clip_grad_norm = 1.0", 'clip_grad_norm = "1e-1"'),
        ("seed = 42", 'seed = "42"'),
    ],
)
def test_another_language_s_word_has_a_safe_fix(old: str, new: str) -> None:
    text = edited((old, new))
    (problem,) = check_text(text).diagnostics
    assert problem.fix is not None and problem.fix.is_safe
    assert check_text(apply_fixes(SourceFile("x.plan", text), [problem], with_unsafe=False).text).ok


def check_text(text: str) -> Checked:
    return check_source(SourceFile("x.plan", text), base=PLANS)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("bf16", "bfloat16"),
        ("fp16", "float16"),
        ("half", "float16"),
        ("fp32", "float32"),
        ("float", "float32"),
    ],
)
def test_a_short_dtype_is_the_one_of_that_name(word: str, meant: str) -> None:
    fix = fault(edited(("dtype = float32", f"dtype = {word}"))).fix
    assert fix is not None and (fix.replacement, fix.applicability) == (meant, Applicability.SAFE)


@pytest.mark.parametrize(("name", "meant"), [("CPUOffloadPolicy", "true"), ("OffloadPolicy", "false")])
def test_an_offload_policy_is_a_bool(name: str, meant: str) -> None:
    problem = fault(edited((" replicate_on", f" cpu_offload = {name}()\n  replicate_on")))
    assert problem.help == f"write `{meant}`"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ColwiseParallel", "write `colwise`"),
        ("RowwiseParallel", "write `rowwise`"),
        ("SequenceParallel", "did you mean `sequence_parallel`?"),
        ("PrepareModuleInput", "did you mean `prepare_input`?"),
    ],
)
def test_a_class_of_pytorch_is_the_style_of_that_name(name: str, meant: str) -> None:
    text = edited(("tensor_parallel on tp {", f'tensor_parallel on tp {{\n  "lm_head" -> {name}()'))
    assert meant in [one.help for one in check_text(text).diagnostics]


def test_a_parameter_with_such_a_name_is_that_parameter() -> None:
    param = ("param lr", "param nil: int = 1\nparam lr")
    text = edited(param, ("tp = 2", "tp = 2\n  devices_per_node = nil"))
    assert resolved(text).mesh.devices_per_node == 1


@pytest.mark.parametrize(
    ("old", "new", "instead"),
    [
        ("clip_grad_norm = 1.0", "clip_grad_norm = 1.0\n  master_dtype = float32", "param_dtype = bfloat16"),
        ("clip_grad_norm = 1.0", "clip_grad_norm = 1.0\n  master_weights = true", "dtype = float32"),
        ("replicate_on = dp_replicate", "offload_policy = true", "cpu_offload = true"),
        ("train {", 'torch_compile {\n  "model.layers.*" -> full\n}\ntrain {', "-> region"),
        ("train {", "wandb { }\ntrain {", 'tracker "wandb"'),
        ("train {", "train {\n  report_to = 1", 'tracker "wandb"'),
    ],
)
def test_what_planc_does_without_is_said_with_what_serves_instead(old: str, new: str, instead: str) -> None:
    help = fault(edited((old, new))).help
    assert help is not None and instead in help
