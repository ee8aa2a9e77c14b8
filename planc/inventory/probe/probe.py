"""Take an inventory from the model itself, on the meta device. Imports torch.

The model is built without memory and runs once on eight tokens. Every tensor carries the set of modules whose
outputs reached it, through any torch function; modules that own parameters, and members of repeated blocks,
start a new set. Attention runs through a function of our own, so heads and windows are what the model passes
to its attention, not what its configuration suggests.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from planc.inventory.config_limits import added_losses, rope_switch
from planc.inventory.files import InventoryError, config_digest, read_config
from planc.inventory.footprint import ONE_OPERATION, RMS_NORM
from planc.inventory.probe.attention_calls import (
    IMPLEMENTATIONS,
    AttentionCall,
    attention_calls,
    own_attentions,
)
from planc.inventory.probe.attentions import Observed, heads_of_own
from planc.inventory.probe.causality import visible_attentions_of
from planc.inventory.probe.dropout_probe import Training, training_of
from planc.inventory.probe.equal_layers import also_in_equal_layers, without_equal_layers
from planc.inventory.probe.footprint_probe import (
    footprints,
    gate_footprints,
    norm_footprints,
    watch_activations,
)
from planc.inventory.probe.forwards import NUM_TOKENS, lacks_values, run
from planc.inventory.probe.gradient_probe import Backward, Flow, backward_of
from planc.inventory.probe.kinds import (
    Linear,
    is_featurewise,
    is_renumbered,
    kind_of,
    out_features,
    owns_parameters,
)
from planc.inventory.probe.logits_probe import logits_steps
from planc.inventory.probe.model_class import read_model_class
from planc.inventory.probe.output_uses import OutputUses
from planc.inventory.probe.outside_probe import needing_all_tokens, read_by_layers
from planc.inventory.probe.own_code_probe import with_own_codes
from planc.inventory.probe.own_model import own_attentions_of, unset_of
from planc.inventory.probe.own_steps import steady_attentions_of
from planc.inventory.probe.position_probe import positions_of
from planc.inventory.probe.random_probe import randomness_of
from planc.inventory.probe.routing_probe import choice_bias, routing_of
from planc.inventory.probe.running import watch_running
from planc.inventory.probe.source_tracker import SourceTracker
from planc.inventory.probe.tensor_dtypes import tensor_dtypes, with_dtypes
from planc.inventory.probe.token_dims import watch_tokens
from planc.inventory.schema import Draw, Inventory, Kind, Module, Parameter
from planc.modeling.decoder_inputs import same_for_decoder
from planc.modeling.first_positions import FirstPositions
from planc.modeling.layers import layer_lists
from planc.modeling.rope import steady_rope
from planc.modeling.tasks import head_options
from planc.modeling.unasked_tokens import leave_tokens_unasked
from planc.vocab import Classes, Task, ancestors, parent_of


def probe(
    model_dir: Path, *, own: type[PreTrainedModel] | None = None, classes: Classes | None = None
) -> Inventory:
    """The inventory of the model of `model_dir`, or of the plan's `own` class; `classes` are a new head's.

    InventoryError if it can't run on meta. Nothing is downloaded, and no code of the directory runs.
    """
    content = read_config(model_dir)
    read = read_model_class(content, model_dir=model_dir, own=own, classes=classes)
    config, model_class = read.config, read.model_class
    with attention_calls() as calls:
        model, blocks, flow = _observed(config, model_class=model_class, calls=calls)
        recorded = _recorded(model, blocks=blocks)
        silent = own_attentions(model, calls=calls)
        with without_equal_layers(model) as instead:
            observed = Observed(model, config, calls, blocks, flow.inputs, flow.cores, instead)
            attentions = (visible_attentions_of if own is None else steady_attentions_of)(observed, read.task)
            own_attending = silent if own is None else own_attentions_of(observed)
            own_heads = heads_of_own(observed, own_attending)
            with _refusals_of(model_class):
                training = _training_of(model, read.task, instead)
                build = partial(_build, model_class)
                random = randomness_of(training, model, config=config, build=build, recorded=recorded)
                positions = positions_of(model)
                logits = logits_steps(model)
                backward = backward_of(model, instead, blocks=blocks, attending=calls)
                lending = also_in_equal_layers(read_by_layers(model, blocks), instead)
                needing = needing_all_tokens(model, blocks)
    backward = replace(backward, read=backward.read - flow.taken_in_layers(blocks))
    flow.leave_out(_owners(model) - also_in_equal_layers(training.visits, instead))
    with _refusals_of(model_class):
        unset, dtypes = unset_of(observed, is_own=own is not None), tensor_dtypes(model)
    modules = tuple(
        _module(fqn, module, flow=flow, unset=unset, backward=backward, draws=random.draws.get(fqn, ()))
        for fqn, module in model.named_modules()
    )
    modules = _with_footprints(with_dtypes(modules, dtypes), model, flow=flow)
    return Inventory(
        config_digest=config_digest(content),
        modules=with_own_codes(modules, model, blocks=blocks, experts=flow.routings),
        attentions=backward.counted(attentions),
        ties=_ties(model),
        tp_plan=tuple((model._tp_plan or {}).items()),
        blocks=blocks,
        own_attentions=own_attending,
        own_heads=own_heads,
        written=flow.in_order(flow.written),
        reduced=flow.in_order(flow.reduced),
        read_by_layers=flow.in_order(lending),
        needing_all_tokens=needing,
        renumbered=flow.in_order(flow.renumbered),
        random=random.fields,
        random_weights=random.weights,
        random_others=random.others,
        logits=logits,
        added_losses=added_losses(config.to_dict()),
        rope_switch=rope_switch(config.to_dict()),
        positions=positions,
        **read.fields_of(model),
    )


def _observed(
    config: PreTrainedConfig, *, model_class: type[PreTrainedModel], calls: dict[nn.Module, AttentionCall]
) -> tuple[PreTrainedModel, tuple[str, ...], Flow]:
    """The model, its blocks and its flow, with the first attention that its code can be run with."""
    failures: list[InventoryError] = []
    for implementation in IMPLEMENTATIONS:
        calls.clear()
        try:
            model = _build(model_class, config, implementation)
            blocks = tuple(fqn for fqn, _ in layer_lists(model))
            return model, blocks, _record(model, calls=calls, blocks=blocks)
        except InventoryError as error:
            failures.append(error)
    # With the model's own attention: earlier attempts may have failed without it.
    raise failures[-1]


def _build(
    model_class: type[PreTrainedModel], config: PreTrainedConfig, implementation: str
) -> PreTrainedModel:
    # grouped_mm, the kernel of experts, takes bfloat16 only; shapes do not depend on the dtype.
    with _refusals_of(model_class), torch.device("meta"):
        model: PreTrainedModel = model_class._from_config(
            config, dtype=torch.bfloat16, attn_implementation=implementation, **head_options(model_class)
        )
    steady_rope(model)
    leave_tokens_unasked(model)
    same_for_decoder(model)
    model.train(False)
    return model


class DoesNotRunError(InventoryError):
    """The model's own code raises, as the cause of this error says."""


@contextlib.contextmanager
def _refusals_of(model_class: type[PreTrainedModel]) -> Iterator[None]:
    """Whatever the model's own code raises, as an InventoryError."""
    try:
        yield
    except InventoryError:
        raise
    except Exception as error:
        # Raised by torch if values to copy, to branch on or to count are missing.
        wants_values = isinstance(error, NotImplementedError) or "on meta tensors" in str(error)
        reason = "its code depends on the values of tensors" if wants_values else str(error)
        raise DoesNotRunError(
            f"{model_class.__name__} does not run on the meta device: {type(error).__name__}: {reason}",
            help=_HELP_ON_VALUES.format(_place_of(error)) if wants_values else _HELP_ON_ERRORS,
        ) from error


_HELP_ON_VALUES = (
    "name a model of another class: planc reads a model on tensors without values, and {} needs some"
)
_HELP_ON_ERRORS = (
    "check config.json for missing or unusual values; planc needs a model whose attention uses transformers' "
    "AttentionInterface"
)


def _place_of(error: BaseException) -> str:
    """The line of the model's own code that an error came from."""
    frames = traceback.extract_tb(error.__traceback__)
    files = ((frame, Path(frame.filename)) for frame in frames)
    frame, file = [each for each in files if not any(map(each[1].is_relative_to, _NOT_OF_MODELS))][-1]
    return f"`{frame.line}` (line {frame.lineno} of {file.name})"


_NOT_OF_MODELS = (Path(torch.__file__).parent, Path(__file__).parents[2])


def _with_footprints(modules: Iterable[Module], model: nn.Module, *, flow: Flow) -> tuple[Module, ...]:
    """The modules, each with what it takes for backward."""
    named = dict(model.named_modules())
    activations = footprints(flow.activations)
    activations |= gate_footprints({fqn: named[fqn] for fqn in flow.routings})
    norms = norm_footprints({fqn: one for fqn, one in named.items() if kind_of(one) is Kind.NORM})
    return tuple(
        replace(
            module,
            activation=activations.get(module.fqn, ONE_OPERATION),
            footprint=norms.get(module.fqn, RMS_NORM),
        )
        for module in modules
    )


def _module(
    fqn: str,
    module: nn.Module,
    *,
    flow: Flow,
    unset: frozenset[str],
    backward: Backward,
    draws: tuple[Draw, ...],
) -> Module:
    def own(tensors: Iterable[str], names: frozenset[str]) -> tuple[str, ...]:
        return tuple(name for name in tensors if f"{fqn}.{name}" in names)

    return Module(
        fqn=fqn,
        class_name=type(module).__name__,
        kind=kind_of(module),
        parameters=tuple(
            Parameter(name, tuple(parameter.shape))
            for name, parameter in module._parameters.items()
            if parameter is not None
        ),
        sources=flow.in_order(flow.inputs.get(fqn, frozenset())),
        returns=flow.in_order(flow.outputs.get(fqn, frozenset())),
        routing=flow.routings.get(fqn),
        reads_values=fqn in flow.reading,
        flattened=fqn in flow.flattened,
        passes_input=fqn in flow.passing,
        passes_others=fqn in flow.passing_others,
        bypassed=flow.bypassed(fqn),
        unset=own((*module._parameters, *module._buffers), unset),
        frozen=own(module._parameters, backward.frozen),
        unreached=own(module._parameters, backward.unreached),
        **backward.facts(fqn),
        draws=draws,
    )


def _ties(model: PreTrainedModel) -> tuple[tuple[str, ...], ...]:
    """Parameter fqns by storage, if several share one; the one in `named_parameters` first."""
    names_of: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names_of.setdefault(id(parameter), []).append(name)
    return tuple(tuple(names) for names in names_of.values() if len(names) > 1)


def _training_of(model: PreTrainedModel, task: Task, instead: Mapping[str, str]) -> Training:
    """One forward in training.

    InventoryError for a model of another task than causal_lm of which it calls weights again, as ALBERT's
    does its one layer, or a layer's forward without its hooks, as SqueezeBERT's does.
    """
    training = training_of(model)
    visited = also_in_equal_layers([fqn for fqn, number in training.visits.items() if number], instead)
    for fqn, module in model.named_modules() if task is not Task.CAUSAL_LM else ():
        if fqn not in visited and isinstance(model.get_submodule(parent_of(fqn)), nn.ModuleList):
            raise InventoryError(
                f"{type(model).__name__} calls the forward of `{fqn}` without its hooks, which FSDP needs",
                help="use a model that calls its layers as modules",
            )
        if training.visits[fqn] > 1 and owns_parameters(module):
            raise InventoryError(
                f"{type(model).__name__} calls `{fqn}` {training.visits[fqn]} times in a forward, and the "
                "collectives that planc predicts are of one call",
                help="use a model whose layers have weights of their own",
            )
    return training


def _record(
    model: PreTrainedModel, *, calls: Mapping[nn.Module, AttentionCall], blocks: tuple[str, ...]
) -> Flow:
    """The data flow of one forward, for modules that own parameters and for members of `blocks`."""
    named = dict(model.named_modules())
    flow = Flow({fqn: index for index, fqn in enumerate(named)})
    tracker = SourceTracker()
    widths = {fqn: out_features(module) for fqn, module in named.items() if isinstance(module, Linear)}
    uses = OutputUses(tracker.sources, widths=widths)
    for module in named.values():
        if kind_of(module) is Kind.NORM:
            uses.watch_norm(module)
    recorded = _recorded(model, blocks=blocks)
    holds_recorded = {parent for fqn in recorded for parent in ancestors(fqn)}

    outputs: dict[str, frozenset[str]] = {}

    def use(fqn: str, sources: frozenset[str]) -> None:
        flow.outputs[fqn] = flow.outputs.get(fqn, frozenset()) | sources

    def before(fqn: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if (routing := routing_of((*args, *kwargs.values()), num_tokens=NUM_TOKENS)) is not None:
            bias = choice_bias(model.get_submodule(fqn.rpartition(".")[0]), module)
            flow.routings[fqn] = replace(routing, bias=bias)
        flow.inputs[fqn] = flow.inputs.get(fqn, frozenset()) | tracker.sources((args, kwargs))

    def after(fqn: str, module: nn.Module, args: Any, output: Any) -> None:
        if fqn in holds_recorded:
            outputs[fqn] = outputs.get(fqn, frozenset()) | tracker.sources(output)
            tracker.watch(output, partial(use, fqn))
        tracker.mark(output, sources=frozenset((fqn,)))
        uses.hand_out(fqn, output)

    watch_tokens(named, flow.flattened)
    watch_activations(named, tracker.sources, flow.activations)
    _follow_containers({fqn: named[fqn] for fqn in holds_recorded - recorded}, tracker, flow)
    for fqn in recorded:
        named[fqn].register_forward_pre_hook(partial(before, fqn), with_kwargs=True)
        named[fqn].register_forward_hook(partial(after, fqn))
    running = watch_running(named)
    asked = FirstPositions(lacks_values, lambda: flow.reading.add(running[-1]))
    with _refusals_of(type(model)), tracker, uses, asked:
        run(model)
    if flow.reading:
        refuse_skipped(type(model).__name__, flow.in_order(recorded), seen=flow.inputs)
    # Of what a layer returns, such as attention weights, the model may use only a part.
    flow.outputs = outputs | flow.outputs
    embeddings = {fqn: one for fqn, one in named.items() if isinstance(one, nn.Embedding)}
    normed = {fqn for fqn, one in embeddings.items() if not is_featurewise(one)}
    flow.written, flow.reduced = frozenset(uses.written), frozenset(uses.reduced | normed)
    flow.renumbered = frozenset(fqn for fqn, one in embeddings.items() if is_renumbered(one))
    for fqn, module in named.items():
        if module in calls:
            flow.cores[fqn] = tracker.sources(calls[module].inputs)
    return flow


def _follow_containers(containers: Mapping[str, nn.Module], tracker: SourceTracker, flow: Flow) -> None:
    """Note what modules without parameters of their own pass on of what they take."""

    def pass_on(fqn: str, sources: frozenset[str]) -> None:
        passed = {source for source in sources if not source.startswith(f"{fqn}.")}
        if passed & flow.hidden[fqn]:
            flow.passing.add(fqn)
        if passed - flow.hidden[fqn]:
            flow.passing_others.add(fqn)

    def enter(fqn: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        states = args[:1] or (kwargs.get("hidden_states", kwargs.get("input")),)
        flow.hidden[fqn] = flow.hidden.get(fqn, frozenset()) | tracker.sources(states)

    def leave(fqn: str, module: nn.Module, args: Any, output: Any) -> None:
        tracker.watch(output, partial(pass_on, fqn))

    for fqn, module in containers.items():
        module.register_forward_pre_hook(partial(enter, fqn), with_kwargs=True)
        module.register_forward_hook(partial(leave, fqn))


def _recorded(model: nn.Module, *, blocks: tuple[str, ...]) -> frozenset[str]:
    """The modules whose outputs are followed."""
    members = {fqn for fqn, _ in model.named_modules() if parent_of(fqn) in blocks}
    return (_owners(model) - {""}) | members


def _owners(model: nn.Module) -> frozenset[str]:
    """The modules with parameters of their own."""
    return frozenset(fqn for fqn, module in model.named_modules() if owns_parameters(module))


_NUMBER = re.compile(r"\d+")


def refuse_skipped(class_name: str, modules: Iterable[str], *, seen: Collection[str]) -> None:
    """InventoryError if one member of a module list was `seen` to run, and another was not."""
    kinds = {_NUMBER.sub("*", fqn) for fqn in seen}
    for fqn in modules:
        if fqn not in seen and _NUMBER.sub("*", fqn) in kinds:
            raise InventoryError(
                f"{class_name} chooses which modules run by the values of tensors: `{fqn}` may not run",
                help="use a model whose experts are stacked in one module, or all run on every token",
            )
