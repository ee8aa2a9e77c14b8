"""The decorators of the kinds of extensions, each with what planc passes to what it decorates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from planc.record import record

Code = TypeVar("Code", bound=Callable[..., Any])
MARK = "__planc_extension__"
"""The attribute in which a decorator notes (kind, name) on what it decorates, which it returns unchanged."""


@record
class Kind:
    """A kind of extension: the decorator `planc.extend.WORD`, and what planc passes to what it decorates.

    `passes` are the first parameters, by position, of any names. `offers` are keyword-only parameters that
    planc passes where they are there. All others are keyword-only, and get their values in the plan.
    """

    word: str
    setting: str
    """The setting of a plan that can name one."""
    passes: tuple[str, ...]
    offers: tuple[str, ...] = ()
    varies: tuple[str, ...] = ()
    """Keyword-only parameters of which the plan gives a first value and planc, later, others: no defaults."""
    needs: tuple[str, ...] = ()
    """Keyword-only parameters that it must have."""
    options: tuple[str, ...] = ()
    """The arguments that the decorator takes after the name: tuples of strings."""
    reserved: tuple[str, ...] = ()
    """Offers whose names the decorator's options can't hold: planc keeps a value under each."""
    choices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """More arguments that it takes after the name, with their values: strings."""
    methods: tuple[str, ...] = ()
    """The methods that planc calls, of a kind that can be a class: its `__init__` takes the plan's values."""

    @property
    def noun(self) -> str:
        """`a loss`, `an optimizer`."""
        return f"{'an' if self.word[0] in 'aeiou' else 'a'} {self.word}"


def mark(kind: Kind, target: Code, name: str) -> Code:
    """`target`, with the note that a run looks for."""
    setattr(target, MARK, (kind.word, name))
    return target


LOSS = Kind("loss", "train.loss", passes=("logits", "labels"), offers=("input_ids", "position_ids"))


def loss(name: str) -> Callable[[Code], Code]:
    """Register a loss: `train { loss = NAME(argument = value) }` in a plan that names the file.

    A loss is a function of `logits` [T, vocabulary], float32 or float64, and `labels` [T], int64, that
    returns T values, one for each token. planc sums those of tokens that have a label, over all micro-batches
    and ranks, and divides by the number of these tokens. A keyword-only parameter named `input_ids` or
    `position_ids` gets those of the tokens, [T]; all others get their values in the plan. A token without a
    label has label 0 here. No other column of the rows reaches a loss.

    Before the first step, planc tries that the value of a token depends on nothing but the token's own
    logits, label and ids: then it is the same in any chunk, micro-batch and part of a sequence, on any rank.
    """
    return lambda target: mark(LOSS, target, name)


OPTIMIZER = Kind(
    "optimizer",
    "optimizer.kind",
    passes=("parameter", "gradient", "state"),
    offers=("step",),
    varies=("lr", "weight_decay"),
    needs=("lr",),
    options=("state",),
    reserved=("step",),
)


def optimizer(name: str, *, state: tuple[str, ...] = ()) -> Callable[[Code], Code]:
    """Register an optimizer: `optimizer { kind = NAME(lr = 1e-4, argument = value) }`.

    An optimizer is a function that changes `parameter` in place by its `gradient`, both of one shape, without
    gradients. `state` has a tensor of that shape for each name of the decorator's `state`, zero at first, to
    change in place; checkpoints hold it, and nothing that is kept elsewhere. It takes `lr`, by name and
    without a default, which is the schedule's rate at the step, and may take `weight_decay`, which is that of
    the parameter's group. If it takes `step`, that is the number of the update, from 1. All other arguments
    get their values in the plan.

    Before the first step, planc tries that a part of a tensor gets the same update alone and in the whole,
    for vectors and matrices, and for small, ordinary and large gradients: then each rank updates its own
    part, on any mesh. An optimizer that looks at whole tensors is refused on a mesh that shards them.
    """
    return lambda target: mark(OPTIMIZER, target, name)


SCHEDULE = Kind("schedule", "optimizer.schedule", passes=("step",), offers=("num_steps",))


def schedule(name: str) -> Callable[[Code], Code]:
    """Register a schedule: `optimizer { schedule = NAME(argument = value) }`.

    A schedule is a function of the `step`, from 1, that returns what the peak learning rate of every group is
    multiplied by: a number of 0 at least. If it takes `num_steps`, that is the number of the run's steps. All
    other arguments get their values in the plan.

    Before the first step, planc tries that it depends on the step alone, in any order: a resumed run asks for
    later steps only.
    """
    return lambda target: mark(SCHEDULE, target, name)


MODEL = Kind("model", "model.architecture", passes=("config",))


def model(name: str) -> Callable[[Code], Code]:
    """Register a model class: `model { hf = "DIR", architecture = NAME }`, where DIR has the config.json.

    A model is an `nn.Module` that is built from the config, and computes all its sizes from it. `forward`
    takes `input_ids` and, if positions matter, `position_ids`, both [batch, tokens], and returns logits
    [batch, tokens, vocabulary]. Layers are in an `nn.ModuleList`. Random weights come from each module's
    `reset_parameters`, and then from the class's own `_init_weights(module)`.

    planc builds it once in a process of its own, also with small sizes, and tries what it tries of classes of
    transformers: what feeds each module, where a token sees others, which heads can be shared out. A mesh
    that this does not show to compute the same is refused.
    """
    return lambda target: mark(MODEL, target, name)


DATA_SOURCE = Kind("data_source", "data.source", passes=())


def data_source(name: str) -> Callable[[Code], Code]:
    """Register a data source: `data { source = NAME(argument = value) }` in a plan that names the file.

    A data source is a class with `__len__` and `__getitem__`, whose documents are those of the indices from 0
    on, or a function that yields documents in the order of the data. Its parameters are keyword-only, and get
    their values in the plan. A document is a str; token ids, as a list, an array or a tensor of one
    dimension; a list of messages; or a dict as a row of `chat` has it, or with "input_ids" and "labels": -100
    leaves a token out of the loss. All documents of a source are of one kind. They are packed, shuffled and
    resumed as those of files are. Whoever resumes a run needs the same code.

    Before the first step, planc asks for some documents twice, in another order, and in another process: a
    document must depend on nothing but its index, or its place in the stream.
    """
    return lambda target: mark(DATA_SOURCE, target, name)


ROW_TRANSFORM = Kind("row_transform", "data.source", passes=("row",))


def row_transform(name: str) -> Callable[[Code], Code]:
    """Register a row transform: `source = transformed(jsonl("rows.jsonl"), by = NAME(argument = value))`.

    A row transform is a function of a row, a dict by column, that returns a row, or None to leave it out. It
    gets the rows of `jsonl`, `chat`, `hf_dataset` or `hf_hub` as they are in the files, and these read what
    it returns in their place. All other parameters are keyword-only, and get their values in the plan.

    Before the first step, planc tries some rows twice, in another order, and in another process: what is
    returned must depend on nothing but the row.
    """
    return lambda target: mark(ROW_TRANSFORM, target, name)


METRIC = Kind(
    "metric",
    "train.metrics",
    passes=("step",),
    choices=(("reduce", ("mean", "sum", "max")),),
    methods=("__call__",),
)


def metric(name: str, *, reduce: Literal["mean", "sum", "max"] = "mean") -> Callable[[Code], Code]:
    """Register a metric: `train { metrics = [NAME(argument = value)] }`.

    A metric is a function of a `step` that returns a number, or a class whose `__call__(self, step)` does, to
    remember earlier steps. All other parameters are keyword-only, and get their values in the plan. It is
    called on all ranks in each logged step, once the step has its gradients: `step.gradient(name)` and
    `step.parameter(name)` are whole tensors, as on one device, to read. `reduce` makes one number of those of
    all ranks. metrics.jsonl has it under `custom`, trackers as `custom/NAME`, and the console in its line.
    What it remembers is not saved.

    Before the first step, planc computes it twice for made-up steps: it must depend on nothing but these.
    """
    return lambda target: mark(METRIC, target, name)


POINTS = ("on_start", "on_gradients", "on_step", "on_evaluation", "on_log", "on_save", "on_end")
"""The methods of a callback, in the order of a step."""
CALLBACK = Kind(
    "callback", "train.callbacks", passes=(), choices=(("ranks", ("zero", "all")),), methods=POINTS
)


@record
class Stop:
    """A callback's request to end the run after the step that is done, as if it were the last.

    All ranks end after the same step, and save what a run saves at its end. It is enough that one asks.
    """

    reason: str


def callback(name: str, *, ranks: Literal["zero", "all"] = "zero") -> Callable[[Code], Code]:
    """Register a callback: `train { callbacks = [NAME(argument = value)] }`.

    A callback is a class with some of the methods `on_start(self, start)`, `on_gradients(self, step)`,
    `on_step(self, step)`, `on_evaluation(self, step)`, `on_log(self, metrics)`, `on_save(self, checkpoint)`
    and `on_end(self, end)`. Its `__init__` takes keyword-only parameters, which get their values in the plan.
    A `step` has `step`, `loss`, `grad_norm`, `learning_rate`, `labels`, `evaluations` and `parameter_names`;
    `step.parameter(name)` and, in `on_gradients`, `step.gradient(name)` are whole tensors, as on one device.
    It reads: writing to one is refused. A method may return `Stop(reason)` of `planc.extend`: then all ranks
    end after this step, save, and status.json has the reason. What it keeps in `self` is not saved.

    It is called on rank 0, or on each with `ranks="all"`, which tensors need: ranks gather them together.
    It calls no collective itself.

    Before the first step, planc calls all methods but `on_log`, `on_save` and `on_end` with made-up values,
    whose `is_trial` is true, on two instances: both must ask to stop at the same steps.
    """
    return lambda target: mark(CALLBACK, target, name)


_ALL = (LOSS, OPTIMIZER, SCHEDULE, MODEL, DATA_SOURCE, ROW_TRANSFORM, METRIC, CALLBACK)
KINDS: Mapping[str, Kind] = {kind.word: kind for kind in _ALL}
"""Every kind of extension, by the name of its decorator."""
