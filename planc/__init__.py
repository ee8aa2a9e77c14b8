"""planc: a declarative plan compiler for distributed training of Hugging Face models.

`check`, `compile` and `run` are the commands of these names; `Run` is a run step by step. What planc
offers is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planc.cli.running.run_errors import PlanRefused as PlanRefused
    from planc.diagnostics import Diagnostic as Diagnostic
    from planc.diagnostics import Severity as Severity
    from planc.python.checking import check as check
    from planc.python.checking import compile as compile
    from planc.python.results import CheckResult as CheckResult
    from planc.python.results import CompiledPlan as CompiledPlan
    from planc.python.results import RunResult as RunResult
    from planc.python.running import Run as Run
    from planc.python.running import run as run
    from planc.runtime.callbacks import Callback as Callback
    from planc.runtime.callbacks import End as End
    from planc.runtime.callbacks import Metric as Metric
    from planc.runtime.callbacks import Start as Start
    from planc.runtime.callbacks import StepView as StepView
    from planc.runtime.callbacks import Stop as Stop
    from planc.runtime.callbacks import metric as metric
    from planc.runtime.errors import ExitCode as ExitCode
    from planc.runtime.errors import RunError as RunError
    from planc.runtime.observer import Step as Step
    from planc.runtime.observer import StepMetrics as StepMetrics

__version__ = "0.1.0"

_HOMES = {
    "check": "planc.python.checking",
    "compile": "planc.python.checking",
    "run": "planc.python.running",
    "Run": "planc.python.running",
    "CheckResult": "planc.python.results",
    "CompiledPlan": "planc.python.results",
    "RunResult": "planc.python.results",
    "Step": "planc.runtime.observer",
    "StepMetrics": "planc.runtime.observer",
    "Callback": "planc.runtime.callbacks",
    "End": "planc.runtime.callbacks",
    "Metric": "planc.runtime.callbacks",
    "Start": "planc.runtime.callbacks",
    "StepView": "planc.runtime.callbacks",
    "Stop": "planc.runtime.callbacks",
    "metric": "planc.runtime.callbacks",
    "Diagnostic": "planc.diagnostics",
    "Severity": "planc.diagnostics",
    "ExitCode": "planc.runtime.errors",
    "RunError": "planc.runtime.errors",
    "PlanRefused": "planc.cli.running.run_errors",
}
"""Everything that is public, and where it is defined."""

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'planc' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
