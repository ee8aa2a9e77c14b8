"""The length of the training and the size of its steps, as a plan may write them."""

from __future__ import annotations

from dataclasses import replace

from planc.diagnostics import Label
from planc.plan import codes
from planc.plan.epochs import EPOCHS
from planc.plan.quantities import TOKENS, exact
from planc.plan.scalars import Int
from planc.plan.scope import Scope
from planc.plan.written import Written
from planc.record import record
from planc.syntax import ast


@record
class Tokens:
    """A number of tokens, which may be written as `4 M` or `4 Mi`."""

    def convert(self, value: ast.Value, scope: Scope) -> int | None:
        written, _ = scope.lookup(value)
        if isinstance(written, ast.Number) and written.unit is not None and written.unit.text in TOKENS:
            amount = (exact(written) or 0) * TOKENS[written.unit.text]
            if amount.denominator == 1:
                value = replace(written, value=int(amount), unit=None, text=str(amount))
        return Int(1).convert(value, scope)

    def describe(self, *, mark: str = "") -> str:
        return Int(1).describe(mark=mark)

    def render(self, value: int) -> str:
        return Int().render(value)


def read_epochs(train: Written, scope: Scope) -> None:
    """Reads `steps = 2 epochs` as `epochs = 2`: a plan may write either."""
    if "steps" not in train.values:
        return
    value, span, origin = train.values["steps"]
    written, _ = scope.lookup(value) if isinstance(value, ast.Arithmetic) else (value, ())
    if not isinstance(written, ast.Number) or written.unit is None or written.unit.text not in EPOCHS:
        return
    del train.values["steps"]
    if "epochs" in train.values:
        first = Label(train.values["epochs"][1], "first given here")
        scope.report(
            codes.DUPLICATE, span, "a second number of epochs", secondary=(first,), help="remove one of them"
        )
        return
    train.values["epochs"] = (replace(written, unit=None), span, origin)
