"""Routers that are trained, while nothing balances the loads of their experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Severity
from planc.inventory.routers import Router, has_other_rows, routers, unrouted
from planc.layouts.families import quoted
from planc.plan.balance import balance_loss, bias_update
from planc.plan.task import Classification, Embedding

CODE = Code("P725", "experts-unbalanced", "nothing balances the load of experts", Severity.WARNING)


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One warning at the model for all routers that are trained."""
    if balance_loss(subject.plan, subject.inventory) is not None:
        return
    moves = bias_update(subject.plan) is not None
    trained = [
        router
        for router in routers(subject.inventory)
        if _is_trained(subject, router) and not (moves and router.bias)
    ]
    if not trained:
        return
    inventory = subject.inventory
    of_tokens = not isinstance(subject.plan.model.task, Classification | Embedding)
    is_balanceable = (
        of_tokens and not unrouted(inventory) and not any(has_other_rows(inventory, one) for one in trained)
    )
    named = subject.patterns([router.fqn for router in trained])
    listed = ", ".join(f'"{pattern}"' for pattern in named)
    yield CODE.at(
        subject.plan.span("model.hf"),
        f"{quoted(named)} {'learn' if len(trained) > 1 else 'learns'} which of {trained[0].num_experts} "
        "experts each token goes to",
        notes=(
            "the plan adds no balance loss: some experts may fall out of use",
            *_enabled(subject.inventory.added_losses),
        ),
        help=f"{f'write `balance {{ loss = {_advised(trained)} }}`; or ' * is_balanceable}"
        f"freeze the routers with `freeze {{ {listed if len(named) == 1 else f'[{listed}]'} -> frozen }}`, "
        "or write `# planc: ignore[P725] reason`",
    )


def _advised(trained: Sequence[Router]) -> str:
    """The balance that routers are made for: a bias, if they have one."""
    return "bias(update = 1e-3)" if all(router.bias for router in trained) else "switch(coefficient = 0.01)"


def _enabled(fields: Sequence[str]) -> Iterator[str]:
    if fields:
        yield f"its config.json enables one, with `output_router_logits` and {quoted(fields)}"


def _is_trained(subject: Subject, router: Router) -> bool:
    """Whether any weight of a router is trained, at a learning rate."""
    module = subject.inventory.get(router.fqn)
    assert module is not None, "the router is of this inventory"
    rates, frozen = subject.bound.learning_rates, subject.bound.frozen
    own = [f"{module.fqn}.{parameter.name}" for parameter in module.parameters]
    return any(fqn not in frozen and (fqn not in rates or rates[fqn][0] != 0) for fqn in own)
