"""What the static check accepts trains as one process does: edits of right plans, checked and run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import pytest

from planc.inventory.codec import loads
from planc.layouts.families import families
from tests.dist.pool import start_server
from tests.mutants.campaign import Mutant, Result, Workshop, judged
from tests.mutants.mutant import Edited
from tests.mutants.report import HOLE, class_of, told
from tests.mutants.verdicts import static
from tests.plans import PLANS
from tests.soundness.edits import Edit, module_edits, single_edits
from tests.soundness.plans import RIGHT_PLANS, RightPlan, mutants_of

QUICK = (("llama ends", 1), ("nanochat sequence", 1))
"""Plans whose first edits are accepted, and how many of these are run every time."""


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    start_server()
    return Workshop(tmp_path_factory.mktemp("soundness"))


def accepted(workshop: Workshop, plan: RightPlan, edits: Iterator[Edit]) -> Iterator[Mutant]:
    return (mutant for mutant in mutants_of(workshop, plan, edits) if not static(mutant.path))


def holes(results: list[Result]) -> list[str]:
    return [told(one) for one in results if class_of(one, "static") == HOLE]


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("plan", RIGHT_PLANS.values(), ids=RIGHT_PLANS.keys())
def test_a_right_plan_is_accepted(plan: RightPlan, workshop: Workshop) -> None:
    path = workshop.write(plan.name.replace(" ", "-"), Edited(plan.draft, plan.config, plan.name))
    assert static(path) == ()


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("name", "count"), QUICK)
def test_edits_that_are_accepted_train_as_one_process(name: str, count: int, workshop: Workshop) -> None:
    plan = RIGHT_PLANS[name]
    found = islice(accepted(workshop, plan, single_edits(plan.draft)), count)
    results = [judged(mutant, depths=("static",)) for mutant in found]
    assert holes(results) == []
    assert {one.status for one in results} == {"equal"}


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("module", ["model", "model.layers.*.mlp.act_fn", "model.rotary_emb"])
@pytest.mark.parametrize("name", ["llama plain", "llama sequence"])
def test_modules_in_which_no_layer_reads_take_no_style(name: str, module: str, workshop: Workshop) -> None:
    plan = RIGHT_PLANS[name]
    found = accepted(workshop, plan, module_edits(plan.draft, modules=[module]))
    assert [mutant.note for mutant in found] == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model"), [("llama sequence", "tiny-llama"), ("llama plain", "tiny-llama")])
def test_styles_on_any_module_that_are_accepted_train_as_one_process(
    name: str, model: str, workshop: Workshop
) -> None:
    plan = RIGHT_PLANS[name]
    inventory = loads((PLANS / "models" / model / "inventory.json").read_bytes())
    modules = families(inventory, inventory.names())
    found = list(accepted(workshop, plan, module_edits(plan.draft, modules=modules)))
    assert found
    assert holes([judged(mutant, depths=("static",)) for mutant in found]) == []


@dataclass(frozen=True, slots=True)
class Observer:
    """A right plan with its text changed: nothing fails when it runs, and the numbers are wrong."""

    of: str
    edits: tuple[tuple[str, str], ...]
    code: str
    statuses: tuple[str, ...] = ("differs",)


VALUES = '"model.layers.*.self_attn.{q,k,v}_proj" -> colwise'
SILENT = {
    "a norm on a part of the tokens": Observer(
        "llama sequence", (('  "model.norm" -> sequence_parallel\n', ""),), "P408"
    ),
    "norms on a part of the heads": Observer(
        "qwen3 plain", (("replicated_with_grad_allreduce", "replicate"),), "P414"
    ),
    "values of a part of the tokens": Observer(
        "qwen3 plain",
        (
            (
                VALUES,
                VALUES.replace("q,k,v", "q,k") + f"\n  {VALUES.replace('{q,k,v}', 'v')}(output = Shard(1))",
            ),
        ),
        "P481",
        # The kernel reads memory after the values, which may be NaN and end the run.
        ("differs", "crash"),
    ),
    "weightless norms on a part of the features": Observer(
        "nanochat sequence",
        (("Shard(1)", "Shard(-1)"), ("embedding_rowwise", "embedding_colwise")),
        "P482",
    ),
    "an attention's own parameters among its heads": Observer(
        "diffllama", (("mlp.{gate,up}_proj", "self_attn.{q,k,v}_proj"), ("mlp.down", "self_attn.o")), "P480"
    ),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("silent", SILENT.values(), ids=SILENT.keys())
def test_a_fault_that_no_run_reports_is_rejected(silent: Observer, workshop: Workshop) -> None:
    plan = RIGHT_PLANS[silent.of]
    path = workshop.write("silent", Edited(plan.draft, plan.config, "by hand"))
    text = path.read_text()
    for old, new in silent.edits:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    result = judged(Mutant(0, "by hand", plan.name, "by hand", path, ""), depths=("static",))
    assert result.status in silent.statuses, result
    assert silent.code in result.codes["static"]


@pytest.mark.slow
@pytest.mark.parametrize("plan", RIGHT_PLANS.values(), ids=RIGHT_PLANS.keys())
def test_every_edit_that_is_accepted_trains_as_one_process(plan: RightPlan, workshop: Workshop) -> None:
    found = accepted(workshop, plan, plan.edits(doubles=True))
    results = [judged(mutant, depths=("static",)) for mutant in found]
    assert holes(results) == []
