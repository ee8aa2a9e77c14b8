"""The tensors that selective checkpointing keeps of the modules that it recomputes.

The policy is planc/runtime/torch/training/recompute.py's, after torchtitan's: of a checkpointed module's
matmuls the first's output is kept and the second's recomputed, and so on; attention's outputs and
log-sum-exps are kept, and the results of reduce-scatters over tp. b is the size of a compute element, T the
rank's tokens:

    linear, every second      b T w_out     for a rowwise one the whole width, since it is a partial sum
    attention                 T (b v + a)   v features of its heads, and a, 4 bytes a head; over cp once for
                                            each block of keys, as on the rank that sees most: a ring has one
                                            for each rank's, all-gather one before the queries, and theirs
    reduce-scatter over tp    b T w_out / tp

Eager attention keeps nothing: its products are batched, and recomputing saves their scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from planc.estimate.rank_work import RankWork
from planc.inventory.schema import Attention
from planc.styles.edges import Transfer
from planc.vocab import DType


def kept_results_bytes(work: RankWork) -> Mapping[str, int]:
    """Bytes that forward keeps in addition to the module's input, by selectively checkpointed module."""
    kept_bytes: Counter[str] = Counter()
    if not work.selective:
        return kept_bytes
    kept, read = kept_results(work), results_read(work)
    for module in work.inventory.modules:
        region, shape = work.region(module.fqn), work.tp_shape(module)
        if region in work.selective and shape is not None:
            whole = work.num_tokens * shape[0] * work.compute_dtype.size_bytes
            # Compiled code keeps nothing that its backward does not read.
            is_kept = module.fqn in kept and (region not in work.fused or (module.fqn, region) in read)
            kept_bytes[region] += whole if is_kept else 0
            kept_bytes[region] += whole // work.tp if keeps_scattered(work, module.fqn) else 0
    for attention in work.inventory.attentions:
        region = work.region(attention.fqn)
        if region is not None and attention.fqn in kept:
            kept_bytes[region] += _attention_bytes(work, attention)
    return kept_bytes


def kept_results(work: RankWork) -> frozenset[str]:
    """The linear layers and attention modules whose results are not recomputed."""
    num_matmuls: Counter[str] = Counter()
    kept: set[str] = set()
    if not work.selective:
        return frozenset()
    for module in work.inventory.modules:
        region = work.region(module.fqn)
        if (
            (module.is_linear or work.multiplies_again(module))
            and region is not None
            and region in work.selective
        ):
            num_matmuls[region] += 1
            if num_matmuls[region] % 2:
                kept.add(module.fqn)
    if work.attention.kind != "eager":
        attentions = (attention.fqn for attention in work.inventory.attentions)
        kept.update(fqn for fqn in attentions if work.region(fqn) in work.selective)
    return frozenset(kept)


def results_read(work: RankWork) -> frozenset[tuple[str, str | None]]:
    """(module, region): the modules whose results others, or code, read in the same recomputed module, or
    outside of all."""
    modules = work.inventory.modules
    by_code = ((module.fqn, work.checkpoint_around(module.fqn)) for module in modules if module.read_by_code)
    by_modules = ((source, work.region(module.fqn)) for module in modules for source in module.sources)
    return frozenset((*by_code, *by_modules))


def keeps_scattered(work: RankWork, fqn: str) -> bool:
    """Whether the result of a module's reduce-scatter over tp is kept."""
    is_scattered = any(edge.forward is Transfer.REDUCE_SCATTER for edge in work.edges.get(fqn, ()))
    return is_scattered and work.region(fqn) in work.selective


def _attention_bytes(work: RankWork, attention: Attention) -> int:
    num_heads, _ = work.heads(attention)
    log_sum_exp = 8 if work.compute_dtype is DType.FLOAT64 else 4
    features = (attention.value_dim or attention.head_dim) * work.compute_dtype.size_bytes
    is_hidden = attention.window is not None and attention.window < work.sequence_length
    steps = work.ring_steps(attention.window)
    num_blocks = {"ring": steps, "allgather": 1 if is_hidden else 2}.get(work.attention.kind, 1)
    return num_blocks * work.num_tokens * num_heads * (features + log_sum_exp)
