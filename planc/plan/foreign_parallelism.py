"""Words of other tools about the mesh, sharding, the model and what a run writes."""

from __future__ import annotations

from collections.abc import Mapping

from planc.plan.foreign import NONE, Foreign, absent

_SHARDED = 'fsdp on dp_shard { "model.layers.*" -> unit }'
_SELECTIVE = 'activation_checkpoint { "model.layers.*" -> selective }'
_RECOMPUTED = Foreign("", 'activation_checkpoint { "model.layers.*" -> full }')

MESH: Mapping[str, Foreign] = {
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
    "pp_size pp_degree pipe pipe_parallel_size pipeline_parallel pipeline_parallel_size "
    "pipeline_parallel_degree pipeline_model_parallel_size pipeline_dp_degree": Foreign(
        "mesh", "pp = <2>", same=True
    ),
    "virtual_pipeline_model_parallel_size virtual_pipeline_parallel_size virtual_pipeline num_virtual_stages "
    "interleave num_stages pipeline_parallel_schedule pp_schedule pp_engine": Foreign(
        "",
        "pipeline on pp { schedule = interleaved(stages_per_rank = 2) }",
        why="there are `pp` x `stages_per_rank` stages",
        also="; `gpipe`, `one_f_one_b` and `zero_bubble` have one stage a rank",
    ),
    "ep ep_size ep_degree expert expert_parallel_size expert_parallel_degree "
    "expert_model_parallel_size": Foreign(
        "",
        "expert_parallel on dp_shard { size = <8>, auto }",
        why="experts are on ranks of a factor of `dp_shard`",
        off=("1", *NONE),
    ),
    "aux_loss aux_loss_coef aux_loss_alpha router_aux_loss_coef moe_aux_loss_coeff load_balance_coeff "
    "load_balancing_loss": Foreign(
        "",
        "balance { loss = switch(coefficient = <0.01>) }",
        why="a balance loss keeps experts in use",
        off=NONE,
    ),
    "expert_bias router_bias_update_rate moe_router_bias_update_rate moe_router_enable_expert_bias": Foreign(
        "",
        "balance { loss = bias(update = <0.001>) }",
        why="biases by which routers choose experts move once a step",
        off=NONE,
    ),
    "z_loss router_z_loss router_z_loss_coef moe_z_loss_coeff": Foreign(
        "", "balance { z_loss = <0.001> }", why="a z-loss keeps the logits of routers small", off=NONE
    ),
    "capacity capacity_factor expert_capacity moe_expert_capacity_factor moe_capacity_factor": Foreign(
        "",
        "expert_parallel on dp_shard { size = 8, capacity = <1.25>, auto }",
        why="an expert takes the first tokens of each sequence, so every mesh drops the same ones",
        off=NONE,
    ),
    "moe_token_drop_policy drop_tokens token_dropping": absent(
        "only `expert_parallel { capacity }` drops tokens, in the order of their sequence",
        off=NONE,
    ),
    "world_size nnodes num_nodes n_nodes num_gpus n_gpus gpus devices num_devices num_processes": absent(
        "the world size is the product of the mesh dims: set `pp`, `dp_replicate`, `dp_shard`, `cp` and `tp`"
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

SHARDING: Mapping[str, Foreign] = {
    "zero zero3 zero_3 zero_stage zero_optimization "
    "stage deepspeed deepspeed_config ds_config fsdp fsdp2 "
    "fsdp_config fsdp_version fully_shard full_shard sharding_strategy distributed_optimizer "
    "use_distributed_optimizer": Foreign(
        "", _SHARDED, why="FSDP2 shards parameters, gradients and optimizer state"
    ),
    "auto_wrap_policy fsdp_auto_wrap_policy wrap_policy transformer_layer_cls_to_wrap min_num_params "
    "fsdp_transformer_layer_cls_to_wrap modules_to_wrap": Foreign("fsdp", '"model.layers.*" -> unit'),
    "reshard_after_forward fsdp_reshard_after_forward": Foreign(
        "fsdp", '"model.layers.*" -> unit(reshard_after_forward = <true>)'
    ),
    "hsdp hybrid_shard": Foreign("fsdp", "replicate_on = dp_replicate"),
    "offload": Foreign(
        "fsdp",
        "cpu_offload = true",
        also='; for activations only, `activation_checkpoint { "model.layers.*" -> offload }`',
    ),
    "cpu_offload enable_cpu_offload offload_policy offload_optimizer offload_param optimizer_offload "
    "fsdp_offload_params": Foreign("fsdp", "cpu_offload = true"),
    "grad_reduce_dtype gradient_reduce_dtype grad_dtype accumulate_allreduce_grads_in_fp32": Foreign(
        "fsdp", "reduce_dtype = float32"
    ),
    "bf16 bfloat16 use_bf16 mixed_precision mixed_precision_policy "
    "mp_policy amp autocast precision compute_dtype": Foreign("fsdp", "param_dtype = bfloat16"),
    "fp16 float16 half": Foreign(
        "fsdp", "param_dtype = bfloat16", why="planc does not scale the loss, which float16 needs"
    ),
    "fp8 float8 use_fp8 load_in_8bit quantization quantization_config bitsandbytes": absent(
        "planc does not train in fp8 or on quantized weights", off=NONE
    ),
    "use_orig_params limit_all_gathers sync_module_states": absent("FSDP2 does this itself: remove the line"),
    "forward_prefetch backward_prefetch": Foreign(
        "fsdp", "prefetch = 2", why="FSDP2 gathers one unit ahead by itself"
    ),
    "loss_parallel vocab_parallel": Foreign("tensor_parallel", '"lm_head" -> colwise(output = Shard(-1))'),
    "sequence_parallel enable_sequence_parallel sequence_parallel_enabled": Foreign(
        "tensor_parallel",
        "",
        why=(
            "sequence parallelism takes rules for the embedding, norms, attention, MLP and head: "
            "replace the rules of `tensor_parallel` by those that `planc explain sequence_parallel` lists"
        ),
        off=NONE,
        rule="sequence_parallel",
    ),
    "tp_plan parallelize_plan": Foreign("", "tensor_parallel on tp { auto }"),
}

MODEL: Mapping[str, Foreign] = {
    "model_name model_name_or_path model_id model_path base_model pretrained_model_name_or_path": Foreign(
        "model", 'hf = <"models/tiny-llama">', also=', or `hf = hub("org/name", revision = "<commit>")`'
    ),
    "init init_weights init_from random_init from_scratch": Foreign("model", "weights = random", both=True),
    "pretrained from_pretrained load_weights": Foreign("model", "weights = pretrained", both=True),
    "torch_dtype model_dtype params_dtype": Foreign("model", "dtype = <float32>", same=True),
    "master_dtype master_weights main_params_dtype fp32_master_weights": Foreign(
        "model",
        "dtype = float32",
        why="stored parameters are the master weights",
        also=", and `param_dtype = bfloat16` in `fsdp` for compute",
        both=True,
    ),
    "attn_implementation attn_impl attention_implementation "
    "attention_backend flash_attention flash_attn "
    "use_flash_attention use_flash_attention_2": Foreign(
        "model", "attention = <sdpa>", has="`sdpa` and `eager`"
    ),
    "attention_dropout hidden_dropout resid_pdrop embd_pdrop attn_pdrop": Foreign(
        "model", "dropout = false", why="dropout rates come from config.json", both=True
    ),
    "hidden_size d_model n_embd num_layers num_hidden_layers "
    "n_layer n_layers num_attention_heads n_head n_heads "
    "num_key_value_heads intermediate_size vocab_size rope_theta": absent(
        "the architecture comes from config.json in the directory of `model.hf`: change it there"
    ),
    "rope_scaling rope_parameters rope_type": Foreign("model", "rope = yarn(factor = 4)"),
    "trust_remote_code": absent("planc never runs code of a model repository: remove the line"),
    "gradient_checkpointing gradient_checkpointing_kwargs "
    "activation_checkpointing checkpoint_activations recompute remat ac": _RECOMPUTED,
    # Megatron's flag means --recompute-granularity selective.
    "recompute_activations selective_ac": Foreign("", _SELECTIVE),
    "recompute_granularity ac_mode": Foreign(
        "",
        _SELECTIVE,
        also="; `full` in place of `selective` recomputes everything",
    ),
    "compile torch_compile use_compile "
    "compile_model torch_compile_mode torch_compile_backend dynamo": Foreign(
        "", 'compile { "model.layers.*" -> region }', why="a block names the modules to compile"
    ),
}

OBSERVED: Mapping[str, Foreign] = {
    "save_steps save_interval save_freq "
    "save_every_n_steps checkpoint_interval checkpoint_every checkpoint_freq "
    "checkpointing_steps ckpt_interval ckpt_every": Foreign(
        "checkpoint", "save_every = <500 steps>", same=True
    ),
    "save_total_limit max_to_keep keep_latest_k keep_last_n": Foreign(
        "checkpoint", "keep_last = <3>", same=True
    ),
    "auto_resume": Foreign("checkpoint", "resume = latest"),
    "resume_from resume_from_checkpoint resume_path load_checkpoint load_path": Foreign(
        "checkpoint", 'resume = "runs/first"', also=" for another run, or `resume = latest` for this one"
    ),
    "async_save async_checkpoint async_mode use_async": Foreign("checkpoint", "mode = async"),
    "save_pretrained save_safetensors export_hf hf_export convert_to_hf": Foreign(
        "checkpoint", 'export "hf" { when = end }', also=" for a directory that transformers loads"
    ),
    "push_to_hub hub_model_id hub_private_repo hub_revision": Foreign(
        "checkpoint", 'export "hf" { push = <hub("org/name")> }', also=" for a repository of the Hub"
    ),
    "checkpointing ckpt": Foreign("", "checkpoint { save_every = 500 steps }"),
    "log log_with logger trackers report_to "
    "wandb wandb_project use_wandb enable_wandb run_name project_name": Foreign(
        "", 'logging { tracker "wandb" { project = "tiny-llama" } }'
    ),
    "tensorboard use_tensorboard enable_tensorboard tensorboard_dir": Foreign(
        "", 'logging { tracker "tensorboard" {} }'
    ),
    "mlflow comet neptune clearml aim": absent(
        "trackers are `wandb` and `tensorboard`, in `logging`", off=NONE
    ),
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
