"""First plans for every model that ships, and for every architecture of the catalogue: all are sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.api import check_source
from planc.devices.hardware import DEVICES
from planc.first_plan.brief import Brief
from planc.first_plan.practice import DataSize, length_of, practice_of, tokens_on
from planc.first_plan.purpose import Purpose
from planc.first_plan.write import Written, first_plan
from planc.fmt.format import format_source
from planc.hub.user_dirs import cache_dir
from planc.inventory.known import KnownModels
from planc.source import SourceFile
from planc.tune.base import base_of
from planc.tune.score import Scorer
from planc.tune.search import Search
from tests.plans import PLANS
from tests.slow import slow_except

CATALOGUE = Path(__file__).parents[1] / "catalogue" / "models"
MODELS = [
    path.parent for home in (PLANS / "models", CATALOGUE) for path in sorted(home.glob("*/inventory.json"))
]
REFUSED = {"tiny-apertus": "P720", "tiny-llama-small-vocabulary": "P705"}
"""Models that can't be trained from random weights, or on bytes, by the code of the reason."""

TEXTS_AND_CHATS = (Purpose.PRETRAIN, Purpose.CONTINUE, Purpose.CHATS, Purpose.ADAPTERS)


def plan_for(
    folder: Path, purpose: Purpose, *, gpus: int = 0, gpu: str = "h100", sequence_length: int | None = None
) -> Written:
    models = KnownModels(folder.parent, cache_dir())
    inventory = models.get(folder.name)
    size = inventory.num_parameters
    gpus = gpus or (8 if size < 10**10 else 64 if size < 10**11 else 512)
    tokenizer = "bytes" if inventory.vocab_size < 300 else f'file("{folder.name}/tokenizer.json")'
    brief = Brief(
        "new.plan",
        f'"{folder.name}"',
        folder.parent,
        purpose,
        gpus,
        min(8, gpus),
        DEVICES.get(gpu),
        "python_stdlib()",
        tokenizer,
        DataSize(),
        sequence_length=sequence_length,
    )
    return first_plan(brief, inventory, models)


@pytest.mark.parametrize(
    "folder", slow_except(MODELS, "tiny-hrm", name=lambda path: path.name), ids=lambda path: path.name
)
def test_a_first_plan_is_sound_and_formatted(folder: Path) -> None:
    written = plan_for(folder, Purpose.PRETRAIN)
    if folder.name in REFUSED:
        assert [one.code.code for one in written.checked.diagnostics] == [REFUSED[folder.name]]
        return
    assert written.ok, (written.checked.diagnostics, written.notes)
    assert written.checked.plan is not None and written.checked.plan.expectations
    assert format_source(SourceFile("new.plan", written.text))[0] == written.text


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("purpose", TEXTS_AND_CHATS)
def test_every_purpose_of_text_and_chats_has_a_plan_on_devices_and_on_cpus(purpose: Purpose) -> None:
    """Layers are compiled on devices alone, and not those of chats, which are isolated documents."""
    for gpu in ("h100", "cpu"):
        written = plan_for(PLANS / "models" / "tiny-llama", purpose, gpus=4, gpu=gpu)
        assert written.ok
        compiles = 'compile {\n  "model.layers.*" -> region\n}\n' in written.text
        assert compiles == (gpu == "h100" and not purpose.packs_chats)


def test_a_model_that_only_its_own_attention_computes_says_so_in_its_plan() -> None:
    text = plan_for(PLANS / "models" / "tiny-llama4", Purpose.PRETRAIN, gpus=1).text
    assert "fused attention is refused (P708)" in text and "attention = eager" in text


@pytest.mark.slow
def test_a_first_plan_can_be_searched_from() -> None:
    """`expect` holds sizes in bytes, which a search writes into every plan that it tries."""
    folder = PLANS / "models" / "tiny-llama"
    written = plan_for(folder, Purpose.PRETRAIN, gpus=8)
    assert written.checked.bound is not None
    base = base_of(written.checked.bound, tokens=None)
    inventory = written.checked.bound.inventory
    device = DEVICES["h100"]
    models = KnownModels(folder.parent, cache_dir())
    search = Search(base, models, folder.parent, Scorer(base, inventory, device, 8), device, 8, 8)
    assert search.proposals()


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["h100", "cpu"])
def test_a_first_plan_holds_on_other_meshes_and_devices(gpu: str) -> None:
    """What it expects is what a resumption on another mesh keeps, and a search for another size."""
    folder = PLANS / "models" / "tiny-llama"
    written = plan_for(folder, Purpose.PRETRAIN, gpus=8, gpu=gpu)
    models = KnownModels(folder.parent, cache_dir())
    replicas = [SourceFile(f"--set {one}", one) for one in ("mesh.dp_shard = 1", "mesh.dp_replicate = 2")]
    checked = check_source(
        SourceFile("new.plan", written.text), base=folder.parent, models=models, settings=replicas
    )
    assert "P702" not in {one.code.code for one in checked.diagnostics}
    assert written.checked.bound is not None
    base, device = base_of(written.checked.bound, tokens=None), DEVICES["h100"]
    scorer = Scorer(base, written.checked.bound.inventory, device, 8)
    assert Search(base, models, folder.parent, scorer, device, 8, 16).proposals()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-mamba", "tiny-llama4"])
def test_conversations_do_not_share_sequences_where_attention_cannot_keep_them_apart(name: str) -> None:
    """GPT-2 has dropout, so its own code computes attention, which knows no documents."""
    written = plan_for(PLANS / "models" / name, Purpose.CHATS, gpus=8)
    assert written.ok, written.checked.diagnostics
    assert "# The model's attention can't keep conversations apart (P" in written.text
    assert "packing = none" in written.text
    assert "packing = whole" in plan_for(PLANS / "models" / "tiny-llama", Purpose.CHATS, gpus=8).text


def test_what_is_wrong_on_every_mesh_is_told_as_a_finding() -> None:
    """A sequence longer than the model's positions is no fault of a mesh."""
    written = plan_for(PLANS / "models" / "tiny-llama", Purpose.PRETRAIN, gpus=8, sequence_length=100_000)
    assert not written.ok
    assert "P704" in [one.code.code for one in written.checked.diagnostics]


@pytest.mark.slow
def test_tokens_that_do_not_fit_are_fewer_with_the_reason() -> None:
    """Between micro steps FSDP keeps whole gradients, which 405B parameters leave no room for."""
    text = plan_for(PLANS / "models" / "llama-3.1-405b", Purpose.PRETRAIN).text
    assert "# 16_777_216 do not fit these devices" in text
    assert "tokens_per_step = 4_194_304" in text


def test_rates_fall_with_size_and_with_what_is_already_learned() -> None:
    sizes = (10**7, 10**8, 10**9, 10**10, 5 * 10**10, 4 * 10**11)
    rates = {purpose: [practice_of(purpose, size).learning_rate for size in sizes] for purpose in Purpose}
    for found in rates.values():
        assert found == sorted(found, reverse=True)
    for first, second in ((Purpose.PRETRAIN, Purpose.CONTINUE), (Purpose.CONTINUE, Purpose.CHATS)):
        assert all(more > less for more, less in zip(rates[first], rates[second], strict=True))


@pytest.mark.parametrize("devices", [1, 2, 3, 6, 8, 24, 64, 512, 16_384])
def test_tokens_of_a_step_are_whole_sequences_on_every_rank(devices: int) -> None:
    tokens = tokens_on(devices, wanted=524_288, unit=4_096)
    assert tokens % 4_096 == 0
    if devices <= 64:
        assert tokens % (4_096 * devices) == 0
        assert 0.5 < tokens / 524_288 < 2


def test_a_warm_up_is_at_most_a_tenth_of_a_short_run() -> None:
    for purpose in Purpose:
        for number in (1, 40, 100_000):
            length = length_of(purpose, num_parameters=10**9, tokens_per_step=1, data_tokens=0, given=number)
            assert length.steps == number
            assert 1 <= int(length.warmup.removesuffix(" steps")) <= max(1, number // 10)
