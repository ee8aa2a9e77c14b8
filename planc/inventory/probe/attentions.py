"""The attentions of a model and whether each works on a share of its heads. Imports torch, for the probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from planc.inventory.head_shares import KvProjection, Packed, PerHead, SharedKv
from planc.inventory.probe.attention_calls import AttentionCall
from planc.inventory.probe.equal_layers import also_in_equal_layers, in_equal_layers, with_equal_layers
from planc.inventory.probe.factor_trial import Counts
from planc.inventory.probe.forwards import run_again
from planc.inventory.probe.head_probe import Core, fixed_heads, take_shares, upstream
from planc.inventory.probe.kinds import Linear, out_features
from planc.inventory.probe.kv_trial import kv_projections
from planc.inventory.probe.small_attention import (
    heads_of,
    legal_shares,
    try_multi_query,
    try_shared_kv,
    try_shares,
)
from planc.inventory.probe.trial_shares import BLOCK, widths_of
from planc.inventory.schema import Attention, OwnHeads
from planc.modeling.head_counts import Heads, value_at
from planc.record import record
from planc.vocab import POSITION_BIAS


@record
class Observed:
    """A model that was run once on the meta device.

    `inputs` are the modules that reach each module, `cores` those that reach the queries, keys and values of
    each attention. Running the model again refills `calls`, but for layers that do not run again: `instead`
    has, for each of those, an equal one that does.
    """

    model: PreTrainedModel
    config: PreTrainedConfig
    calls: dict[nn.Module, AttentionCall]
    blocks: tuple[str, ...]
    inputs: Mapping[str, frozenset[str]]
    cores: Mapping[str, frozenset[str]]
    instead: Mapping[str, str]


def attentions_of(observed: Observed) -> tuple[Attention, ...]:
    """The attentions that call transformers' interface."""
    calls = dict(observed.calls)
    # Chunked attention is cut by masks only, which a call without a mask does not show.
    is_chunked = "chunked_attention" in (getattr(observed.config, "layer_types", None) or ())
    chunked = ("chunked_attention",) if is_chunked else ()
    named = dict(observed.model.named_modules())
    cores = [
        Core(named[fqn], projections, (calls[named[fqn]].num_heads, calls[named[fqn]].num_kv_heads))
        for fqn in observed.cores
        if (projections := _projections(observed, named, fqn))
    ]
    fixed = fixed_heads(cores, run=lambda: _heads_of_calls(observed))
    fused = {core.attention for core in cores if _is_fused(core, calls[core.attention])}
    # Parts of a fused projection may have the right shapes and the wrong contents.
    tried = _counts(observed, [core for core in cores if core.attention in fixed | fused])
    fixed |= {core.attention for core in cores if core.attention in fused and core.parts > 1}
    shared_kv = _shared_kv(observed, {fqn: calls[module] for fqn, module in named.items() if module in calls})
    return tuple(
        Attention(
            fqn,
            call.num_heads,
            call.num_kv_heads,
            call.head_dim,
            call.window,
            call.value_dim,
            (*call.extras, *chunked),
            (module in fixed or POSITION_BIAS in call.extras) and fqn not in tried,
            *sharing(module, tried.get(fqn), (call.num_heads, call.num_kv_heads)),
            shared_kv.get(fqn),
        )
        for fqn, module in named.items()
        if (call := calls.get(module)) is not None
    )


def heads_of_own(observed: Observed, own: Sequence[str]) -> tuple[OwnHeads, ...]:
    """The heads of attentions with their own code, if they work on a share of them."""
    heads = heads_of(observed.config)
    if heads is None or not own or not (shares := legal_shares(heads)):
        return ()
    tried = {fqn: one for fqn, one in _tried(observed, own).items() if _fits(observed, fqn, one, heads)}
    modules = {fqn: observed.model.get_submodule(fqn) for fqn in tried}
    others = in_equal_layers(tried, observed.instead)
    working = take_shares(
        {modules[fqn]: one for fqn, one in tried.items() if fqn not in others},
        heads=heads,
        share=shares[0],
        run=lambda: run_again(observed.model),
    )
    working_names = also_in_equal_layers(
        [fqn for fqn, module in modules.items() if module in working], observed.instead
    )
    found = {fqn: sharing(modules[fqn], tried[fqn], heads) for fqn in own if fqn in working_names}
    shared = {fqn: OwnHeads(fqn, heads[0], heads[1], *one) for fqn, one in found.items()}
    shared |= _multi_query(observed, [fqn for fqn in own if fqn not in shared], heads)
    return tuple(shared[fqn] for fqn in own if fqn in shared)


def _multi_query(observed: Observed, own: Sequence[str], heads: Heads) -> dict[str, OwnHeads]:
    """Attentions with their own code and one key/value head, of which the config says nothing."""
    if not own or heads[1] != heads[0]:
        return {}
    tried = try_multi_query(observed.model, observed.config, fqns=own, blocks=observed.blocks)
    one_head = heads[0], 1
    sized = ((fqn, _in_size(observed.model.get_submodule(fqn), one, one_head)) for fqn, one in tried.items())
    return {fqn: OwnHeads(fqn, *one_head, (), shared_kv=one) for fqn, one in sized if one is not None}


def _is_fused(core: Core, call: AttentionCall) -> bool:
    """Whether one layer makes more than the queries: some layers take keys and values from others."""
    first, *others = core.projections
    return not others and out_features(first) > call.num_heads * call.head_dim


def sharing(
    attention: nn.Module, counts: Counts | None, heads: Heads
) -> tuple[tuple[str, ...], tuple[Packed, ...], tuple[PerHead, ...]]:
    """The attributes that a rank divides, what projections hold in sequence, and the arguments by head."""
    if counts is None:
        return (), (), ()
    packed = tuple(
        Packed(layer, widths)
        for layer, layout in zip(counts.first, counts.layouts, strict=True)
        if layout != BLOCK
        and (widths := widths_of(layout, _out_features(attention, layer), heads)) is not None
    )
    return counts.attributes, packed, counts.per_head


def _out_features(attention: nn.Module, layer: str) -> int:
    found = attention.get_submodule(layer)
    assert isinstance(found, Linear), f"{layer} was recorded as a linear layer"
    return out_features(found)


def _counts(observed: Observed, attentions: Sequence[Core]) -> Mapping[str, Counts]:
    """Return the counts that make attentions work on a share, by fqn, for those that have any."""
    names = {module: fqn for fqn, module in observed.model.named_modules()}
    heads = heads_of(observed.config)
    # The small model has the config's heads: attentions with others are not like its own.
    cores = {names[core.attention]: core for core in attentions if heads and core.heads[0] == heads[0]}
    tried = {
        fqn: one
        for fqn, one in _tried(observed, tuple(cores)).items()
        if _fits(observed, fqn, one, cores[fqn].heads)
    }
    shared = [replace(cores[fqn], counts=one) for fqn, one in tried.items()]
    # The model itself runs too: its code may branch on sizes that the small one does not have.
    failed = fixed_heads(shared, run=lambda: _heads_of_calls(observed)) if shared else frozenset()
    return {fqn: one for fqn, one in tried.items() if cores[fqn].attention not in failed}


def _shared_kv(observed: Observed, calls: Mapping[str, AttentionCall]) -> Mapping[str, SharedKv]:
    """Return how attentions work where several ranks compute the same key/value head, by fqn, if they do."""
    heads = heads_of(observed.config)
    fitting = [fqn for fqn, call in calls.items() if (call.num_heads, call.num_kv_heads) == heads]
    if heads is None or not fitting:
        return {}
    tried = try_shared_kv(observed.model, observed.config, fqns=fitting, blocks=observed.blocks)
    sized = ((fqn, _in_size(observed.model.get_submodule(fqn), one, heads)) for fqn, one in tried.items())
    return {fqn: one for fqn, one in sized if one is not None}


def _in_size(attention: nn.Module, shared: SharedKv, heads: Heads) -> SharedKv | None:
    """Scale a small attention's result to the widths of a large one; None if that counts otherwise."""
    num_heads, num_kv_heads = heads
    features = {one.layer: _out_features(attention, one.layer) for one in shared.projections}
    if shared.projections[0].query_width:
        projections = kv_projections(features, heads)
    else:
        projections = tuple(KvProjection(layer, (size,)) for layer, size in features.items())
    whole = {
        **dict.fromkeys(shared.counts, num_heads),
        **dict.fromkeys(shared.group_counts, num_heads // num_kv_heads),
        **dict.fromkeys(shared.kv_counts, num_kv_heads),
    }
    counts = {path: value_at(attention, path) for path in whole}
    if any(value is None or value % whole[path] for path, value in counts.items()):
        return None
    if any(width % num_kv_heads for one in projections for width in one.kv_widths):
        return None
    return replace(shared, projections=projections) if projections else None


def _tried(observed: Observed, fqns: Sequence[str]) -> Mapping[str, Counts]:
    return try_shares(observed.model, observed.config, fqns=fqns, blocks=observed.blocks) if fqns else {}


def _fits(observed: Observed, fqn: str, counts: Counts, heads: Heads) -> bool:
    """Whether every number of ranks that shares the heads divides the attributes, and one is the heads or
    the width of all queries."""
    attention = observed.model.get_submodule(fqn)
    values = [value_at(attention, path) for path in counts.attributes]
    if any(value is None or value % gcd(*heads) for value in values):
        return False
    _, packed, _ = sharing(attention, counts, heads)
    if any(width % gcd(*heads) for one in packed for width in one.widths):
        return False
    known = {heads[0], *(one.widths[0] for one in packed)}
    return not values or bool(known.intersection(values))


def _heads_of_calls(observed: Observed) -> Mapping[nn.Module, Heads]:
    """The heads of each attention's call in another run."""
    observed.calls.clear()
    run_again(observed.model)
    named = dict(observed.model.named_modules())
    called = {fqn: call for fqn, module in named.items() if (call := observed.calls.get(module)) is not None}
    called = with_equal_layers(called, observed.instead)
    return {named[fqn]: (call.num_heads, call.num_kv_heads) for fqn, call in called.items()}


def _projections(observed: Observed, named: Mapping[str, nn.Module], fqn: str) -> tuple[Linear, ...]:
    """The linear layers whose outputs an attention turns into queries, keys and values."""
    into = observed.cores[fqn]
    # Norms of queries and keys are between a projection and the core.
    behind = {
        source for name in into if not isinstance(named[name], Linear) for source in observed.inputs[name]
    }
    # A gate multiplies the core's output, and is sharded with it.
    beside = {
        source
        for name, sources in observed.inputs.items()
        if name.startswith(f"{fqn}.") and into <= sources
        for source in sources
    }
    inside = {name for name in {*into, *behind, *beside} if name.startswith(f"{fqn}.")}
    found = {name: module for name in inside if isinstance(module := named[name], Linear)}
    # The projections to latent keys and values stay whole; the ones that read them return the heads.
    latent = {source for name in found for source in upstream(name, within=fqn, inputs=observed.inputs)}
    return tuple(module for name, module in found.items() if name not in latent)
