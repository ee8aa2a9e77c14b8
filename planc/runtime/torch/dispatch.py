"""Ops as functions: a handler's parameters are what its op reads, its result is what its op writes.

`Dispatch` looks at every handler once, when the table is made. It refuses a handler that asks for a resource
which its op does not declare, and one that leaves out a declared one. A call then costs a look-up for each
parameter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from torch import nn
from torch.optim import Optimizer

from planc.graph.op import CONSUMED, Op, Resource
from planc.runtime.interpreter import Position
from planc.runtime.torch import state
from planc.runtime.torch.agreement.stopping import Stopping
from planc.runtime.torch.attention.documents import Documents
from planc.runtime.torch.checkpoint.background_saving import Checkpoints
from planc.runtime.torch.dropout.masking import Masking
from planc.runtime.torch.extensions.loss import OwnLoss
from planc.runtime.torch.extensions.schedule import OwnSchedule
from planc.runtime.torch.parallel.fsdp import Units
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Hidden, Pipeline
from planc.runtime.torch.parallel.replica_sums import ReplicaSums
from planc.runtime.torch.reporting.instruments import Instruments
from planc.runtime.torch.reporting.readers import Readers
from planc.runtime.torch.training.balance import Balance
from planc.runtime.torch.training.compiled_graphs import CompiledGraphs
from planc.runtime.torch.training.expert_load import ExpertLoad
from planc.runtime.torch.training.step_loss import StepLoss
from planc.runtime.torch.weights.export import Export

Handler = Callable[..., Any]
"""`handler(run, op, ...)`: see above. `at`, `stopping`, `instruments` and `perform` are for every one."""
T = TypeVar("T")

RECORDS: Mapping[Resource, type[Any]] = {
    Resource.MESH: Mesh,
    Resource.MODEL: nn.Module,
    Resource.DOCUMENTS: Documents,
    Resource.DROPOUT: Masking,
    Resource.PIPELINE: Pipeline,
    Resource.COMPILED: CompiledGraphs,
    Resource.UNITS: Units,
    Resource.WEIGHTS: state.Weights,
    Resource.OPTIMIZER: Optimizer,
    Resource.AVERAGES: state.Averages,
    Resource.SCHEDULE: state.Schedule,
    Resource.SOURCES: state.Sources,
    Resource.DATA: state.Data,
    Resource.EVALUATION_SETS: state.EvaluationSets,
    Resource.EXPERT_LOAD: ExpertLoad,
    Resource.BALANCE: Balance,
    Resource.HISTORY: state.History,
    Resource.CHECKPOINTS: Checkpoints,
    Resource.BATCH: state.Batch,
    Resource.TOKENS: state.TokenCount,
    Resource.LOCAL_BATCH: state.LocalBatch,
    Resource.HIDDEN: Hidden,
    Resource.IMAGE_ENCODER: state.ImageEncoder,
    Resource.IMAGES: state.Images,
    Resource.LOGITS: state.Logits,
    Resource.OWN_LOSS: OwnLoss,
    Resource.OWN_SCHEDULE: OwnSchedule,
    Resource.LOSS: state.Loss,
    Resource.STEP_LOSS: StepLoss,
    Resource.GRADIENTS: state.Gradients,
    Resource.REPLICA_SUMS: ReplicaSums,
    Resource.SYNCED_GRADIENTS: state.SyncedGradients,
    Resource.CLIPPED_GRADIENTS: state.ClippedGradients,
    Resource.NORM: state.Norm,
    Resource.METRICS: state.Metrics,
    Resource.VERDICT: state.Verdict,
    Resource.UPDATE: state.Update,
    Resource.EVALUATIONS: state.Evaluations,
    Resource.EXPORT: Export,
    Resource.READERS: Readers,
}
"""The type of each resource's record, by which handlers name it."""
_RESOURCES = {record: resource for resource, record in RECORDS.items()}
_SERVICES = (Position, Stopping, Instruments, state.Perform)


class State:
    """The records of a run, by type."""

    def __init__(self, *records: object) -> None:
        self.values: dict[type[Any], Any] = {_key(one): one for one in records}

    def __getitem__(self, kind: type[T]) -> T:
        found: T = self.values[kind]
        return found

    def get(self, kind: type[T]) -> T | None:
        return self.values.get(kind)

    def put(self, record: object) -> None:
        """Put a record in the place of the one before."""
        self.values[_key(record)] = record

    def with_records(self, *records: object) -> State:
        """A state with some records in the place of these, which stay as they are."""
        found = State()
        found.values = {**self.values, **{_key(one): one for one in records}}
        return found


def _key(record: object) -> type[Any]:
    """The type by which handlers name a record: models and optimizers are of subclasses."""
    found = next((kind for kind in type(record).__mro__ if kind in _RESOURCES or kind in _SERVICES), None)
    return found or type(record)


@dataclass(frozen=True, slots=True)
class Call:
    """A handler, and the types of what it takes, returns, and takes for good."""

    handler: Handler
    takes: tuple[type[Any], ...]
    gives: tuple[type[Any], ...]
    ends: tuple[type[Any], ...]
    is_tuple: bool

    def function(self) -> Callable[[object, Op, dict[type[Any], Any]], None]:
        """Return a function that executes an op on a state's values: short, as every op goes through it."""
        handler, takes, gives, ends, is_tuple = self.handler, self.takes, self.gives, self.ends, self.is_tuple

        def execute(run: object, op: Op, values: dict[type[Any], Any]) -> None:
            result = handler(run, op, *map(values.get, takes))
            for kind in ends:
                values.pop(kind, None)
            if result is None:
                return
            if not is_tuple:
                values[gives[0]] = result
                return
            for kind, one in zip(gives, result, strict=True):
                if one is not None:
                    values[kind] = one

        return execute


def bind(kind: type[Op], handler: Handler, *, is_whole: bool = True) -> Call:
    """The call of an op's handler. TypeError if its signature is not what the op declares.

    One that plays the op may leave out what it declares.
    """
    hints = get_type_hints(handler)
    returned = hints.pop("return", None)
    names = list(inspect.signature(handler).parameters)[2:]
    takes = [_plain(hints[name]) for name in names]
    is_tuple = get_origin(returned) is tuple
    results = get_args(returned) if is_tuple else (returned,)
    gives = tuple(found for found, _ in map(_plain, results) if found is not type(None))
    effects = kind.touches
    read = {_RESOURCES[record]: is_optional for record, is_optional in takes if record not in _SERVICES}
    written = {_RESOURCES[record] for record in gives}
    problems = [
        *(f"{one} is read and not declared" for one in read if one not in (*effects.reads, *effects.finds)),
        *(f"{resource} may be None" for resource in effects.finds if not read.get(resource, True)),
        *(f"{one} is returned and not declared" for one in written if one not in effects.writes),
    ]
    if is_whole:
        declared = (*effects.reads, *effects.finds)
        problems += (f"{one} is declared and not read" for one in declared if one not in read)
        # What it reads too, it may change in place.
        left = (resource for resource in effects.writes if resource not in written and resource not in read)
        problems += (f"{one} is not returned" for one in left)
    if problems:
        raise TypeError(f"{handler.__name__} is not what {kind.__name__} declares: {'; '.join(problems)}")
    ends = tuple(RECORDS[one] for one in effects.reads if one in CONSUMED)
    return Call(handler, tuple(record for record, _ in takes), gives, ends, is_tuple)


def _plain(hint: Any) -> tuple[Any, bool]:
    """A type without `| None`, and whether it had it."""
    if get_origin(hint) in (UnionType, Union):
        (found,) = (one for one in get_args(hint) if one is not type(None))
        return found, True
    return (type(None) if hint is None else hint), False


def bind_all(handlers: Mapping[type[Op], Handler], *, is_whole: bool = True) -> dict[type[Op], Call]:
    """The calls of a table of handlers."""
    return {kind: bind(kind, handler, is_whole=is_whole) for kind, handler in handlers.items()}
