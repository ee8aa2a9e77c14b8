"""A draft as a plan's text: one lowering for configs of all kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from planc.fmt.format import format_source
from planc.hub.names import is_commit, is_hub, is_repository, parse_hub
from planc.import_configs import facts
from planc.import_configs.draft import Draft
from planc.import_configs.facts import Fact
from planc.import_configs.kind import NoteKind
from planc.import_configs.optimizer_text import decimal_text, optimizer_lines, share_text
from planc.import_configs.sizes import (
    Mesh,
    Missing,
    devices_per_node,
    expert_parallel,
    local_batch,
    mesh_of,
    micro_batch_of,
    required,
    tokens_per_step,
)
from planc.import_configs.trained import Trained, trained
from planc.inventory.schema import Inventory
from planc.record import record
from planc.source import SourceFile
from planc.syntax.write import block, call, quoted, rule


@record
class Target:
    """The machine's knowledge of the model that is imported."""

    is_directory: Callable[[str], bool]
    """Whether a path, relative to the plan, is a directory."""
    columns: Callable[[str], frozenset[str]] = lambda pattern: frozenset()
    """The keys of the first row of local files; none if they can't be read."""
    has_tokenizer: bool = False
    inventory: Inventory | None = None

    @property
    def blocks(self) -> tuple[str, ...]:
        """The repeated layers' names: the model's own, or those of most models."""
        return tuple(self.inventory.blocks) if self.inventory is not None else ("model.layers",)


_EVAL_STEPS = 100

Block = tuple[str, list[str]]
"""A header and its statements."""


def plan_text(draft: Draft, target: Target, *, title: str) -> str | tuple[Missing, ...]:
    """The formatted plan of a draft, or everything that is missing for one."""
    counts_epochs = draft.has(facts.EPOCHS) and not draft.has(facts.STEPS)
    needed = {
        "mesh": mesh_of(draft),
        "model": _model_source(draft, target),
        "length": (length := required(draft, facts.SEQUENCE_LENGTH)),
        "local": local_batch(draft, length),
        "data": source_of(draft, target),
        "trained": trained(draft, target.inventory),
        "lr": required(draft, facts.LR),
        "steps": None if counts_epochs else required(draft, facts.STEPS),
    }
    missing = tuple(one for one in needed.values() if isinstance(one, Missing))
    if missing:
        return missing
    if target.inventory is None:
        draft.added("model", "layers are taken to be `model.layers.*`, as in most models: pass --model DIR")
    text = "\n".join((f"# {title}\n", *(block(*one) for one in _blocks(draft, target, needed))))
    formatted, problems = format_source(SourceFile("imported.plan", text))
    assert formatted is not None, f"the importer wrote a plan that does not parse: {problems}"
    return formatted


def _blocks(draft: Draft, target: Target, needed: Mapping[str, Any]) -> Iterator[Block]:
    mesh: Mesh = needed["mesh"]
    micro_batch = micro_batch_of(draft, mesh, needed["local"])
    yield "model", [*_model(draft, needed["model"])]
    parts: Trained = needed["trained"]
    if parts.adapter:
        yield "adapter", [*parts.adapter]
    if parts.freeze:
        yield "freeze", [*parts.freeze]
    sizes = [f"{name} = {size}" for name, size in mesh.sizes]
    sizes += [*_mesh_rest(draft, mesh)]
    if sizes:
        yield "mesh", sizes
    if mesh.pp > 1:
        yield "pipeline on pp", [*_settings(draft, schedule=facts.PIPELINE_SCHEDULE)]
    if mesh.tp > 1:
        in_sequence = draft.take(facts.SEQUENCE_PARALLEL)
        yield "tensor_parallel on tp", ["auto(sequence_parallel = true)" if in_sequence else "auto"]
    experts = expert_parallel(draft, mesh, target.inventory)
    if experts is not None:
        yield experts
    if mesh.is_sharded or draft.has(facts.PARAM_DTYPE):
        yield _fsdp(draft, mesh, target)
    if mesh.cp > 1:
        yield _context_parallel(draft)
    if (recompute := draft.take(facts.RECOMPUTE)) not in (None, "none"):
        yield "activation_checkpoint", [rule([f"{one}.*"], recompute) for one in target.blocks]
    if draft.take(facts.COMPILE):
        is_ring = mesh.cp > 1 and not draft.has(facts.ULYSSES) and draft.take(facts.ROTATE) in (None, "ring")
        breaks = {"ring attention": is_ring, "experts on different ranks": experts is not None}
        yield "compile", [*_compile(draft, target, breaks=[what for what, is_so in breaks.items() if is_so])]
    yield "data", [*_data(draft, target, needed, micro_batch)]
    lr, steps = needed["lr"], needed["steps"]
    yield "optimizer", [*optimizer_lines(draft, target.inventory, lr=lr, steps=steps, spares=parts.spares)]
    if saved := [*_checkpoint(draft)]:
        yield "checkpoint", saved
    if logged := [*_logging(draft)]:
        yield "logging", logged
    yield "train", [*_train(draft, mesh, needed)]


def _model_source(draft: Draft, target: Target) -> str | Missing:
    """The value of `model.hf`, in a plan's words."""
    given = draft.peek(facts.MODEL)
    if given is None:
        at = draft.open.get(facts.MODEL.name)
        return Missing("the file names no model", "pass --model DIR, a directory with a config.json", at)
    name, revision = str(given.value), draft.peek(facts.REVISION)
    if is_hub(name):
        try:
            model = parse_hub(name)
        except ValueError:
            return Missing(f"`{name[:100]}` names no commit", "pass --model hf://org/name@COMMIT", given.leaf)
        draft.take(facts.MODEL)
        return f'hub("{model.repository}", revision = "{model.revision}")'
    if is_repository(name) and not target.is_directory(name):
        if revision is not None and is_commit(str(revision.value)):
            draft.take(facts.MODEL)
            return f'hub("{name}", revision = "{draft.take(facts.REVISION)}")'
        what = f"`{name[:100]}` is a model of the Hub, without a commit"
        help = f"pass --model DIR, or --model hf://{name[:100]}@COMMIT"
        return Missing(what, help, given.leaf)
    draft.take(facts.MODEL)
    return quoted(name)


def _model(draft: Draft, source: str) -> Iterator[str]:
    yield f"hf = {source}"
    if draft.take(facts.PRETRAINED):
        yield "weights = pretrained"
    elif not draft.has(facts.PRETRAINED):
        draft.added(
            "model.weights", "random; write `weights = pretrained` to train published weights further"
        )
    if (seed := draft.take(facts.SEED)) is not None and not draft.has(facts.MODEL_SEED):
        yield f"seed = {seed}"
    kernel, packs = draft.peek(facts.ATTENTION), draft.peek(facts.PACKING)
    if kernel is not None and kernel.value == "eager" and packs is not None and packs.value:
        text = "eager attention can't keep packed documents apart; the plan has sdpa"
        draft.set_aside(facts.ATTENTION, text, kind=NoteKind.WRONG)
        yield "attention = sdpa"
    elif kernel is not None:
        yield f"attention = {draft.take(facts.ATTENTION)}"
    if not draft.has(facts.MODEL_DTYPE):
        draft.added("model.dtype", "float32: the file does not give the dtype of stored parameters")
    yield from _settings(draft, seed=facts.MODEL_SEED, dtype=facts.MODEL_DTYPE)


def _settings(draft: Draft, **facts_by_key: Fact) -> Iterator[str]:
    """The settings whose facts the draft has, with their values as a plan writes them."""
    for key, fact in facts_by_key.items():
        if (value := draft.take(fact)) is not None:
            yield f"{key} = {str(value).lower() if isinstance(value, bool) else value}"


def _mesh_rest(draft: Draft, mesh: Mesh) -> Iterator[str]:
    per_node = devices_per_node(draft, mesh)
    if per_node is not None:
        yield f"devices_per_node = {per_node}"
    yield from _settings(draft, backend=facts.BACKEND)
    minutes = draft.take(facts.TIMEOUT_MINUTES)
    seconds = draft.take(facts.TIMEOUT) if minutes is None else 60 * minutes
    if seconds is not None:
        yield f"timeout = {seconds} s"


def _fsdp(draft: Draft, mesh: Mesh, target: Target) -> Block:
    lines = []
    if not mesh.is_sharded:
        draft.added("fsdp", "of one shard: it gives replicas their dtype of compute, as mixed precision does")
    draft.take(facts.UNITS)
    if mesh.dp_replicate > 1:
        lines.append("replicate_on = dp_replicate")
    lines += _settings(draft, param_dtype=facts.PARAM_DTYPE, reduce_dtype=facts.REDUCE_DTYPE)
    if draft.take(facts.OFFLOAD):
        lines.append("cpu_offload = true")
    if draft.take(facts.RESHARD_BACKWARD) is False:
        lines.append("reshard_after_backward = false")
    if draft.take(facts.REDUCES_EACH):
        lines.append("reduce_every = micro_batch")
    reshards = draft.take(facts.RESHARD)
    keeps = reshards is False or (reshards is None and mesh.pp > 1)
    if reshards is None and keeps:
        text = "false: in a pipeline, each micro batch would gather parameters again"
        draft.added("fsdp.unit.reshard_after_forward", text)
    unit = "unit(reshard_after_forward = false)" if keeps else "unit"
    lines += [rule([f"{one}.*"], unit) for one in target.blocks]
    return f"fsdp on dp_shard{', cp' if mesh.cp > 1 else ''}", lines


def _context_parallel(draft: Draft) -> Block:
    rotate = "ulysses" if draft.has(facts.ULYSSES) else draft.take(facts.ROTATE)
    lines = [f"rotate = {rotate}"] if rotate else []
    return "context_parallel on cp", [*lines, *_settings(draft, load_balancer=facts.BALANCER)]


def _compile(draft: Draft, target: Target, *, breaks: Sequence[str]) -> Iterator[str]:
    if breaks and not draft.has(facts.FULLGRAPH):
        draft.added("compile.fullgraph", f"false: {breaks[0]} can't be traced as one graph")
        yield "fullgraph = false"
    yield from _settings(draft, fullgraph=facts.FULLGRAPH, dynamic=facts.DYNAMIC)
    yield from (rule([f"{one}.*"], "region") for one in target.blocks)


def _data(draft: Draft, target: Target, needed: Mapping[str, Any], micro_batch: int) -> Iterator[str]:
    yield f"source = {needed['data']}"
    source = needed["model"]
    if target.has_tokenizer and source.startswith('"'):
        yield f"tokenizer = file({source})"
    else:
        draft.added("data.tokenizer", 'bytes, until the plan has `tokenizer = file("DIR")` of the model')
    yield f"sequence_length = {needed['length']}"
    yield f"micro_batch = {micro_batch}"
    if prefers := draft.has(facts.PAIRS):
        _leave_out(draft)
    if draft.take(facts.PACKING) is not None:
        yield f"packing = {'whole' if draft.take(facts.PACKING) and not prefers else 'none'}"
    seed = draft.take(facts.SHUFFLE_SEED)
    seed = draft.take(facts.SEED) if seed is None else seed
    if seed is not None:
        yield f"shuffle_seed = {seed}"
    if not prefers and (share := draft.take(facts.EVAL_SHARE)) is not None:
        if (every := draft.take(facts.EVAL_EVERY)) is None:
            every = _EVAL_STEPS
            draft.added("data.eval.every", f"{every} steps: the file gives no steps between evaluations")
        yield f'eval "held_out" {{ share = {share_text(share)}, every = {every} steps }}'


def _leave_out(draft: Draft) -> None:
    """Leave out what no plan has with pairs: the import stops at what would train."""
    packs, smoothing = draft.peek(facts.PACKING), draft.peek(facts.LABEL_SMOOTHING)
    if packs is not None and packs.value:
        draft.stop(facts.PACKING, "each sequence of a plan holds one answer of a pair")
    if smoothing is not None and smoothing.value:
        draft.stop(facts.LABEL_SMOOTHING, "it is of the cross entropy, which pairs have not")
    draft.set_aside(facts.EVAL_SHARE, "a plan evaluates no pairs")
    draft.set_aside(facts.LOSS_CHUNKS, "the loss of a pair is not a sum over tokens")
    draft.added("data.too_long", "pairs with an answer that is longer than a sequence are left out")


def _checkpoint(draft: Draft) -> Iterator[str]:
    every, saves = draft.take(facts.SAVE_EVERY), draft.take(facts.SAVES)
    if saves is False or (every is None and not saves):
        return
    if every is not None:
        yield f"save_every = {every} steps"
    yield from _settings(draft, keep_last=facts.KEEP_LAST)
    if draft.take(facts.ASYNC) == "async":
        yield "mode = async"


def _logging(draft: Draft) -> Iterator[str]:
    trackers = draft.take(facts.TRACKERS)
    if draft.take(facts.TENSORBOARD) or "tensorboard" in (trackers or ()):
        yield 'tracker "tensorboard" {}'
    project = draft.take(facts.WANDB) if trackers is None or "wandb" in trackers else None
    if project is None and "wandb" in (trackers or ()):
        project = draft.kind.name
        draft.added("logging.tracker", f'Weights & Biases takes a project: "{project}"')
    if project is not None:
        yield f'tracker "wandb" {{ project = {quoted(project)} }}'


def _train(draft: Draft, mesh: Mesh, needed: Mapping[str, Any]) -> Iterator[str]:
    if needed["steps"] is None:
        yield f"epochs = {decimal_text(draft.take(facts.EPOCHS))}"
    else:
        yield f"steps = {needed['steps']}"
    tokens = tokens_per_step(draft, mesh, sequence_length=needed["length"], local_batch=needed["local"])
    if tokens is not None:
        yield f"tokens_per_step = {tokens}"
    if (every := draft.take(facts.LOG_EVERY)) is not None:
        yield f"log_every = {every} steps"
    if draft.has(facts.PAIRS):
        smoothing = draft.take(facts.DPO_SMOOTHING)
        rest = f", label_smoothing = {decimal_text(smoothing)}" if smoothing else ""
        yield f"loss = dpo(beta = {decimal_text(draft.take(facts.DPO_BETA))}{rest})"
        return
    if smoothing := draft.take(facts.LABEL_SMOOTHING):
        yield f"loss = cross_entropy(label_smoothing = {decimal_text(smoothing)})"
    if draft.take(facts.LOSS_CHUNKS):
        yield "loss_chunks = auto"


_DATA = "data/*.txt"
_CONVERSATIONS = ("messages", "conversations")
_ARGUMENTS = {
    "chat": (
        ("train_on", facts.TRAIN_ON),
        ("train_on_end_of_turn", facts.TRAINS_ENDS),
        ("template", facts.TEMPLATE),
    ),
    "pairs": (("template", facts.TEMPLATE),),
}
"""Arguments of a source's call, with their facts."""
_CALLS = {".json": "jsonl", ".jsonl": "jsonl", ".parquet": "hf_dataset", ".arrow": "hf_dataset"}


def source_of(draft: Draft, target: Target) -> str | Missing:
    """The value of `data.source`; missing where the file trains on what a plan can't name."""
    path = draft.take(facts.DATA)
    if path is None and (at := draft.open.get(facts.DATA.name)) is not None:
        return Missing("the file trains on data that planc can't read from here", "pass --data GLOB", at)
    if draft.kind.tells_chats_by_columns and not draft.has(facts.CHAT):
        columns = target.columns(path) if path is not None else frozenset()
        if not columns.intersection(("text", *_CONVERSATIONS)):
            what = f"{draft.kind.title} tells conversations from documents by the columns of the data"
            return Missing(what, "pass --data-as chat or --data-as text", None)
        is_chat = not columns.isdisjoint(_CONVERSATIONS)
        draft.give_default(facts.CHAT, is_chat, "by the columns of the data")
    if draft.kind.tells_chats_by_columns:
        draft.give_default(facts.TRAIN_ON, "all", f"the default of {draft.kind.title}")
    prefers = draft.take(facts.PAIRS) is not None
    is_chat = not prefers and bool(draft.take(facts.CHAT))
    if path is None:
        path = "data/*.jsonl" if is_chat or prefers else _DATA
        draft.added("data.source", f"the file names no data: `{path}`, or pass --data")
    suffix = path[path.rfind(".") :] if "." in path else ""
    name = "pairs" if prefers else "chat" if is_chat else _CALLS.get(suffix, "text")
    arguments = [quoted(path)]
    field = None if name in ("text", "pairs") else draft.take(facts.MESSAGES if is_chat else facts.TEXT_FIELD)
    if field is not None:
        arguments.append(f"field = {quoted(field)}")
    for key, fact in _ARGUMENTS.get(name, ()):
        if (value := draft.take(fact)) is not None:
            arguments.append(f"{key} = {quoted(value) if fact is facts.TEMPLATE else value}")
    arguments += _data_split(draft, name)
    return call(name, arguments)


def _data_split(draft: Draft, call: str) -> Iterator[str]:
    """The split of the file's own data: files that an option names have others."""
    given = draft.peek(facts.DATA)
    if given is None or given.leaf is None or call not in ("chat", "pairs", "hf_dataset"):
        return
    split = draft.take(facts.SPLIT)
    if split not in (None, "train"):
        yield f"split = {quoted(split)}"
