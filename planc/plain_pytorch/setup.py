"""Setup ops as lines of a script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

from planc import vocab
from planc.data_sources.formats import without_compression
from planc.graph.graph import Graph
from planc.graph.ops import (
    AttachAttention,
    AttachDropout,
    BuildModel,
    BuildOptimizer,
    BuildSchedule,
    CountExperts,
    FullyShard,
    InitMesh,
    InitWeights,
    LoadWeights,
    MaterialiseWeights,
    OpenData,
    ShardTensorParallel,
    ShareHeads,
)
from planc.hub.names import is_hub
from planc.plain_pytorch.script import dtype, listed, one_dim, quoted, refuse
from planc.styles import BY_NAME, StyleUse
from planc.vocab import MeshDim


def init_mesh(op: InitMesh, graph: Graph) -> Iterator[str]:
    chosen = {"nccl": '"cuda"', "gloo": '"cpu"'}.get(
        op.backend, '"cuda" if torch.cuda.is_available() else "cpu"'
    )
    yield f"kind = {chosen}"
    yield 'device = torch.device(kind, int(os.environ["LOCAL_RANK"]) if kind == "cuda" else None)'
    yield 'if kind == "cuda":'
    yield "    torch.cuda.set_device(device)"
    yield (
        'dist.init_process_group("cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo", '
        f"timeout=timedelta(seconds={op.timeout_seconds}))"
    )
    sizes = tuple(size for _, size in op.sizes)
    names = ", ".join(quoted(mesh_dim.value) for mesh_dim, _ in op.sizes)
    yield f"mesh = init_device_mesh(kind, {sizes}, mesh_dim_names=({names}))"
    yield f"assert dist.get_world_size() == {graph.world_size}"


def build_model(op: BuildModel, graph: Graph) -> Iterator[str]:
    if is_hub(op.path):
        raise refuse(op, "a script needs a local model directory, not a Hub model")
    yield f"config = AutoConfig.from_pretrained(BASE / {quoted(op.path)}, local_files_only=True)"
    yield from (f"config.{name} = 0.0" for name in op.zeroed)
    if op.rope_positions is not None:
        raise refuse(op, "rotary embeddings by the length of sequences have no plain PyTorch form")
    if op.rope:
        yield from _rope(dict(op.rope))
    yield 'with torch.device("meta"):'
    yield "    model: Any = AutoModelForCausalLM.from_config("
    yield f'        config, dtype={dtype(op.dtype)}, attn_implementation="eager"'
    yield "    )"
    if op.kept_in_float32:
        yield "# transformers keeps these in float32 whatever the model's dtype."
        yield f"keep_in_float32(model, [{', '.join(listed(op.kept_in_float32))}])"
    yield "model.config.use_cache = False"
    yield "model.train()"


def _rope(stated: dict[str, str | int | float]) -> Iterator[str]:
    """As `planc.modeling.scaled_rope` sets it."""
    yield 'own = {name: config.rope_parameters.get(name) for name in ("rope_theta", "partial_rotary_factor")}'
    kept = "{name: one for name, one in own.items() if one is not None}"
    yield f"config.rope_parameters = {kept} | {stated!r}"
    original, factor = stated.get("original_max_position_embeddings"), stated["factor"]
    if isinstance(original, int) and not isinstance(factor, str):
        yield f"config.max_position_embeddings = {int(original * factor)}"


def attach_attention(op: AttachAttention, graph: Graph) -> Iterator[str]:
    if op.isolates or op.balance != "none":
        raise refuse(op, "isolated documents and load-balanced sequences have no plain PyTorch form")
    match op.kind:
        case "eager":
            yield "# The model's own attention."
        case "plain":
            yield "model.config._attn_implementation = register_attention(causal_attention)"
        case "ulysses":
            compute = f"ulysses_attention({one_dim(op.over)})"
            yield f"model.config._attn_implementation = register_attention({compute})"
        case kind:
            raise refuse(op, f"{kind} attention has no plain PyTorch form; use ulysses")


def attach_dropout(op: AttachDropout, graph: Graph) -> Iterator[str]:
    raise refuse(op, "masks by global position have no plain PyTorch form; write `dropout = false`")


def shard_tensor_parallel(op: ShardTensorParallel, graph: Graph) -> Iterator[str]:
    style = _style(op.use)
    if style is None:
        raise refuse(op, f"the style {op.use.style} has no plain PyTorch form")
    weight = dict(op.parameters).get("weight")
    if weight is not None and weight != BY_NAME[op.use.style].parameters.get("weight", vocab.Replicate()):
        raise refuse(op, "PyTorch's styles do not take a Conv1D, which stores its weight as [in, out]")
    if not op.over:
        raise refuse(op, "the mesh has no dim to shard over")
    yield f"style = {style}"
    names = ", ".join(listed(op.modules))
    yield f"parallelize_module(model, {one_dim(op.over)}, dict.fromkeys([{names}], style))"


def share_heads(op: ShareHeads, graph: Graph) -> Iterator[str]:
    if not op.over:
        raise refuse(op, "the mesh has no dim to shard over")
    if op.arguments:
        raise refuse(op, "arguments with a value for each head have no plain PyTorch form")
    yield f"for name in [{', '.join(listed(op.modules))}]:"
    yield "    attention: Any = model.get_submodule(name)"
    yield from (f"    attention.{path} //= {one_dim(op.over)}.size()" for path in op.counts)


def _style(use: StyleUse) -> str | None:
    """The call that creates PyTorch's style; None if PyTorch has none."""
    layouts = f"input_layouts={_placement(use.input)}, output_layouts={_placement(use.output)}"
    match use.style:
        case "colwise" | "colwise_gather_output" | "embedding_colwise":
            return f"ColwiseParallel({layouts})"
        case "rowwise" | "rowwise_split_input" | "embedding_rowwise":
            return f"RowwiseParallel({layouts})"
        case "sequence_parallel":
            return f"SequenceParallel(sequence_dim={use.sequence_dim}, use_local_output=True)"
        case "replicated_with_grad_allreduce":
            return "SequenceParallel(sequence_dim=2, use_local_output=True)"
        case "prepare_input":
            return f"PrepareInput({_placement(use.input)}, {_placement(use.computes_on)})"
        case _:
            return None


def _placement(of: vocab.Placement) -> str:
    match of:
        case vocab.Shard() | vocab.Replicate() | vocab.Partial():
            return str(of)
        case vocab.StridedShard() | vocab.PackedShard():
            raise AssertionError("no style with a plain PyTorch form packs its features")
        case _:
            assert_never(of)


def fully_shard(op: FullyShard, graph: Graph) -> Iterator[str]:
    if op.cpu_offload:
        raise refuse(op, "CPU offloading has no plain PyTorch form")
    if len(op.replicate_over) > 1 or (op.replicate_over and len(op.shard_over) > 1):
        raise refuse(op, "replicas with several sharded mesh dims have no plain PyTorch form")
    dtypes = f"param_dtype={_maybe(op.param_dtype)}, reduce_dtype={_maybe(op.reduce_dtype)}"
    options = [
        f"mesh={_fsdp_mesh(op)}",
        f"reshard_after_forward={op.reshard_after_forward}",
        f"mp_policy=MixedPrecisionPolicy({dtypes})",
    ]
    for targets in _targets(op.groups):
        yield "shard_fully("
        yield f"    {targets},"
        yield from (f"    {option}," for option in options)
        yield ")"


def _fsdp_mesh(op: FullyShard) -> str:
    names = ", ".join(f'"{mesh_dim.value}"' for mesh_dim in (*op.replicate_over, *op.shard_over))
    return f'mesh[{names}]._flatten("fsdp")' if len(op.shard_over) > 1 else f"mesh[{names}]"


def _targets(groups: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Lists of modules that are gathered together, as expressions; similar modules share a list."""
    alone = [group[0] for group in groups if len(group) == 1]
    if alone:
        yield f"[model.get_submodule(name) for name in [{', '.join(listed(alone))}]]"
    for group in groups:
        if len(group) > 1:
            yield f"[[model.get_submodule(name) for name in [{', '.join(listed(group))}]]]"


def _maybe(of: vocab.DType | None) -> str:
    return dtype(of) if of else "None"


def materialise_weights(op: MaterialiseWeights, graph: Graph) -> Iterator[str]:
    yield "model.to_empty(device=device)"


def init_weights(op: InitWeights, graph: Graph) -> Iterator[str]:
    build = next(one for one in graph.setup if isinstance(one, BuildModel))
    if build.dtype is not vocab.DType.FLOAT32:
        yield "# transformers initializes a new model under its own dtype."
        yield f"torch.set_default_dtype({dtype(build.dtype)})"
    yield f"fill_buffers(model, seed={op.seed})"
    yield f"fill_parameters(model, lambda: drawn_parameters(model, seed={op.seed}))"
    if build.dtype is not vocab.DType.FLOAT32:
        yield "torch.set_default_dtype(torch.float32)"


def load_weights(op: LoadWeights, graph: Graph) -> Iterator[str]:
    if is_hub(op.path):
        raise refuse(op, "a script needs local weights, not a Hub model")
    if op.strip is not None:
        raise refuse(op, "a script reads tensors by the model's own names")
    yield f"fill_buffers(model, seed={op.seed})"
    yield f"fill_parameters(model, lambda: stored_parameters(BASE / {quoted(op.path)}))"


def build_optimizer(op: BuildOptimizer, graph: Graph) -> Iterator[str]:
    yield "groups: list[dict[str, Any]] = ["
    for group in op.groups:
        yield "    {"
        yield '        "params": ['
        yield "            model.get_parameter(name)"
        yield "            for name in ["
        yield from (f"                {member}," for member in listed(group.parameters))
        yield "            ]"
        yield "        ],"
        yield f'        "lr": {group.lr!r},'
        yield f'        "peak_lr": {group.lr!r},'
        yield f'        "weight_decay": {group.weight_decay!r},'
        yield "    },"
    yield "]"
    chosen = [f"{flag}={_implementation(op, flag)}" for flag in ("fused", "foreach")]
    arguments = {"lr": op.lr, **op.arguments}
    options = [*(f"{name}={value!r}" for name, value in arguments.items()), *chosen]
    yield f"optimizer: Any = {op.optimizer.torch_class}(by_mesh(groups), {', '.join(options)})"


def _implementation(op: BuildOptimizer, flag: str) -> str:
    on = {device: op.implementation_on(device) == flag for device in ("cuda", "cpu")}
    return str(on["cpu"]) if on["cuda"] == on["cpu"] else f'kind == "{"cuda" if on["cuda"] else "cpu"}"'


def build_schedule(op: BuildSchedule, graph: Graph) -> Iterator[str]:
    decay_steps = op.num_steps - op.warmup_steps if op.decay_steps is None else op.decay_steps
    yield "schedule = partial("
    yield "    learning_rate_factor,"
    yield f'    kind="{op.kind}",'
    yield f"    warmup_steps={op.warmup_steps},"
    yield f"    decay_steps={decay_steps},"
    yield f"    min_factor={op.min_factor!r},"
    yield f"    num_steps={op.num_steps},"
    yield ")"
    yield "set_learning_rate(optimizer, schedule(1))"


def count_experts(op: CountExperts, graph: Graph) -> Iterator[str]:
    yield "# The script logs the loss alone, not the load of experts."


def open_data(op: OpenData, graph: Graph) -> Iterator[str]:
    if op.source != "text" or op.tokenizer != "bytes" or op.packing != "attend":
        raise refuse(op, "only text() with tokenizer = bytes and packing = attend has a plain PyTorch form")
    if any(pattern != without_compression(pattern) for pattern in op.patterns):
        raise refuse(op, "compressed files have no plain PyTorch form")
    if op.held_out:
        raise refuse(op, "a held-out share has no plain PyTorch form")
    if op.skip_bad:
        raise refuse(op, "skip_bad has no plain PyTorch form")
    shard_size = graph.size(MeshDim.DP_SHARD)
    yield f"tokens = bytes_of(text_files(BASE, [{', '.join(map(quoted, op.patterns))}]))"
    yield f"num_sequences = (len(tokens) - 1) // {op.sequence_length}"
    replica, shard = (f'mesh["{name}"].get_local_rank()' for name in ("dp_replicate", "dp_shard"))
    yield f"dp_rank = {replica} * {shard_size} + {shard}"
