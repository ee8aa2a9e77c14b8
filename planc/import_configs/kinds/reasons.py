"""Why a key has no counterpart, and what is nearest: reasons that several kinds share."""

from __future__ import annotations

ASYNC_TP = "planc does not overlap tensor-parallel collectives with matmuls"
COMPILED = "`compile` compiles whole layers with inductor"
CONVERTERS = "planc does not convert modules: no float8, no quantization"
DETERMINISTIC = "a plan's sample order and weights are the same on every run"
EVALUATION = 'write `eval "held_out" { source = text("held_out/*.txt"), every = 100 steps }` in `data`'
EXPERTS = "planc does not have expert parallelism: `tensor_parallel` shards each expert"
EXPORT = 'write `export "hf" { dtype = bfloat16 }` in `checkpoint` for weights that transformers loads'
FAULT_TOLERANCE = "the nearest is `elastic`, which resumes on fewer nodes"
FLOAT8 = "planc does not train in float8 or on quantized weights"
HUB_DATA = (
    'a dataset of the Hub needs a commit in a plan: `source = hf_hub("org/name", revision = "<commit>")`'
)
INTERNAL = "an internal setting of the tool; planc has nothing to set here"
IN_BACKWARD = "planc steps after backward, so gradients can be clipped"
LABEL = "a label of the job; a plan's name is its file's"
LOADER = "a thread of each rank prepares batches: `prefetch` in `data` is how far ahead"
LOADING = "a run resumes from the last checkpoint in its run directory (`resume = latest`)"
LOGS = "planc writes metrics.jsonl in the run directory, and to the trackers of `logging`"
LOSS_PARALLEL = 'rules for the head decide: `"lm_head" -> colwise(output = Shard(-1))` shards the loss'
OWN_MODEL = "the architecture comes from the config.json of `model.hf`"
PIPELINE = "planc does not have pipeline parallelism; the plan's mesh has no `pp`"
PROFILE = "write `profile { first_step = 10, last_step = 12 }`"
RUN_DIR = "the run directory is not part of a plan: pass `--run-dir DIR` to the run"
SELECTIVE = "`selective` in a plan keeps attention and every second matmul, without options"
TOKENIZER = 'write `tokenizer = file("path/to/tokenizer.json")` in `data`'
WANDB = 'write `tracker "wandb" { project = "name" }` in `logging`'
WHOLE_STATE = 'every checkpoint has the whole state; `export "hf"` writes weights alone'
