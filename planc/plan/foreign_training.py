"""Words of other tools about data, training and the optimizer."""

from __future__ import annotations

from collections.abc import Mapping

from planc.plan.foreign import NONE, Foreign, absent

_FORMATS = "; `jsonl`, `chat`, `hf_dataset` and `hf_hub` read other formats"
_ARGUMENT = "`{word}` is an argument of the optimizer"
_ADAMW = "kind = adamw(lr = 3e-4"
_GROUPED = '"**.*norm*" -> group(weight_decay = 0.0)'
_FROZEN = 'freeze { "model.embed_tokens" -> frozen }'
_EVALUATED = 'eval "held_out" { source = text("held_out/*.txt"), every = 100 steps }'

DATA: Mapping[str, Foreign] = {
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
        "data", "shuffle_seed = 1", why="the sample order is always shuffled", both=True
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
    "add_bos add_bos_token prepend_bos bos_token": Foreign(
        "data", 'tokenizer = file("path/to/tokenizer", begin_of_document = auto)'
    ),
    "eval_dataset eval_data eval_file eval_steps "
    "eval_interval eval_every eval_freq eval_iters eval_strategy "
    "evaluation evaluation_strategy val_data "
    "val_check_interval validation validation_data validation_file "
    "per_device_eval_batch_size": Foreign("data", _EVALUATED),
    "pack packed pack_sequences sample_packing packing_strategy concat_documents group_texts": Foreign(
        "data",
        "packing = attend",
        also="; `isolate` keeps documents from attending to each other, and `whole` also from being split",
    ),
    "doc_mask document_mask block_diagonal "
    "intra_doc_masking reset_attention_mask reset_position_ids": Foreign("data", "packing = isolate"),
    "pad padding pad_to_max_length truncation": Foreign(
        "data", "packing = none", also=" for one document per sequence, cut or padded", both=True
    ),
    "mask_prompt train_on_input train_on_inputs "
    "train_on_prompt assistant_only_loss completion_only_loss": Foreign(
        "data",
        'source = chat("data/*.jsonl", train_on = answers)',
        also="; `all` trains on every token",
        both=True,
    ),
    "train_on_eos train_on_eot train_on_eos_token": Foreign(
        "data",
        'source = chat("data/*.jsonl", train_on_end_of_turn = true)',
        also="; `auto` is as the template marks it",
        both=True,
    ),
}

TRAIN: Mapping[str, Foreign] = {
    "max_steps num_steps total_steps train_steps "
    "training_steps num_train_steps num_training_steps train_iters "
    "max_iters max_iterations iterations": Foreign("train", "steps = <1000>", same=True),
    "epoch num_epochs n_epochs num_train_epochs max_epochs train_epochs": Foreign(
        "train", "epochs = <3>", same=True
    ),
    "gradient_accumulation_steps gradient_accumulation grad_accum grad_accum_steps grad_acc_steps "
    "accumulate_grad_batches accumulation_steps accumulate_steps "
    "num_micro_batches num_microbatches n_microbatches micro_batches microbatches": Foreign(
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
    "use_liger_kernel liger liger_kernel fused_linear_cross_entropy cut_cross_entropy chunked_loss "
    "chunked_cross_entropy loss_chunk_size num_output_chunks num_loss_chunks": Foreign(
        "train", "loss_chunks = <auto>", why="the loss is computed for a part of the tokens at a time"
    ),
    "logging_steps log_steps log_interval logging_interval log_freq log_every_n_steps": Foreign(
        "train", "log_every = <10 steps>", same=True
    ),
    "training trainer training_args training_arguments": Foreign("", "train { steps = 1000 }"),
    "output_dir run_dir save_dir save_path out_dir "
    "log_dir logging_dir ckpt_dir checkpoint_dir dump_folder "
    "work_dir exp_dir default_root_dir": absent(
        "the run directory is not part of a plan: pass `--run-dir DIR` to the run"
    ),
    "label_smoothing label_smoothing_factor": Foreign(
        "train", "loss = cross_entropy(label_smoothing = <0.1>)", same=True
    ),
    "dpo dpo_beta pref_beta rl_beta": Foreign("train", "loss = dpo(beta = <0.1>)", same=True),
    "distillation distill kd knowledge_distillation": Foreign(
        "train",
        'loss = distillation(teacher = "models/teacher", logits = "teacher-logits")',
        also="; `planc teacher PLAN` stores what the teacher makes of the data",
    ),
    "loss loss_fn loss_type teacher grpo rlhf reward_model": absent(
        "planc trains on next-token cross-entropy; another loss for each token is code of the plan's own: "
        "see `planc explain extension`",
        off=NONE,
    ),
    "ema use_ema model_ema ema_beta": Foreign("train", "ema_decay = 0.999"),
    "swa": absent("planc averages weights exponentially: `ema_decay` in `train`", off=NONE),
    "early_stopping early_stopping_patience early_stopping_threshold": Foreign(
        "data",
        'eval "held_out" { share = 1 %, every = 100 steps, patience = 3 }',
        why="an evaluation ends the run",
        off=NONE,
    ),
    "load_best_model_at_end metric_for_best_model save_top_k keep_best": Foreign(
        "data",
        'eval "held_out" { share = 1 %, every = 100 steps, keep_best = 1 }',
        why="an evaluation's loss chooses checkpoints",
        also="; `planc checkpoint export --best` writes the best one",
        off=NONE,
    ),
    "hparams hyperparameters params parameters vars variables": absent(
        "declare a parameter at the top level: `param lr: float = 3e-4`"
    ),
}

OPTIMIZER: Mapping[str, Foreign] = {
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
        "optimizer",
        f"{_ADAMW}, implementation = {{word}})",
        why="`implementation` chooses the kernel",
        both=True,
    ),
    "optim optimizer_type optimizer_name": Foreign("optimizer", f"{_ADAMW})"),
    "max_grad_norm gradient_clipping gradient_clip_val gradient_clip "
    "grad_clip grad_clip_norm clip_grad clip_norm "
    "max_norm": Foreign("optimizer", "clip_grad_norm = <1.0>", same=True),
    "warmup warmup_steps num_warmup_steps lr_warmup_steps lr_warmup_iters warmup_iters": Foreign(
        "optimizer", "schedule = cosine(warmup = <100 steps>)", why="`warmup` is an argument of the schedule"
    ),
    "warmup_ratio warmup_fraction warmup_epochs": Foreign(
        "optimizer",
        "schedule = cosine(warmup = 3 %)",
        why="`warmup` is in steps, or a share of them",
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
    "frozen freeze_layers freeze_embeddings": Foreign("", _FROZEN),
    "requires_grad trainable": Foreign("", _FROZEN, both=True),
    "lora use_lora lora_r lora_rank lora_alpha lora_config peft peft_config adapters": Foreign(
        "adapter",
        "kind = lora(rank = 16, alpha = 32)",
        also='; `"model.layers.*.self_attn.{q,v}_proj" -> adapted` names the layers',
        off=NONE,
        both=True,
    ),
    "qlora load_in_4bit nf4": Foreign(
        "adapter",
        "kind = lora(rank = 16, alpha = 32)",
        also="; `base = nf4` stores frozen linear layers in 4 bits",
        off=NONE,
    ),
    "dora use_dora": Foreign(
        "adapter",
        "kind = lora(rank = 16, alpha = 32, dora = true)",
        also="; it is an argument of `lora`",
        off=NONE,
    ),
}
