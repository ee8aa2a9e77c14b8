"""The text of a first plan: blocks from practice, and the rest from a search of `planc.tune`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planc.api import Checked, check_source
from planc.devices.hardware import Device
from planc.diagnostics import Severity
from planc.first_plan.blocks import (
    WHOLE,
    adapter_block,
    blocks,
    dtype_lines,
    loss_lines,
    sequence_length_of,
    task_lines,
    tokens_per_step_of,
    unit_of,
)
from planc.first_plan.brief import Brief
from planc.first_plan.purpose import Rows
from planc.fmt.format import format_source
from planc.inventory.known import KnownModels
from planc.inventory.schema import Inventory
from planc.plan.facts import facts
from planc.record import record
from planc.source import SourceFile
from planc.tables import format_number, plural
from planc.tune.base import TEXT, Base, base_of, model_plan, plan_text
from planc.tune.choice import Choice, Mesh, Recompute, Rules
from planc.tune.score import Scorer
from planc.tune.search import UNTIMED, Search, reasons
from planc.tune.table import written_plan
from planc.vocab import Task

_KEPT = ("parameters", "tokens_per_step")
"""Facts that a change of the mesh, of the devices or of their number leaves as they are."""
_TIE = 0.05
"""Plans this near to the fastest are as good: the intervals of expected times are wider."""
_DOES_NOT_FIT = "P810"
_DRAWS = "P724"
_WITHOUT_DROPOUT = (
    "# Fused attention drops no weights; `attention = eager` would, and takes more memory.",
    "dropout = false",
)
_CHUNKS = "  # The logits of all tokens never exist at once.\n"


@record
class Written:
    """A first plan, or why there is none: findings of its check, or notes of the search by mesh."""

    text: str
    checked: Checked
    notes: tuple[tuple[str, str], ...] = ()
    choice: Choice | None = None

    @property
    def ok(self) -> bool:
        return bool(self.text) and self.checked.ok


def first_plan(brief: Brief, inventory: Inventory, models: KnownModels) -> Written:
    """A plan that passed the check, formatted, with comments and `expect`.

    It is the one that is expected to be fastest, or one within 5 % of it whose mesh has fewer dims. Where
    planc models no time, as on CPUs, parameters are sharded over all ranks.
    """
    if not inventory.layers():
        return Written("", Checked({}, ()), (("the model", "has no repeated layers that FSDP could shard"),))
    started = _started(brief, inventory, models)
    bound = started.checked.bound
    if bound is None or not started.checked.ok:
        return Written("", started.checked)

    def base(brief: Brief) -> Base:
        kept = tuple(blocks(brief, inventory, in_model=started.in_model, packing=started.packing).items())
        tokens = tokens_per_step_of(brief, inventory)
        return replace(base_of(bound, tokens=tokens), kept=kept, expectations=())

    if brief.device is None:
        return _plain(
            brief, base(brief), models, why="planc models no time of CPUs: all ranks shard the model."
        )
    first = None
    for changed in _with_other_tokens(brief, inventory):
        written = _searched(changed, base(changed), brief.device, inventory, models)
        if written.ok:
            return written
        first = first or written
    assert first is not None, "the brief itself comes first"
    return first


def _with_other_tokens(brief: Brief, inventory: Inventory) -> Iterator[Brief]:
    """The brief, then with other tokens per step, unless those were given.

    A model without tensor parallelism needs a sequence for every rank. FSDP keeps whole gradients between
    micro steps, so a large model may only fit with one micro step: a quarter of the tokens, again and again.
    """
    yield brief
    unit = unit_of(brief, inventory)
    tokens = tokens_per_step_of(brief, inventory)
    if brief.tokens_per_step is None and tokens < brief.devices * unit:
        reason = "A sequence for every rank: no mesh that shares one passes the check."
        yield replace(brief, tokens_per_step=brief.devices * unit, tokens_reason=reason)
    tokens //= 4
    while brief.tokens_per_step is None and tokens >= unit and tokens % unit == 0:
        more = format_number(4 * tokens)
        reason = f"{more} do not fit these devices, and published runs of this size have more."
        yield replace(brief, tokens_per_step=tokens, tokens_reason=reason)
        tokens //= 4


@record
class _Started:
    """A plan of one micro batch for the search to start from, with lines of its blocks `model` and `data`."""

    checked: Checked
    in_model: tuple[str, ...] = ()
    packing: tuple[str, ...] = ()


def _started(brief: Brief, inventory: Inventory, models: KnownModels) -> _Started:
    """The first plan that the check accepts, of what practice prefers and what the model's code can do.

    A model that only `eager` computes gets that, with the reason as a comment. So does one whose attention
    cannot keep conversations apart that share a sequence: each then has its own. An encoder whose attention
    drops weights is trained without dropout, as its own attention is slower, unless that is needed anyway.
    """
    length = sequence_length_of(brief, inventory)
    plain = model_plan(
        brief.model, inventory, sequence_length=length, tokenizer=brief.tokenizer, source=_source(brief)
    )
    unit = unit_of(brief, inventory) // length
    plain = plain.replace("  micro_batch = 1\n", f"  micro_batch = {unit}\n")

    def check(settings: _Started) -> _Started:
        text = plain + adapter_block(brief, inventory)
        weights = "random" if brief.purpose.has_new_weights else "pretrained"
        in_model = (
            f"weights = {weights}",
            *dtype_lines(brief),
            *task_lines(brief, inventory),
            *settings.in_model,
        )
        lines = {"model": in_model, "data": settings.packing, "train": loss_lines(brief, inventory)}
        for kind, added in lines.items():
            text = text.replace(f"{kind} {{\n", "\n".join((f"{kind} {{", *added, "")), 1)
        source = SourceFile(brief.name, text)
        return replace(settings, checked=check_source(source, base=brief.folder, models=models))

    whole = WHOLE if brief.purpose.packs_chats else ()
    first = check(_Started(Checked({}, ()), packing=whole))
    if first.checked.ok:
        return first
    refused = first
    if brief.purpose.task is not Task.CAUSAL_LM and _first_code(first) == _DRAWS:
        refused = check(replace(first, in_model=_WITHOUT_DROPOUT))
        if refused.checked.ok:
            return refused
    own = check(replace(first, in_model=_eager(check(replace(refused, packing=()))), packing=()))
    if not own.checked.ok:
        return refused
    isolated = check(replace(own, packing=whole))
    return isolated if isolated.checked.ok else check(replace(own, packing=_apart(isolated)))


def _source(brief: Brief) -> str:
    """The source to start from: files are not read before the plan is written, and their kind is checked."""
    return brief.source if brief.purpose.rows is not Rows.TEXTS else TEXT


def _first_code(started: _Started) -> str:
    errors = (
        diagnostic for diagnostic in started.checked.diagnostics if diagnostic.severity is Severity.ERROR
    )
    return next((error.code.code for error in errors), "")


def _eager(refused: _Started) -> tuple[str, ...]:
    """The lines of `model` for attention by the model's own code; none where fused attention is accepted."""
    code = _first_code(refused)
    why = f"# The model's own code: fused attention is refused ({code})."
    return (why, "attention = eager") if code else ()


def _apart(refused: _Started) -> tuple[str, ...]:
    """The lines of `data` for conversations that do not share sequences."""
    why = f"# The model's attention can't keep conversations apart ({_first_code(refused)})."
    return why, "packing = none"


def _searched(brief: Brief, base: Base, device: Device, inventory: Inventory, models: KnownModels) -> Written:
    scorer = Scorer(base, inventory, device, brief.node)
    search = Search(
        base, models, brief.folder, scorer, device, brief.node, brief.devices, num_wanted=1, tie=_TIE
    )
    proposals = search.proposals()
    if not proposals:
        if UNTIMED in search.notes.values():
            return _plain(brief, base, models, why="planc models no time for this model: all ranks shard it.")
        plain = _plain(brief, base, models, why="")
        # What is wrong on the plainest mesh, its size apart, is wrong on all.
        codes = {
            diagnostic.code.code
            for diagnostic in plain.checked.diagnostics
            if diagnostic.severity is Severity.ERROR
        }
        refused = Checked({}, ()) if codes <= {_DOES_NOT_FIT} else plain.checked
        return Written("", refused, tuple(reasons(search).items()))
    best = proposals[0]
    text = _finished(best.text, best.checked)
    text = written_plan(replace(best, text=text), search, by=f"Written by planc new ({brief.purpose})")
    return _checked(brief, text, models, best.choice)


def _plain(brief: Brief, base: Base, models: KnownModels, *, why: str) -> Written:
    """Parameters sharded over all ranks; layers are recomputed if the plan does not fit otherwise."""
    dtypes = () if brief.device is None else base.dtypes
    refused = None
    for recompute in (Recompute.NONE, Recompute.FULL):
        mesh = Mesh(1, brief.devices, 1, 1, Rules.NONE)
        choice = Choice(mesh, base.sequences_together, recompute, reshard=True, rotate="")
        text = plan_text(replace(base, dtypes=dtypes), choice, devices_per_node=brief.node)
        checked = check_source(SourceFile(brief.name, text), base=brief.folder, models=models)
        if checked.ok and checked.draft is not None:
            break
        refused = refused or Written("", checked)
    else:
        assert refused is not None, "no plan was sound"
        return refused
    text = _finished(text, checked)
    kind = brief.device.name if brief.device is not None else "CPU"
    head = f"# Written by planc new ({brief.purpose}) for {plural(brief.devices, f'{kind} rank')}.\n# {why}\n"
    formatted, _ = format_source(SourceFile(brief.name, head + text))
    assert formatted is not None, "the plan passed the check"
    return _checked(brief, formatted, models, choice)


def _finished(text: str, checked: Checked) -> str:
    """The plan with what it must keep on any mesh, and without a setting that is the default."""
    assert checked.bound is not None, "the plan passed the check"
    kept = facts(checked.bound.plan, checked.bound.inventory)
    text = text.replace("  loss_chunks = 1\n", "").replace(
        "  loss_chunks = auto\n", f"{_CHUNKS}  loss_chunks = auto\n"
    )
    return (
        f"{text}\n# What a change of this plan must keep; planc check proves each line.\nexpect {{\n"
        + "".join(f"  {name} == {kept[name]}\n" for name in _KEPT)
        + "}\n"
    )


def _checked(brief: Brief, text: str, models: KnownModels, choice: Choice) -> Written:
    checked = check_source(SourceFile(brief.name, text), base=brief.folder, models=models)
    return Written(text, checked, (), choice)
