"""Reasons that a key has no counterpart, and what is nearest: several kinds share them."""

from __future__ import annotations

ADAM = "Adam adds decay to the gradient and then scales it; the plan's AdamW decays the weights"
ARGUMENT = "the optimizer in a plan does not have this argument"
ASYNC_TP = "planc does not overlap tensor-parallel collectives with matmuls"
COMPILED = "`compile` compiles whole layers with inductor"
CONVERTERS = "planc does not convert modules: no float8, no quantization"
DETERMINISTIC = "a plan's sample order and weights are the same on every run"
EVALUATION = 'write `eval "held_out" { source = text("held_out/*.txt"), every = 100 steps }` in `data`'
EXPERTS = "write `expert_parallel on dp_shard { size = 8, auto }` for experts on different ranks"
EXPORT = 'write `export "hf" { dtype = bfloat16 }` in `checkpoint` for weights that transformers loads'
FAULT_TOLERANCE = "the nearest is `elastic`, which resumes on fewer nodes"
FIRST_WEIGHTS = "a plan starts from weights of the model's own directory, or from random ones"
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
OTHER_FILE = "it shards the model by another file, a DeepSpeed JSON: pass that file too"
OWN_MODEL = "the architecture comes from the config.json of `model.hf`"
STAGES = "`pipeline on pp` divides the layers by their estimated cost: write rules there for other stages"
PROFILE = "write `profile { first_step = 10, last_step = 12 }`"
RUN_DIR = "the run directory is not part of a plan: pass `--run-dir DIR` to the run"
SELECTIVE = "`selective` in a plan keeps attention and every second matmul, without options"
TEMPLATE = (
    "a plan has the template of the tokenizer's directory, or a file: write this one to `my.jinja`, and "
    '`chat(..., template = "my.jinja")`'
)
TOKENIZER = 'write `tokenizer = file("path/to/tokenizer.json")` in `data`'
WANDB = 'write `tracker "wandb" { project = "name" }` in `logging`'
WHOLE_STATE = 'every checkpoint has the whole state; `export "hf"` writes weights alone'
BALANCE = "the import leaves out balance losses: write `balance { loss = switch(coefficient = ...) }`"
BUCKETS = "FSDP2 gathers and reduces a layer at a time, ahead of need, without buckets or thresholds to set"
CP_BACKEND = "planc has its own ring, all-gather and Ulysses attention (`rotate` in `context_parallel`)"
DS_RECOMPUTE = (
    'this table alone recomputes nothing; write `activation_checkpoint { "model.layers.*" -> full }`'
)
FSDP2 = "FSDP2 does this itself"
GROUPS = 'write `"pattern" -> group(lr = ..., weight_decay = ...)` in `optimizer`'
HALF = "planc does not scale the loss, which float16 needs: train in bfloat16"
LAUNCH = "part of the launch, not of a plan: `planc launch` prints the commands"
ADAPTERS = "adapters in a plan are LoRA or DoRA, of the same rank in every layer that has one"
OF_ADAPTERS = "how adapters are computed or stored, not what is trained"
QUANTIZED = "a plan's frozen weights are in `model.dtype` or NF4 (`base = nf4` in `adapter`)"
SCALES = "NF4 in a plan has float32 scales, which are not quantized again, and computes in the model's dtype"
OWN_DATA = "a plan reads the usual keys of conversations: `planc explain P862` lists them"
OWN_TRAINING = "planc trains on whole next-token cross-entropy, every layer and every sequence at every step"
SCHEDULE_ARGUMENT = "the schedule in a plan does not have this argument"
OFFLOADED = (
    "`cpu_offload = true` in `fsdp` offloads parameters, gradients and optimizer state, without options"
)
SHARDED_STATE = "checkpoints are sharded, and load on any mesh"
SLICES = "each rank reads its own slices of the weights"
UNITS = 'units are patterns of module names: `"model.layers.*" -> unit`'
WARMS_FROM_ZERO = "warm-up in a plan starts from zero"
NO_PREFERENCES = "a plan's loss of preferences is `dpo(...)`, which a method of that name imports as"
PREFERENCE_LOSS = "the loss of a pair in a plan is -log sigmoid(margin), which others call sigmoid"
REFERENCE = "a plan names another reference by the path of its directory: `dpo(reference = ...)`"
HUB_UPLOAD = 'write `export "hf" { push = hub("org/name") }` in `checkpoint` to push the trained model'
LOSS = "planc trains on next-token cross-entropy, or on a loss for each token of the plan's own code"
PACKS = "`packing` in `data` is attend, isolate, whole or none"
REENTRANT = "recomputation in a plan has no options; it is never reentrant"
REMOTE_CODE = "planc never runs code of a model repository"
TOKEN_MEAN = "a plan averages the loss over all tokens of a step"
OFFLOADS = (
    'planc moves the inputs of recomputed layers, not all that backward needs: `"model.layers.*" -> offload` '
    "in `activation_checkpoint`"
)
