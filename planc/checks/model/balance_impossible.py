"""Balance of experts that the runtime could not compute exactly."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.inventory.routers import Router, has_other_rows, routers, unrouted
from planc.layouts.families import family, quoted
from planc.plan.balance import Layers, Over, Switch, balance_loss, bias_update, is_balanced
from planc.plan.facts import gradient_accumulation
from planc.source import Span

CODE = Code("P727", "balance-impossible", "this balance of experts can't be computed exactly")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One error for each reason."""
    plan, inventory = subject.plan, subject.inventory
    if not is_balanced(plan, inventory):
        return
    known = tuple(routers(inventory))
    if not known:
        text = "the model has no experts whose router planc knows"
        yield from _at(subject, text, help="remove the `balance` block")
        return
    if others := unrouted(inventory):
        names = quoted(subject.patterns(others))
        yield from _at(subject, f"planc does not know the router of {names}", help="write `loss = none`")
    if shared := [router.fqn for router in known if has_other_rows(inventory, router)]:
        text = f"{quoted(subject.patterns(shared))} has rows for more than experts"
        yield from _at(subject, text, help="write `loss = none`")
    yield from _compiled(subject, [name for router in known for name in (router.experts, router.fqn)])
    loss = balance_loss(plan, inventory)
    if bias_update(plan) is not None:
        yield from _biases(subject, known)
    if isinstance(loss, Switch):
        yield from _over_step(subject, loss)
        yield from _pooled(subject, loss, sizes={router.num_experts for router in known})


def _at(subject: Subject, text: str, *, help: str, why: tuple[Label, ...] = (), note: str = "") -> Findings:
    """At the loss, or at the model where that is its config.json's."""
    plan = subject.plan
    is_written = "balance" in plan.spans
    where = plan.span("balance.loss") if is_written else plan.span("model.hf")
    origin = () if is_written else ("config.json enables a loss with `output_router_logits`",)
    notes = (note, *origin) if note else origin
    yield CODE.at(where, text, secondary=why, notes=notes, help=help)


def _compiled(subject: Subject, names: list[str]) -> Findings:
    spans: dict[Span, str] = {}
    for module, span in subject.bound.compiled.items():
        if any(f"{name}.".startswith(f"{module}.") for name in names):
            spans.setdefault(span, module)
    for span, module in spans.items():
        yield from _at(
            subject,
            f"`{family(subject.inventory, module)}` contains experts and is compiled",
            why=(Label(span, "compiled here"),),
            note="torch.compile would trace what counts the tokens of experts",
            help="compile other modules, such as `model.layers.*.self_attn`",
        )


def _biases(subject: Subject, known: tuple[Router, ...]) -> Findings:
    plan, inventory = subject.plan, subject.inventory
    moved = [router.bias for router in known if router.bias]
    if not moved:
        yield from _at(
            subject,
            "no router of this model has a bias that it adds to scores only to choose experts",
            help="write `loss = switch(coefficient = 0.01)`",
        )
        return
    dtype, own = plan.model.dtype, dict(inventory.own_dtypes(plan.model.dtype))
    wide = inventory.kept_in_float32(dtype)
    narrow = [name for name in moved if name not in wide and own.get(name, dtype).size_bytes < 4]
    if narrow:
        yield from _at(
            subject,
            f"`{narrow[0]}` is {dtype}",
            why=(Label(plan.span("model.dtype"), f"{dtype} here"),),
            note="a bias of a few tenths would round updates away",
            help="write `model { dtype = float32 }`, and `fsdp { param_dtype = bfloat16 }` for the layers",
        )
    if plan.adapter is not None:
        yield from _at(
            subject,
            f"`{moved[0]}` is a tensor of the base model",
            why=(Label(plan.adapter.span, "only adapters are trained and exported"),),
            help="write `loss = none`",
        )


def _over_step(subject: Subject, loss: Switch) -> Findings:
    times = gradient_accumulation(subject.plan)
    if loss.over is Over.STEP and times > 1:
        yield from _at(
            subject,
            f"a step has {times} micro-batches",
            note="the choices of a whole step are unknown when backward of its first micro-batch starts",
            help="write `over = sequence`, or set `train.tokens_per_step` to one micro-batch for each rank",
        )


def _pooled(subject: Subject, loss: Switch, *, sizes: set[int]) -> Findings:
    plan = subject.plan
    if loss.layers is not Layers.POOLED:
        return
    help = f"write `balance {{ loss = switch(coefficient = {loss.coefficient}, over = {loss.over}) }}`"
    if plan.mesh.pp > 1:
        yield from _at(
            subject,
            "`layers = pooled` needs the choices of all layers, which are in several stages",
            why=(Label(plan.span("mesh.pp"), f"pp = {plan.mesh.pp}"),),
            help=f"{help}, where each router has its own loss",
        )
    if len(sizes) > 1:
        numbers = ", ".join(map(str, sorted(sizes)))
        yield from _at(subject, f"routers choose among {numbers} experts", help=help)
