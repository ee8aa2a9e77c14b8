"""The activations that a micro step keeps for its backward, from the recorded data flow.

The rules follow transformers' modules in eager mode, and count the tensors that autograd saves; b is the
size of a compute element, T the rank's tokens, divided by tp if a norm runs on a sharded sequence.

    norm        4 w + b w + 4    transformers' RMSNorm squares in float32, then scales in the compute dtype;
                                 others keep as many bytes an element as the inventory has measured
    linear      b w_in           once for layers that read the same input (q, k and v; gate and up)
    linear between two linears   b w_out of each that feeds it, and b w_in of the activated one if it is
                                 half of that, or one of two;
                                 an activation function of several operations keeps more than its input:
                                 as many bytes an element as the inventory has measured
    attention   b (q + 2 k) + a  queries, keys and values of the kernel; a is its log-sum-exp, 4 bytes a head;
                                 over cp b q more, since its output reaches the next layer as a copy
    own code    of layers, of parts of them and of what is around layers, as the inventory has measured: by
                token, and by pair of tokens where it computes scores, as eager attention does; of tensors
                that share memory the whole memory. Instead of what is between linears, where it is known
    checkpointed module          b h: only its input; the rest is recomputed for one module at a time
    checkpointed selectively     the input, and the tensors in selective.py
    experts     the tensors in experts.py
    dropout     the tensors in dropout.py
    DoRA        b w_out          of each adapted layer, its output before rows are scaled

For an unfused 8B layer these rules give 49 h. Ignored, as small or shared by all layers: token ids and rotary
tables. Tests hold the rules against what autograd saves, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planc.estimate.attention_calls import compiled_kernel_bytes, compiled_pair_bytes
from planc.estimate.dropout import dropout_bytes
from planc.estimate.experts import experts_saved
from planc.estimate.rank_work import Core, RankWork
from planc.estimate.selective import kept_results_bytes
from planc.inventory.adapters import is_magnitude
from planc.inventory.footprint import ONE_OPERATION
from planc.inventory.schema import Attention, Kind, Module
from planc.record import record
from planc.styles.edges import SEQUENCE
from planc.vocab import DOWN, DType, Replicate, ancestors, parent_of

InputKey = tuple[str, tuple[str, ...]]


@record
class Activations:
    """Bytes of one micro step. `recomputed` is the most that one checkpointed module recomputes."""

    kept: int
    recomputed: int
    again: Mapping[str, int]
    """Bytes that recomputation adds to the kept ones, by checkpointed module."""


def activations(work: RankWork) -> Activations:
    """The kept bytes, and the bytes that recomputation temporarily adds."""
    kept = 0
    saved: dict[str, int] = {}
    for fqn, num_bytes in _saved(work):
        region = work.region(fqn)
        if region is None:
            kept += num_bytes
        else:
            saved[region] = saved.get(region, 0) + num_bytes
    kept += sum(region_input_bytes(work, fqn) for fqn in saved if fqn not in work.offloaded)
    results = kept_results_bytes(work)
    kept += sum(results.values())
    # Results that backward does not read are freed when the module has been recomputed.
    again = {fqn: num_bytes - results.get(fqn, 0) for fqn, num_bytes in saved.items()}
    return Activations(kept, max((0, *again.values())), again)


def region_input_bytes(work: RankWork, fqn: str) -> int:
    """A checkpointed module keeps its input as it is after the module's own hooks."""
    use = work.styles.get(fqn)
    is_whole = use is not None and use.computes_on == Replicate()
    tokens = _tokens(work, is_divided=work.divides_sequence and not is_whole)
    return tokens * work.inventory.hidden_size * work.compute_dtype.size_bytes


def offloaded_bytes(work: RankWork) -> int:
    """The inputs of one micro step that wait in the host's memory."""
    own = (fqn for fqn in work.offloaded if work.inventory.get(fqn) is not None)
    return sum(region_input_bytes(work, fqn) for fqn in own)


def last_input_bytes(work: RankWork) -> int:
    """The offloaded input that is still on the device: that of the module that ran last."""
    own = [fqn for fqn in work.offloaded if work.inventory.get(fqn) is not None]
    return region_input_bytes(work, own[-1]) if own else 0


def _saved(work: RankWork) -> Iterator[tuple[str, int]]:
    """(module, bytes) for all tensors that autograd saves outside of recomputed modules."""
    experts = experts_saved(work)
    inputs: set[InputKey] = set()
    kept = kept_inputs(work)
    for module in work.inventory.modules:
        if not work.is_passed(module.fqn):
            continue
        match module.kind:
            case Kind.NORM:
                yield module.fqn, norm_bytes(work, module)
            case Kind.LINEAR | Kind.CONV1D:
                key = input_key(work, module)
                if key in kept and key not in inputs:
                    yield module.fqn, input_bytes(work, module)
                inputs.add(key)
                yield module.fqn, between_bytes(work, module)
            case Kind.OTHER if is_magnitude(module.fqn):
                yield module.fqn, scaled_bytes(work, module)
        if module.fqn in work.draws:
            yield module.fqn, dropout_bytes(work, module.fqn)
        if (core := work.cores.get(module.fqn)) is not None:
            yield module.fqn, core_bytes(work, core)
        if module.fqn in experts:
            yield module.fqn, experts[module.fqn].kept


def _tokens(work: RankWork, *, is_divided: bool) -> int:
    return -(-work.num_tokens // work.tp) if is_divided else work.num_tokens


def norm_bytes(work: RankWork, module: Module) -> int:
    """A norm after a single linear layer normalizes that layer's heads, each with the same weight."""
    tokens = norm_tokens(work, module)
    feeding = [source for source in map(work.module, module.sources) if source.is_linear]
    is_fed = len(module.sources) == 1 and bool(feeding)
    width = local_width(work, feeding[0], 0) if is_fed else weight_width(module)
    # One reciprocal root, in float32, for each normalized vector.
    num_vectors = width // max(1, weight_width(module))
    kept = 0 if module.fqn in work.read_before else work.by_size(work.footprint(module).kept)
    if kept > _SQUARED_BYTES:
        # It keeps the values that are squared, and the normalized ones, which only its weight reads.
        has_input = module.fqn in work.flow.inputs
        kept = _SQUARED_BYTES * has_input + (kept - _SQUARED_BYTES) * work.trains(module)
        num_vectors *= has_input
    return tokens * (width * kept + 4 * num_vectors)


_SQUARED_BYTES = 4
"""The size of a value that a norm squares, in float32."""


def norm_tokens(work: RankWork, module: Module) -> int:
    """The tokens that a rank normalizes."""
    use = work.styles.get(module.fqn)
    return _tokens(work, is_divided=use is not None and use.computes_on == SEQUENCE)


def weight_width(module: Module) -> int:
    return sum(parameter.num_elements for parameter in module.parameters if parameter.name == "weight")


def local_width(work: RankWork, module: Module, tensor_dim: int) -> int:
    shape = work.tp_shape(module)
    return shape[tensor_dim] if shape else 0


def scaled_bytes(work: RankWork, magnitude: Module) -> int:
    """The output of a layer whose rows' lengths are trained, before they are scaled."""
    (width,) = work.tp_shape(magnitude) or (0,)
    return work.num_tokens * width * work.compute_dtype.size_bytes


def kept_inputs(work: RankWork) -> frozenset[InputKey]:
    """The inputs of linear layers that backward reads: for the gradient of a weight, or because a kernel
    keeps its output."""
    linear = [module for module in work.inventory.modules if module.is_linear]
    read = {input_key(work, module) for module in linear if work.trains(module)}
    if work.attention.kind == "plain" and not work.attention.isolates:
        kernels = [core.module.fqn for core in work.cores.values() if core.attention is not None]
        read |= {input_key(work, module) for module in linear if _reads_kernel(work, module, kernels)}
    return frozenset(read)


def _reads_kernel(work: RankWork, module: Module, attentions: Sequence[str]) -> bool:
    """Whether a linear layer of an attention reads what its kernel returns: the projections' values."""
    around = next((name for name in ancestors(module.fqn) if name in attentions), None)
    feeding = [work.module(source) for source in module.sources]
    return around is not None and len(feeding) > 1 and work.is_passed(around)


def input_key(work: RankWork, module: Module) -> InputKey:
    """Equal for linear layers that read the same tensor: one norm's output, or, in one module, what the same
    sources make. What is gathered along the sequence is gathered for each module."""
    is_norms = [work.module(source).kind for source in module.sources] == [Kind.NORM]
    parent, _, name = module.fqn.rpartition(".")
    # An adapter reads what its layer reads.
    parent = parent_of(parent) if name == DOWN else parent
    return "" if is_norms and not work.divides_sequence else parent, module.sources


def input_bytes(work: RankWork, module: Module) -> int:
    return work.num_tokens * local_width(work, module, 1) * work.compute_dtype.size_bytes


def between_bytes(work: RankWork, module: Module) -> int:
    """Bytes that elementwise operations between linear layers save: a gate, its activation, its factor.

    Fused code computes the activated gate again. Where code around the layer is counted as a whole, it is
    that much less, and nothing else.
    """
    fused = _between_bytes(work, module, is_fused=True) if module.fqn in work.fused else None
    parent = work.cores.get(parent_of(module.fqn))
    around = cores_around(work, module)
    if around or (parent is not None and parent.code is not None):
        has_scores = any(core.mixes_tokens for core in around)
        return 0 if fused is None or has_scores else fused - _between_bytes(work, module, is_fused=False)
    return _between_bytes(work, module, is_fused=False) if fused is None else fused


def _between_bytes(work: RankWork, module: Module, *, is_fused: bool) -> int:
    feeding, columns = _feeding(work, module), local_width(work, module, 1)
    element = work.compute_dtype.size_bytes
    if is_fused:
        return work.num_tokens * element * sum(local_width(work, source, 0) for source in feeding)
    num_bytes = _between_width(work, module, feeding) * element
    for source in feeding:
        if source.activation != ONE_OPERATION:
            more = work.by_size(source.activation.kept) - element
            num_bytes += more * min(columns, local_width(work, source, 0))
    return work.num_tokens * num_bytes


def between_passing_bytes(work: RankWork, module: Module) -> int:
    """The most that backward of these operations holds in addition to what they save.

    Of a gate times a value, the gradients of the product and of both factors; then, in the activation
    function, the value's gradient, where both factors are freed. Of a gate and a value that one layer
    computes, the gradients of both at the end, and of its output, which holds both.
    """
    feeding, element = _feeding(work, module), work.compute_dtype.size_bytes
    if not feeding:
        return 0
    width = local_width(work, module, 1)
    within = max(work.by_size(work.activation(source).passing) for source in feeding)
    if _is_gated(module, feeding):
        within -= element
    return work.num_tokens * max(_between_width(work, module, feeding) * element, within * width)


def _feeding(work: RankWork, module: Module) -> tuple[Module, ...]:
    """The linear layers that reach a linear layer, if nothing else does."""
    feeding = tuple(work.module(source) for source in module.sources)
    return feeding if all(source.is_linear for source in feeding) else ()


def _between_width(work: RankWork, module: Module, feeding: tuple[Module, ...]) -> int:
    """The width of what is saved where an activation function keeps its input."""
    width = sum(local_width(work, source, 0) for source in feeding)
    return width + (local_width(work, module, 1) if _is_gated(module, feeding) else 0)


def _is_gated(module: Module, feeding: tuple[Module, ...]) -> bool:
    """Whether a linear layer reads the product of a gate and its factor, of two layers or of one."""
    return len(feeding) > 1 or sum(source.out_features for source in feeding) == 2 * module.in_features


def cores_around(work: RankWork, module: Module) -> tuple[Core, ...]:
    """The parts of a layer around a module that are counted as a whole, the innermost first."""
    found = (work.cores[name] for name in ancestors(module.fqn) if name in work.cores)
    return tuple(core for core in found if core.is_part)


def core_bytes(work: RankWork, core: Core) -> int:
    """Return the bytes that a kernel keeps, and those of the code around it."""
    kernel = 0
    is_eager = work.attention.kind == "eager"
    around = (core, *cores_around(work, core.module))
    if core.attention is not None and not (is_eager and any(one.code is not None for one in around)):
        kernel = _kernel_bytes(work, core.attention)
        kernel += compiled_pair_bytes(work, core.attention) + compiled_kernel_bytes(work, core.attention)
    # Over cp the kernel's keys and values are copies, and the memory of what they were made from is freed.
    if core.code is None or (core.has_kernel and core.is_part and work.attention.over):
        return kernel
    is_fused = core.module.fqn in work.fused
    by_token = _by_size(work, core.code.by_token, is_fused=is_fused)
    by_pair = _by_size(work, core.code.by_pair, is_fused=is_fused)
    if is_fused and core.attention is not None:
        # Fused code keeps scores as their product makes them and as the next one reads them.
        by_pair = min(by_pair, 2 * core.attention.num_heads * work.compute_dtype.size_bytes)
    by_token += work.sequence_length * by_pair
    is_divided = core.module.fqn in work.with_columns if core.is_part else work.divides_sequence
    return kernel + work.num_tokens * -(-by_token // (work.tp if is_divided else 1))


def _by_size(work: RankWork, sizes: tuple[int, int], *, is_fused: bool) -> int:
    """The bytes that own code keeps. Fused code computes casts to float32 again, so it keeps no more than
    where nothing needs a cast."""
    narrow, wide = sizes
    return work.by_size((min(narrow, wide) if is_fused else narrow, wide))


def _kernel_bytes(work: RankWork, attention: Attention) -> int:
    """All-gather attention keeps the keys and values of the whole sequence."""
    num_heads, num_kv_heads = work.heads(attention)
    copies = work.cp if work.attention.kind == "allgather" else 1
    outputs = 1 if work.attention.over or work.attention.isolates else 0
    value_dim = attention.value_dim or attention.head_dim
    features = (num_heads + num_kv_heads * copies) * attention.head_dim
    features += (num_heads * outputs + num_kv_heads * copies) * value_dim
    log_sum_exp = num_heads * (8 if work.compute_dtype is DType.FLOAT64 else 4)
    if work.attention.kind == "eager":
        # Softmax computes in float32, and its result is cast.
        log_sum_exp = num_heads * work.sequence_length * (4 + work.compute_dtype.size_bytes)
    return work.num_tokens * (features * work.compute_dtype.size_bytes + log_sum_exp)


def context_bytes(work: RankWork) -> int:
    """Keys and values in transit: a ring holds two messages, all-gather a copy of the whole sequence's."""
    if not work.attention.over:
        return 0
    messages = {"ring": 2, "allgather": work.cp, "ulysses": 1}[work.attention.kind]
    largest = max(
        (work.heads(attention)[1] * attention.head_dim for attention in work.inventory.attentions), default=0
    )
    return messages * 2 * largest * work.num_tokens * work.compute_dtype.size_bytes
