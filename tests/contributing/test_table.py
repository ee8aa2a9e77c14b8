"""CONTRIBUTING's table, executed: what a row says is added to a scratch copy of planc, and trained with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from planc.inventory.codec import FORMAT_VERSION
from planc.inventory.load import save_inventory
from tests.contributing import recipes
from tests.contributing.scratch import (
    MAX_PLACES,
    TEXT,
    Recipe,
    Scratch,
    Server,
    row_of,
    scratch_copy,
    unnamed,
)

RECIPES = [one for one in vars(recipes).values() if isinstance(one, Recipe)]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.row)
def test_a_row_names_every_place_and_at_most_three(recipe: Recipe) -> None:
    assert unnamed(recipe) == []
    write, _ = row_of(recipe.row)
    assert write.count(", and ") + write.count(", its ") + 1 <= MAX_PLACES


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def scratch(tmp_path: Path, server: Server) -> Scratch:
    return scratch_copy(tmp_path, server)


@pytest.fixture(scope="module")
def unchanged_losses(tmp_path_factory: pytest.TempPathFactory, server: Server) -> list[float]:
    """The losses of the plan by planc as it is."""
    scratch = scratch_copy(tmp_path_factory.mktemp("unchanged"), server)
    return scratch.losses(scratch.write("plain.plan"))


@pytest.mark.slow
def test_a_train_key_trains_and_a_resume_asks_for_leave(
    scratch: Scratch, unchanged_losses: list[float]
) -> None:
    scratch.apply(recipes.TRAIN_KEY)
    frozen = scratch.write("frozen.plan", ("steps = 3", "steps = 3\n  frozen_steps = 3"))
    still = scratch.write("still.plan", ("lr = 1e-3)", "lr = 1e-30)"))
    plain = scratch.write("plain.plan")
    assert scratch.losses(frozen) == scratch.losses(still) != unchanged_losses
    saves = "\ncheckpoint {\n  save_every = 1 steps\n}\n"
    for name in (plain, frozen):
        (scratch.plans / name).write_text((scratch.plans / name).read_text() + saves)
    told = scratch.planc("diff", plain, frozen)
    assert "train.frozen_steps  0 -> 3" in told
    assert "resume: refused: this plan trains differently" in told
    assert "--allow-change train.frozen_steps" in told


def test_a_rule_refuses_a_plan_and_its_page_explains_it(scratch: Scratch) -> None:
    scratch.apply(recipes.RULE)
    low = scratch.write("low.plan", ("lr = 1e-3)", "lr = 1e-3, betas = [0.1, 0.95])"))
    assert "error[P799]" in scratch.planc("check", low, code=1)
    assert "averages few steps" in scratch.planc("explain", "P799")
    assert len(scratch.losses(scratch.write("plain.plan"))) == 3


@pytest.mark.slow
def test_a_style_trains_as_the_one_it_repeats(scratch: Scratch) -> None:
    scratch.apply(recipes.STYLE)
    rules = (
        'mesh {\n  tp = 2\n}\n\ntensor_parallel on tp {\n  "model.layers.*.mlp.{gate,up}_proj" -> STYLE\n'
        '  "model.layers.*.mlp.down_proj" -> rowwise\n}\n\ndata {'
    )
    own = scratch.write("own.plan", ("data {", rules.replace("STYLE", "columns")))
    known = scratch.write("known.plan", ("data {", rules.replace("STYLE", "colwise")))
    assert scratch.losses(own, ranks=2) == scratch.losses(known, ranks=2)


def test_an_op_changes_what_is_trained(scratch: Scratch, unchanged_losses: list[float]) -> None:
    scratch.apply(recipes.OP)
    plain = scratch.write("plain.plan")
    assert "weights.round" in scratch.planc("show", plain, "--graph", "text")
    rounded = scratch.losses(plain)
    assert rounded[0] == unchanged_losses[0] and rounded[1] != unchanged_losses[1]
    # The quick plan's weights are far below 0.125: rounded, they are 0 or, of norms, 1, and all logits equal.
    assert rounded[1] == pytest.approx(5.5607, abs=1e-3)


@pytest.mark.slow
def test_an_optimizer_trains_as_torchs_own(scratch: Scratch) -> None:
    scratch.apply(recipes.OPTIMIZER)
    kind = "radam(lr = 1e-3, decoupled_weight_decay = true, weight_decay = 0.1)"
    plan = scratch.write("radam.plan", ("adamw(lr = 1e-3)", kind))
    assert len(set(scratch.losses(plan))) == 3
    assert "optimizer decoupled_weight_decay" in scratch.planc("diff", plan, scratch.write("plain.plan"))
    scratch.planc("verify", plan)


@pytest.mark.slow
def test_a_data_source_is_read_as_the_same_text_from_elsewhere(
    scratch: Scratch, unchanged_losses: list[float]
) -> None:
    scratch.apply(recipes.SOURCE)
    rows = (json.dumps({"text": line}) for line in TEXT.splitlines())
    (scratch.plans / "data" / "a.jsonl").write_text("\n".join(rows))
    lines = scratch.write("lines.plan", ("text(", "lines("))
    same = scratch.write("same.plan", ('text("data/*.txt")', 'jsonl("data/*.jsonl")'))
    assert scratch.losses(lines) == scratch.losses(same) != unchanged_losses
    assert "data.source" in scratch.planc("diff", lines, same)


def test_a_schedule_sets_every_steps_rate(scratch: Scratch) -> None:
    scratch.apply(recipes.SCHEDULE)
    plan = scratch.write("halving.plan", ("lr = 1e-3)", "lr = 1e-3)\n  schedule = halving()"))
    assert scratch.losses(plan, name="learning_rate") == [1e-3, 5e-4, 2.5e-4]


@pytest.mark.slow
def test_an_importer_writes_a_plan_that_trains_as_the_config_says(
    scratch: Scratch, unchanged_losses: list[float]
) -> None:
    scratch.apply(recipes.IMPORTER)
    config = {
        "model": {"name": "models/tiny-llama"},
        "distributed": {"tp_size": 1, "dp_size": 1},
        "training": {
            "learning_rate": 1e-5,
            "total_train_steps": 3,
            "seq_length": 64,
            "micro_batch_size": 2,
        },
        "logging": {"use_wandb": False},
    }
    (scratch.plans / "config.json").write_text(json.dumps(config))
    notes = scratch.planc(
        "import", "config.json", "-o", "imported.plan", "--data", "data/*.txt", "--lr", "1e-3"
    )
    assert "config.json: picotron, pretrains random weights on documents, 6 of 8 keys in the plan" in notes
    assert "`--lr` gives 0.001 instead of 1e-5" in notes
    assert scratch.losses("imported.plan") == unchanged_losses


@pytest.mark.slow
def test_an_inventory_fact_is_probed_saved_and_read_back(scratch: Scratch) -> None:
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 288,
    }
    types = ["full_attention", "sliding_attention", "full_attention"]
    config = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "num_hidden_layers": 3,
        "layer_types": types,
        "sliding_window": 16,
        "use_sliding_window": True,
        **sizes,
    }
    folder = scratch.plans / "windows"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_inventory(folder)
    before = json.loads((folder / "inventory.json").read_text())
    assert "layer_types" not in before
    scratch.apply(recipes.INVENTORY_FACT)
    # What the release before has saved lacks the fact.
    assert f"this planc reads version {FORMAT_VERSION + 1}" in scratch.planc("inventory", "windows", code=2)
    scratch.planc("inventory", "windows", "--save")
    read = json.loads((folder / "inventory.json").read_text())
    assert read.pop("layer_types") == types
    assert read == {**before, "format_version": FORMAT_VERSION + 1}
    plan = scratch.write("windows.plan", ("models/tiny-llama", "windows"))
    scratch.planc("check", plan)
