"""Words of the field that no single tool sets: techniques, losses, optimizers, and other programs."""

from __future__ import annotations

from collections.abc import Mapping

from planc.plan.foreign import NONE, Foreign, absent

_WHOLE = '"model.layers.*" -> unit(reshard_after_forward = false)'

FIELD: Mapping[str, Foreign] = {
    "moe mixture_of_experts num_experts experts_per_token top_k_experts": absent(
        "the experts come from the model's config.json; `fsdp` shards them by number, "
        "`tensor_parallel on tp { auto }` shards each, and `expert_parallel` gives ranks different ones"
    ),
    "zero1 zero_1": Foreign(
        "",
        f"fsdp on dp_shard {{ reshard_after_backward = false, {_WHOLE} }}",
        why="optimizer state is sharded, parameters are gathered once a step, and gradients reduced once",
    ),
    "shard_grad_op no_reshard": Foreign("fsdp", _WHOLE),
    "zero2 zero_2": Foreign(
        "",
        f"fsdp on dp_shard {{ reshard_after_backward = false, reduce_every = micro_batch, {_WHOLE} }}",
        why="parameters are gathered once a step, and gradients are kept as shards",
    ),
    "ring_attention ring_attn zigzag_ring": Foreign(
        "", "context_parallel on cp { rotate = ring }", also=", with `cp` in `mesh`"
    ),
    "ulysses_attention deepspeed_ulysses ulysses_sp": Foreign(
        "", "context_parallel on cp { rotate = ulysses }", also=", with `cp` in `mesh`"
    ),
    "allgather_attention all_gather_attention": Foreign(
        "", "context_parallel on cp { rotate = allgather }", also=", with `cp` in `mesh`"
    ),
    "flash_attention_2 flash_attention_3 flash_attn_2 fa2 fa3 flex_attention xformers": Foreign(
        "model",
        "attention = sdpa",
        why="PyTorch's `scaled_dot_product_attention` chooses its flash kernel itself",
    ),
    "activation_offload activation_offloading offload_activations cpu_activation_offload": Foreign(
        "",
        'activation_checkpoint { "model.layers.*" -> offload }',
        why="the input of each layer waits in the host's memory, and backward recomputes the rest",
    ),
    "chat_template chat_format prompt_template": Foreign(
        "data",
        'source = chat("data/*.jsonl", template = "my.jinja")',
        why="the chat template comes from the tokenizer's directory, unless `template` names another",
    ),
    "sft instruction_tuning instruct_tuning supervised_finetuning chatml sharegpt": Foreign(
        "data",
        'source = chat("data/*.jsonl")',
        also=", with `weights = pretrained` in `model`; `planc new MODEL --for chats` writes such a plan",
    ),
    "finetune finetuning fine_tuning fine_tune continued_pretraining": Foreign(
        "model", "weights = pretrained", also="; `planc new MODEL --for continue` writes such a plan"
    ),
    "preference preference_loss": Foreign(
        "train", "loss = dpo(beta = <0.1>)", also="; `planc new MODEL --for preferences` writes such a plan"
    ),
    "mlm fill_mask": Foreign(
        "model", "task = masked_lm", also="; `planc new MODEL --for masked_lm` writes such a plan"
    ),
    "contrastive triplet info_nce multiple_negatives_ranking_loss": Foreign(
        "train",
        "loss = contrastive(group = <8>)",
        also=", with `task = embedding()` in `model`; `planc new MODEL --for embedding` writes such a plan",
    ),
    "ppo orpo kto simpo reward rewards kl kl_divergence mtp multi_token_prediction": absent(
        "planc has no such loss: it trains on next-token cross-entropy, on pairs (`dpo`, `contrastive`), or "
        "on a loss for each token that the plan's own code computes (planc explain own loss)",
        off=NONE,
    ),
    "adam adamax nadam radam adafactor adagrad lion lamb shampoo soap sophia galore rmsprop": Foreign(
        "optimizer",
        "kind = adamw(lr = 3e-4)",
        why="optimizers are `adamw`, `adamw_8bit`, `adamw_bf16`, `muon` and `sgd`",
    ),
    "adam8bit paged_adamw adamw8bit adamw_bnb_8bit": Foreign("optimizer", "kind = adamw_8bit(lr = 3e-4)"),
    "lr_finder find_lr auto_lr_find lr_find": absent(
        "planc does not search learning rates: compare runs with `--set optimizer.lr=VALUE`", off=NONE
    ),
    "tie_word_embeddings tied_embeddings tie_embeddings tie_weights tied_weights weight_tying "
    "rope rotary_embedding": absent(
        "the architecture comes from config.json in the directory of `model.hf`: change it there"
    ),
    "kv_cache use_cache": absent("training keeps no cache of keys and values: remove the line", off=NONE),
    "int8 int4 fp4 mxfp8 nvfp4 gptq awq": absent(
        "planc does not train in fp8 or on quantized weights", off=NONE
    ),
    "loss_scale loss_scaling loss_scaler grad_scaler gradscaler initial_scale_power": Foreign(
        "fsdp", "param_dtype = bfloat16", why="planc does not scale the loss: bfloat16 needs no scale"
    ),
    "perplexity ppl compute_metrics": absent(
        "a run reports losses, in metrics.jsonl: perplexity is the exponential of one"
    ),
    "mfu hfu": absent("a run reports TFLOP/s per device: mfu is its share of the device's peak", off=NONE),
    "data_mixture dataset_mixture dataset_weights mix blend interleave_datasets curriculum": absent(
        "a source reads any number of files and does not weight them",
        off=NONE,
    ),
    "streaming iterable_dataset": absent(
        "data are tokenized once, before a run or at its start: `planc data prepare PLAN`", off=NONE
    ),
    "megatron megatron_lm nemo torchtitan nanotron lightning axolotl trl "
    "accelerate accelerate_config": absent(
        "a plan replaces the program and its configuration: `planc new MODEL` writes one, "
        "and `planc launch PLAN` prints what starts it"
    ),
    "slurm sbatch kubernetes k8s kubeflow torchrun": absent(
        "how ranks start is not part of a plan: `planc launch PLAN --form slurm` prints a batch script, "
        "and other forms are torchrun, accelerate and kubernetes"
    ),
}
