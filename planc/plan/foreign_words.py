"""Words of other tools for what a plan writes otherwise, or does not have: one table."""

from __future__ import annotations

import re
from collections.abc import Mapping

from planc.record import record


@record
class Foreign:
    """What a plan has for a word of another tool.

    `line` is what to write in `block`, or at the top level if that is empty. Its value is in angle brackets
    if a value that the plan gives can take its place. Without a line, `why` states what planc has instead.
    `why` comes before the line, `also` after it, with the plan's value for `{value}`. With `same`, the line
    means exactly what the word means. With `factors`, the value of the line is the product of the word's own
    value and these settings. `has` lists the values that planc has, for a value that it does not have.
    """

    block: str
    line: str
    why: str = ""
    also: str = ""
    same: bool = False
    factors: tuple[str, ...] = ()
    has: str = ""


_SHARDED = 'fsdp on dp_shard { "model.layers.*" -> unit }'
_DIMS = "mesh dims are `dp_replicate`, `dp_shard`, `cp` and `tp`"
_FORMATS = "; `jsonl`, `chat`, `hf_dataset` and `hf_hub` read other formats"
_ARGUMENT = "`{word}` is an argument of the optimizer"
_RECOMPUTED = Foreign("", 'activation_checkpoint { "model.layers.*" -> full }')
_ADAMW = "kind = adamw(lr = 3e-4"
_GROUPED = '"**.*norm*" -> group(weight_decay = 0.0)'
_FROZEN = '"model.embed_tokens" -> group(lr = 0.0)'
_EVALUATED = 'eval "held_out" { source = text("held_out/*.txt"), every = 100 steps }'


def _absent(text: str) -> Foreign:
    return Foreign("", "", why=text)


_DATA: Mapping[str, Foreign] = {
    "seq_len seq_length sequence_len max_length "
    "max_seq_len max_seq_length max_sequence_length block_size "
    "context_length context_len n_ctx model_max_length cutoff_len": Foreign(
        "data", "sequence_length = <2048>", same=True
    ),
    "micro_batch_size per_device_train_batch_size per_device_batch_size train_micro_batch_size_per_gpu "
    "local_batch_size device_batch_size mbs": Foreign("data", "micro_batch = <4>", same=True),
    "batch_size batch bs train_batch_size": Foreign(
        "data",
        "micro_batch = <4>",
        why="`micro_batch` is the batch of one rank",
        also="; `tokens_per_step` in `train` sets the global batch",
    ),
    "num_workers dataloader_num_workers num_data_workers prefetch_factor dataloader_prefetch_factor "
    "persistent_workers pin_memory dataloader_pin_memory": Foreign(
        "data",
        "prefetch = 2",
        why="a thread prepares samples",
        also=" for the number of steps it works ahead",
    ),
    "seed random_seed manual_seed rng_seed": Foreign(
        "data",
        "shuffle_seed = <1>",
        also=" to seed the sample order; `model.seed` seeds weight initialization",
    ),
    "data_seed sampler_seed": Foreign("data", "shuffle_seed = <1>", same=True),
    "shuffle shuffle_data shuffle_buffer_size": Foreign(
        "data", "shuffle_seed = 1", why="the sample order is always shuffled"
    ),
    "dataset datasets dataset_name dataset_path data_path "
    "data_dir data_files data_prefix train_file train_files "
    "train_data train_dataset dataloader datamodule corpus": Foreign(
        "data", 'source = text("data/*.txt")', also=_FORMATS
    ),
    "text_column text_field text_key dataset_text_field": Foreign(
        "data", 'source = jsonl("data/*.jsonl", field = <"text">)', why="a source names its column"
    ),
    "tokenizer_name tokenizer_path tokenizer_name_or_path tokenizer_model tokenizer_file vocab_file": Foreign(
        "data", 'tokenizer = file(<"path/to/tokenizer.json">)'
    ),
    "eval_dataset eval_data eval_file eval_steps "
    "eval_interval eval_every eval_freq eval_iters eval_strategy "
    "evaluation evaluation_strategy val_data "
    "val_check_interval validation validation_data validation_file "
    "per_device_eval_batch_size": Foreign("data", _EVALUATED),
    "pack packed pack_sequences sample_packing packing_strategy concat_documents group_texts": Foreign(
        "data", "packing = attend", also="; `isolate` keeps documents from attending to each other"
    ),
    "doc_mask document_mask block_diagonal "
    "intra_doc_masking reset_attention_mask reset_position_ids": Foreign("data", "packing = isolate"),
    "pad padding pad_to_max_length truncation": Foreign(
        "data", "packing = none", also=" for one document per sequence, cut or padded"
    ),
    "mask_prompt train_on_input train_on_inputs "
    "train_on_prompt assistant_only_loss completion_only_loss": Foreign(
        "data", 'source = chat("data/*.jsonl", train_on = assistant)', also="; `all` trains on every message"
    ),
}

_TRAIN: Mapping[str, Foreign] = {
    "max_steps num_steps total_steps train_steps "
    "training_steps num_train_steps num_training_steps train_iters "
    "max_iters max_iterations iterations": Foreign("train", "steps = <1000>", same=True),
    "epoch epochs num_epochs n_epochs num_train_epochs max_epochs train_epochs": Foreign(
        "train", "steps = 1000", why="planc counts steps, not epochs"
    ),
    "gradient_accumulation_steps gradient_accumulation grad_accum grad_accum_steps grad_acc_steps "
    "accumulate_grad_batches accumulation_steps accumulate_steps": Foreign(
        "train",
        "tokens_per_step = 8192",
        why="`{word}` is derived",
        also="accumulation x dp_replicate x dp_shard x micro_batch x sequence_length",
        factors=("mesh.dp_replicate", "mesh.dp_shard", "data.micro_batch", "data.sequence_length"),
    ),
    "tokens_per_batch batch_tokens global_batch_tokens total_batch_tokens": Foreign(
        "train", "tokens_per_step = <8192>", same=True
    ),
    "global_batch_size global_batch gbs effective_batch_size total_batch_size": Foreign(
        "train",
        "tokens_per_step = 8192",
        why="the global batch is counted in tokens",
        also="sequences x sequence_length",
        factors=("data.sequence_length",),
    ),
    "logging_steps log_steps log_interval logging_interval log_freq log_every_n_steps": Foreign(
        "train", "log_every = <10 steps>", same=True
    ),
    "training trainer training_args training_arguments": Foreign("", "train { steps = 1000 }"),
    "output_dir run_dir save_dir save_path out_dir "
    "log_dir logging_dir ckpt_dir checkpoint_dir dump_folder "
    "work_dir exp_dir default_root_dir": _absent(
        "the run directory is not part of a plan: pass `--run-dir DIR` to the run"
    ),
    "loss loss_fn loss_type label_smoothing "
    "label_smoothing_factor z_loss aux_loss router_aux_loss_coef "
    "moe_aux_loss_coeff distillation teacher dpo grpo rlhf reward_model": _absent(
        "planc trains on next-token cross-entropy and does not have another loss"
    ),
    "ema use_ema ema_decay swa model_ema": _absent("planc does not average weights over steps (EMA, SWA)"),
    "early_stopping early_stopping_patience load_best_model_at_end metric_for_best_model": _absent(
        "planc does not stop early or choose a best checkpoint: a run ends after `steps`"
    ),
    "hparams hyperparameters params parameters vars variables": _absent(
        "declare a parameter at the top level: `param lr: float = 3e-4`"
    ),
}

_OPTIMIZER: Mapping[str, Foreign] = {
    "lr learning_rate max_lr peak_lr base_lr": Foreign(
        "optimizer", "kind = adamw(lr = <3e-4>)", why=_ARGUMENT
    ),
    "weight_decay wd adam_weight_decay": Foreign(
        "optimizer", f"{_ADAMW}, weight_decay = <0.1>)", why=_ARGUMENT
    ),
    "betas adam_betas": Foreign("optimizer", f"{_ADAMW}, betas = <[0.9, 0.95]>)", why=_ARGUMENT),
    "beta1 beta2 adam_beta1 adam_beta2": Foreign(
        "optimizer", f"{_ADAMW}, betas = [0.9, 0.95])", why=_ARGUMENT
    ),
    "eps epsilon adam_eps adam_epsilon": Foreign("optimizer", f"{_ADAMW}, eps = <1e-8>)", why=_ARGUMENT),
    "momentum": Foreign("optimizer", "kind = sgd(lr = 3e-4, momentum = <0.9>)", why=_ARGUMENT),
    "nesterov": Foreign(
        "optimizer", "kind = sgd(lr = 3e-4, momentum = 0.9, nesterov = <true>)", why=_ARGUMENT
    ),
    "fused foreach": Foreign(
        "optimizer", f"{_ADAMW}, implementation = {{word}})", why="`implementation` chooses the kernel"
    ),
    "optim optimizer_type optimizer_name": Foreign("optimizer", f"{_ADAMW})"),
    "max_grad_norm gradient_clipping gradient_clip_val gradient_clip "
    "grad_clip grad_clip_norm clip_grad clip_norm "
    "max_norm": Foreign("optimizer", "clip_grad_norm = <1.0>", same=True),
    "warmup warmup_steps num_warmup_steps lr_warmup_steps lr_warmup_iters warmup_iters": Foreign(
        "optimizer", "schedule = cosine(warmup = <100 steps>)", why="`warmup` is an argument of the schedule"
    ),
    "warmup_ratio warmup_fraction warmup_epochs": Foreign(
        "optimizer", "schedule = cosine(warmup = 100 steps)", why="warm-up is counted in steps"
    ),
    "lr_scheduler lr_scheduler_type lr_schedule lr_decay_style scheduler scheduler_type": Foreign(
        "optimizer", "schedule = <cosine>"
    ),
    "min_lr min_lr_ratio min_lr_rate eta_min final_lr": Foreign(
        "optimizer",
        "schedule = cosine(min_factor = 0.1)",
        why="the lowest learning rate is a share of the peak",
    ),
    "decay_steps lr_decay_steps lr_decay_iters lr_decay_ratio": Foreign(
        "optimizer", "schedule = wsd(decay = <100 steps>)", also="; `cosine` decays until the last step"
    ),
    "param_groups parameter_groups no_decay no_weight_decay weight_decay_exclude": Foreign(
        "optimizer", _GROUPED
    ),
    "freeze frozen freeze_layers freeze_embeddings requires_grad trainable": Foreign(
        "optimizer", _FROZEN, why="a group with `lr = 0.0` keeps its parameters as they are"
    ),
    "lora use_lora lora_r lora_rank lora_alpha lora_config "
    "qlora dora peft peft_config adapter adapters": _absent(
        f"planc does not have LoRA or other adapters; in `optimizer`, `{_FROZEN}` freezes parameters"
    ),
}

_MESH: Mapping[str, Foreign] = {
    "tp_size tp_degree tensor_parallel "
    "tensor_parallel_size tensor_parallel_degree tensor_model_parallel_size "
    "model_parallel model_parallel_size mp mp_size tensor": Foreign("mesh", "tp = <2>", same=True),
    "cp_size cp_degree context_parallel context_parallel_size context_parallel_degree sp sp_size "
    "sequence_parallel_size ulysses_size ulysses_degree ring_degree context seq": Foreign(
        "mesh", "cp = <2>", same=True
    ),
    "dp_shard_size dp_shard_degree data_parallel_shard_degree fsdp_size fsdp_degree shard zero_size": Foreign(
        "mesh", "dp_shard = <2>", same=True
    ),
    "dp dp_size dp_degree data_parallel data_parallel_size data_parallel_degree": Foreign(
        "mesh", "dp_shard = <2>", also=" to shard with `fsdp`, or `dp_replicate = {value}` to replicate"
    ),
    "ddp ddp_size distributed_data_parallel "
    "dp_replicate_size dp_replicate_degree num_replicas replicas "
    " "
    "data_parallel_replicate_degree": Foreign("mesh", "dp_replicate = <2>", also=" to replicate the model"),
    "pp pp_size pp_degree pipe "
    "pipeline pipeline_parallel pipeline_parallel_size pipeline_parallel_degree "
    "pipeline_model_parallel_size virtual_pipeline_model_parallel_size num_stages": _absent(
        f"planc does not have pipeline parallelism; {_DIMS}"
    ),
    "ep ep_size ep_degree expert expert_parallel expert_parallel_size expert_parallel_degree "
    "expert_model_parallel_size": _absent(
        f"planc does not have expert parallelism: `tensor_parallel` shards each expert; {_DIMS}"
    ),
    "world_size nnodes num_nodes n_nodes num_gpus n_gpus gpus devices num_devices num_processes": _absent(
        "the world size is the product of the mesh dims: set `dp_replicate`, `dp_shard`, `cp` and `tp`"
    ),
    "gpus_per_node num_gpus_per_node nproc_per_node": Foreign("mesh", "devices_per_node = <8>", same=True),
    "dist_backend distributed_backend process_group_backend ddp_backend": Foreign(
        "mesh", "backend = <nccl>", same=True
    ),
    "nccl_timeout init_timeout dist_timeout comm_timeout ddp_timeout": Foreign(
        "mesh", "timeout = <600 s>", same=True
    ),
    "parallelism parallel distributed strategy device_mesh": Foreign("", "mesh { dp_shard = 2, tp = 2 }"),
    "accelerator gpu_type device_type": Foreign("", "hardware { gpu = h100 }"),
}

_SHARDING: Mapping[str, Foreign] = {
    "zero zero1 zero2 zero3 zero_stage zero_optimization "
    "stage deepspeed deepspeed_config ds_config fsdp fsdp2 "
    "fsdp_config fsdp_version fully_shard full_shard sharding_strategy distributed_optimizer "
    "use_distributed_optimizer": Foreign(
        "", _SHARDED, why="FSDP2 shards parameters, gradients and optimizer state"
    ),
    "auto_wrap_policy fsdp_auto_wrap_policy wrap_policy transformer_layer_cls_to_wrap min_num_params "
    "fsdp_transformer_layer_cls_to_wrap modules_to_wrap": Foreign("fsdp", '"model.layers.*" -> unit'),
    "reshard_after_forward fsdp_reshard_after_forward": Foreign(
        "fsdp", '"model.layers.*" -> unit(reshard_after_forward = true)'
    ),
    "hsdp hybrid_shard": Foreign("fsdp", "replicate_on = dp_replicate"),
    "cpu_offload enable_cpu_offload offload "
    "offload_policy offload_optimizer offload_param optimizer_offload "
    "fsdp_offload_params": Foreign("fsdp", "cpu_offload = true"),
    "grad_reduce_dtype gradient_reduce_dtype grad_dtype accumulate_allreduce_grads_in_fp32": Foreign(
        "fsdp", "reduce_dtype = float32"
    ),
    "bf16 use_bf16 mixed_precision mixed_precision_policy "
    "mp_policy amp autocast precision compute_dtype": Foreign("fsdp", "param_dtype = bfloat16"),
    "fp16": Foreign(
        "fsdp", "param_dtype = bfloat16", why="planc does not scale the loss, which float16 needs"
    ),
    "fp8 float8 use_fp8 load_in_4bit load_in_8bit quantization quantization_config bitsandbytes": _absent(
        "planc does not train in fp8 or on quantized weights"
    ),
    "use_orig_params limit_all_gathers forward_prefetch backward_prefetch sync_module_states": _absent(
        "FSDP2 does this itself: remove the line"
    ),
    "loss_parallel vocab_parallel": Foreign("tensor_parallel", '"lm_head" -> colwise(output = Shard(-1))'),
    "sequence_parallel enable_sequence_parallel": Foreign(
        "tensor_parallel", '"model.norm" -> sequence_parallel', why="sequence parallelism is a style of norms"
    ),
    "tp_plan parallelize_plan": Foreign("", "tensor_parallel on tp { auto }"),
}

_MODEL: Mapping[str, Foreign] = {
    "model_name model_name_or_path model_id model_path base_model pretrained_model_name_or_path": Foreign(
        "model", 'hf = <"models/tiny-llama">', also=', or `hf = hub("org/name", revision = "<commit>")`'
    ),
    "init init_weights init_from random_init from_scratch": Foreign("model", "weights = random"),
    "pretrained from_pretrained load_weights": Foreign("model", "weights = pretrained"),
    "torch_dtype model_dtype params_dtype": Foreign("model", "dtype = <float32>", same=True),
    "master_dtype master_weights main_params_dtype fp32_master_weights": Foreign(
        "model",
        "dtype = float32",
        why="stored parameters are the master weights",
        also=", and `param_dtype = bfloat16` in `fsdp` for compute",
    ),
    "attn_implementation attn_impl attention_implementation "
    "attention_backend flash_attention flash_attn "
    "use_flash_attention use_flash_attention_2": Foreign(
        "model", "attention = <sdpa>", has="`sdpa` and `eager`"
    ),
    "attention_dropout hidden_dropout resid_pdrop embd_pdrop attn_pdrop": Foreign(
        "model", "dropout = false", why="dropout rates come from config.json"
    ),
    "hidden_size d_model n_embd num_layers num_hidden_layers "
    "n_layer n_layers num_attention_heads n_head n_heads "
    "num_key_value_heads intermediate_size vocab_size rope_theta rope_scaling": _absent(
        "the architecture comes from config.json in the directory of `model.hf`: change it there"
    ),
    "trust_remote_code": _absent("planc never runs code of a model repository: remove the line"),
    "gradient_checkpointing gradient_checkpointing_kwargs "
    "activation_checkpointing checkpoint_activations recompute "
    "recompute_activations recompute_granularity remat ac ac_mode selective_ac": _RECOMPUTED,
    "compile torch_compile use_compile "
    "compile_model torch_compile_mode torch_compile_backend dynamo": Foreign(
        "", 'compile { "model.layers.*" -> region }', why="a block names the modules to compile"
    ),
}

_OBSERVED: Mapping[str, Foreign] = {
    "save_steps save_interval save_freq "
    "save_every_n_steps checkpoint_interval checkpoint_every checkpoint_freq "
    "checkpointing_steps ckpt_interval ckpt_every": Foreign(
        "checkpoint", "save_every = <500 steps>", same=True
    ),
    "save_total_limit max_to_keep keep_latest_k keep_last_n": Foreign(
        "checkpoint", "keep_last = <3>", same=True
    ),
    "resume_from resume_from_checkpoint resume_path auto_resume load_checkpoint load_path": Foreign(
        "checkpoint", "resume = latest"
    ),
    "async_save async_checkpoint async_mode use_async": Foreign("checkpoint", "mode = async"),
    "push_to_hub hub_model_id save_pretrained save_safetensors export_hf hf_export convert_to_hf": Foreign(
        "checkpoint", 'export "hf" { when = end }', also=" for a directory that transformers loads"
    ),
    "checkpointing ckpt": Foreign("", "checkpoint { save_every = 500 steps }"),
    "log log_with logger trackers report_to "
    "wandb wandb_project use_wandb enable_wandb run_name project_name": Foreign(
        "", 'logging { tracker "wandb" { project = "tiny-llama" } }'
    ),
    "tensorboard use_tensorboard enable_tensorboard tensorboard_dir": Foreign(
        "", 'logging { tracker "tensorboard" {} }'
    ),
    "mlflow comet neptune clearml aim": _absent("trackers are `wandb` and `tensorboard`, in `logging`"),
    "profiler profiling enable_profiling profile_steps profile_freq nsys": Foreign(
        "", "profile { first_step = 10, last_step = 12 }"
    ),
    "memory_snapshot enable_memory_snapshot": Foreign(
        "", "profile { first_step = 10, last_step = 12, memory = true }"
    ),
    "detect_anomaly nan_guard nan_check check_for_nan_in_loss_and_grad": Foreign(
        "", "guard { nonfinite = stop }"
    ),
    "skip_nan skip_nan_steps": Foreign("", "guard { nonfinite = skip }"),
    "loss_spike_threshold spike_detection": Foreign("", "guard { loss_spike = skip(deviations = 8.0) }"),
}

FOREIGN: Mapping[str, Foreign] = {
    word: meant
    for group in (_DATA, _TRAIN, _OPTIMIZER, _MESH, _SHARDING, _MODEL, _OBSERVED)
    for words, meant in group.items()
    for word in words.split()
}
"""By word, in lower case."""

ARGUMENT_NAME = re.compile(r"(\w+) = <")
"""In a line: the key, or the argument of a call, that takes the word's value."""


def argument_meant(word: str) -> str | None:
    """The argument of a call whose value another tool's word takes."""
    foreign = FOREIGN.get(word.lower())
    found = ARGUMENT_NAME.search(foreign.line) if foreign is not None else None
    return found[1] if found else None
