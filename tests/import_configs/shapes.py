"""Shapes of configs that people use, each with what it trains by a reading of its own."""

from __future__ import annotations

import json
from textwrap import dedent

from tests.import_configs.reading import ATTENTION, LAYERS, MATRICES, MLP, NORMS, Case, Rate, Training

EVERY = MATRICES | NORMS
LINEAR = frozenset(f"model.layers.{layer}.{part}" for layer in range(LAYERS) for part in (*ATTENTION, *MLP))
QUERIES_VALUES = frozenset(
    f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(LAYERS) for name in "qv"
)
FIRST_LAYERS = frozenset(
    name for name in EVERY if not name.startswith(("model.layers.2.", "model.layers.3."))
)

TWO = {"WORLD_SIZE": 2}
CHATS = {**TWO, "DATA": "data/chats.jsonl", "CHAT": True}
TEXTS = {**TWO, "DATA": "data/docs.jsonl"}


def text(value: str) -> str:
    return dedent(value).lstrip()


ACCELERATE_FSDP = text("""
    compute_environment: LOCAL_MACHINE
    distributed_type: FSDP
    fsdp_config:
      fsdp_version: 2
      fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
      fsdp_reshard_after_forward: true
      fsdp_state_dict_type: SHARDED_STATE_DICT
    mixed_precision: bf16
    num_machines: 1
    num_processes: 4
""")
ACCELERATE_ZERO = text("""
    distributed_type: DEEPSPEED
    deepspeed_config:
      deepspeed_config_file: ds.json
      zero3_init_flag: true
    num_machines: 1
    num_processes: 2
""")
ZERO3_AUTO = json.dumps(
    {
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 3, "overlap_comm": True, "reduce_bucket_size": "auto"},
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
    },
    indent=1,
)

TRL = (
    Case(
        "TRL, documents on replicas",
        {
            "sft.yaml": text("""
            model_name_or_path: org/base
            dataset_name: data/docs.jsonl
            per_device_train_batch_size: 2
            gradient_accumulation_steps: 4
            max_length: 512
            max_steps: 120
            learning_rate: 1.5e-5
            weight_decay: 0.02
            warmup_steps: 12
        """)
        },
        Training(Rate(1.5e-5, 120, 12, "linear"), decay=0.02, tokens=2 * 2 * 4 * 512),
        {**TWO, "CHAT": False},
    ),
    Case(
        "TRL, answers only, accelerate's FSDP2",
        {
            "sft.yaml": text("""
            model_name_or_path: org/base
            dataset_name: data/chats.jsonl
            assistant_only_loss: true
            packing: true
            max_length: 1024
            per_device_train_batch_size: 1
            max_steps: 200
            lr_scheduler_type: cosine_with_min_lr
            lr_scheduler_kwargs:
              min_lr_rate: 0.1
            warmup_ratio: 0.05
            max_grad_norm: 0.3
        """),
            "fsdp.yaml": ACCELERATE_FSDP,
        },
        Training(
            Rate(2e-5, 200, 10, "cosine", 0.1), clip=0.3, data="chat:answers", shards=4, tokens=4 * 1024
        ),
    ),
    Case(
        "TRL, LoRA by peft's defaults",
        {
            "lora.yaml": text("""
            model_name_or_path: org/base
            dataset_name: data/chats.jsonl
            use_peft: true
            use_dora: true
            lora_r: 32
            lora_alpha: 16
            learning_rate: 2.0e-4
            max_length: 256
            per_device_train_batch_size: 1
            lr_scheduler_type: constant
            max_steps: 40
        """)
        },
        Training(
            Rate(2e-4, 40),
            data="chat:all",
            adapters=QUERIES_VALUES,
            lora=(32, 16.0, 0.05, False),
            dora=True,
            tokens=2 * 256,
        ),
        {**TWO, "CHAT": True},
    ),
    Case(
        "TRL, QLoRA in FP4",
        {
            "qlora.yaml": "model_name_or_path: a/b\ndataset_name: c\nuse_peft: true\nload_in_4bit: true\n"
            "bnb_4bit_quant_type: fp4\n"
        },
        frozenset({"bnb_4bit_quant_type"}),
        {**CHATS, "STEPS": 5},
    ),
)

PAIRS_BODY = text("""
    base_model: org/base
    datasets:
      - path: data/pairs.jsonl
        type: chat_template.default
    sequence_len: 64
    micro_batch_size: 2
    gradient_accumulation_steps: 3
    adapter: lora
    lora_r: 4
    lora_alpha: 8
    lora_target_modules: [q_proj, v_proj]
    max_steps: 20
    learning_rate: 1.0e-5
    optimizer: adamw_torch
    warmup_steps: 0
    """)
AXOLOTL = (
    Case(
        "Axolotl, conversations by epochs",
        {
            "full.yaml": text("""
            base_model: org/base
            datasets:
              - path: data/chats.jsonl
                type: chat_template
                roles_to_train: [assistant]
                train_on_eos: turn
            sequence_len: 512
            sample_packing: true
            micro_batch_size: 2
            gradient_accumulation_steps: 2
            num_epochs: 3
            optimizer: adamw_torch_fused
            lr_scheduler: cosine
            learning_rate: 2.0e-5
            warmup_ratio: 0.1
            weight_decay: 0.01
            bf16: true
        """)
        },
        Training(None, "3", 2e-5, 0.01, data="chat:answers", tokens=2 * 2 * 2 * 512),
        TWO,
    ),
    Case(
        "Axolotl, LoRA on every linear layer",
        {
            "lora.yaml": text("""
            base_model: org/base
            adapter: lora
            lora_r: 16
            lora_alpha: 32
            lora_dropout: 0.05
            lora_target_linear: true
            peft_use_rslora: true
            datasets:
              - path: data/docs.jsonl
                type: completion
            sequence_len: 256
            micro_batch_size: 4
            max_steps: 300
            learning_rate: 1.0e-4
            lr_scheduler: linear
            warmup_steps: 10
            weight_decay: 0.1
            bf16: auto
            max_grad_norm: 0
        """)
        },
        Training(
            Rate(1e-4, 300, 10, "linear"),
            decay=0.1,
            clip=None,
            adapters=LINEAR,
            lora=(16, 32.0, 0.05, True),
            tokens=2 * 4 * 256,
        ),
        TWO,
    ),
    Case(
        "Axolotl, 8-bit AdamW and a lowest rate",
        {
            "eight.yaml": text("""
            base_model: org/base
            datasets:
              - path: data/docs.jsonl
                type: completion
            sequence_len: 128
            micro_batch_size: 1
            max_steps: 1000
            optimizer: adamw_bnb_8bit
            lr_scheduler: cosine
            cosine_min_lr_ratio: 0.2
            learning_rate: 5.0e-6
            warmup_steps: 50
            bf16: true
        """)
        },
        Training(Rate(5e-6, 1000, 50, "cosine", 0.2), optimizer="AdamW8bit", tokens=2 * 128),
        TWO,
    ),
    Case(
        "Axolotl with DeepSpeed's ZeRO-3",
        {
            "zero.yaml": text("""
            base_model: org/base
            datasets:
              - path: data/docs.jsonl
                type: completion
            deepspeed: configs/zero3.json
            sequence_len: 128
            micro_batch_size: 1
            gradient_accumulation_steps: 2
            max_steps: 60
            learning_rate: 1.0e-5
            warmup_steps: 6
            bf16: true
            weight_decay: 0.05
        """),
            "zero3.json": ZERO3_AUTO,
        },
        Training(Rate(1e-5, 60, 6, "cosine"), decay=0.05, shards=2, tokens=2 * 2 * 128),
        TWO,
    ),
    Case(
        "Axolotl, prompts of Alpaca",
        {"a.yaml": "base_model: a/b\ndatasets:\n  - path: data/a.json\n    type: alpaca\nsequence_len: 64\n"},
        frozenset({"datasets.0.type"}),
    ),
    Case(
        "Axolotl, KTO",
        {"kto.yaml": "base_model: a/b\nrl: kto\nsequence_len: 64\nmicro_batch_size: 1\nadapter: lora\n"},
        frozenset({"rl"}),
    ),
    Case(
        "Axolotl, DPO",
        {"dpo.yaml": PAIRS_BODY + "rl: dpo\ndpo_label_smoothing: 0.1\n"},
        Training(
            Rate(1e-5, 20, 0, "cosine"),
            compute="float32",
            data="pairs, beta 0.1, smoothing 0.1",
            adapters=QUERIES_VALUES,
            lora=(4, 8.0, 0.0, False),
            tokens=2 * 2 * 2 * 3 * 64,
        ),
        TWO,
    ),
    Case(
        "Axolotl, DPO with a weight of its own",
        {"dpo.yaml": PAIRS_BODY + "rl: dpo\ndpo_use_weighting: true\n"},
        frozenset({"dpo_use_weighting"}),
        TWO,
    ),
    Case(
        "Axolotl, DPO on packed sequences",
        {"dpo.yaml": PAIRS_BODY + "rl: dpo\nsample_packing: true\n"},
        frozenset({"sample_packing"}),
        TWO,
    ),
    Case(
        "Axolotl, some layers by regular expressions",
        {"part.yaml": "base_model: a/b\nsequence_len: 64\nunfrozen_parameters:\n  - ^lm_head.weight$\n"},
        frozenset({"unfrozen_parameters"}),
    ),
    Case(
        "Axolotl, ReLoRA",
        {"re.yaml": "base_model: a/b\nsequence_len: 64\nadapter: lora\nrelora: true\nlora_r: 8\n"},
        frozenset({"relora"}),
    ),
)

ARGUMENTS = (
    Case(
        "arguments, accelerate and DeepSpeed",
        {
            "args.json": json.dumps(
                {
                    "per_device_train_batch_size": 2,
                    "gradient_accumulation_steps": 8,
                    "max_steps": 500,
                    "learning_rate": 3e-5,
                    "warmup_steps": 20,
                    "lr_scheduler_type": "cosine",
                    "weight_decay": 0.1,
                    "adam_beta2": 0.95,
                    "bf16": True,
                    "max_grad_norm": 0.5,
                    "deepspeed": "ds.json",
                }
            ),
            "accelerate.yaml": ACCELERATE_ZERO,
            "ds.json": ZERO3_AUTO,
        },
        Training(
            Rate(3e-5, 500, 20, "cosine"),
            decay=0.1,
            clip=0.5,
            shards=2,
            betas=(0.9, 0.95),
            tokens=2 * 2 * 8 * 256,
        ),
        {"DATA": "data/docs.jsonl", "SEQUENCE_LENGTH": 256, "PRETRAINED": True},
    ),
    Case(
        "arguments, constant after warm-up, no clipping",
        {
            "args.json": json.dumps(
                {
                    "per_device_train_batch_size": 1,
                    "max_steps": 50,
                    "lr_scheduler_type": "constant_with_warmup",
                    "warmup_steps": 5,
                    "max_grad_norm": 0,
                    "learning_rate": 1e-3,
                }
            )
        },
        Training(Rate(1e-3, 50, 5), clip=None, compute="float32", weights="random", tokens=2 * 64),
        {**TEXTS, "SEQUENCE_LENGTH": 64, "PRETRAINED": False},
    ),
    Case(
        "arguments, all by default",
        {"args.json": json.dumps({"output_dir": "out", "report_to": "none"})},
        Training(None, "3", 5e-5, compute="float32", tokens=2 * 8 * 64),
        {**TEXTS, "SEQUENCE_LENGTH": 64, "PRETRAINED": True},
    ),
    Case(
        "arguments, fp16",
        {"args.json": json.dumps({"per_device_train_batch_size": 1, "max_steps": 5, "fp16": True})},
        frozenset({"fp16"}),
    ),
    Case(
        "arguments, noise",
        {"args.json": json.dumps({"max_steps": 5, "output_dir": "o", "neftune_noise_alpha": 5})},
        frozenset({"neftune_noise_alpha"}),
    ),
    Case(
        "arguments, Adafactor",
        {"args.json": json.dumps({"max_steps": 5, "output_dir": "o", "optim": "adafactor"})},
        frozenset({"optim"}),
    ),
    Case(
        "a DeepSpeed JSON that the arguments only name",
        {"args.json": json.dumps({"max_steps": 5, "output_dir": "o", "deepspeed": "ds.json"})},
        frozenset({"deepspeed"}),
    ),
)

_LINEAR_WARMUP = {
    "warmup_num_steps": 10,
    "warmup_type": "linear",
    "total_num_steps": 100,
    "warmup_max_lr": 2e-4,
}
DEEPSPEED = (
    Case(
        "DeepSpeed, ZeRO-3 with its own schedule",
        {
            "ds.json": json.dumps(
                {
                    "train_micro_batch_size_per_gpu": 2,
                    "gradient_accumulation_steps": 2,
                    "zero_optimization": {"stage": 3},
                    "bf16": {"enabled": True},
                    "gradient_clipping": 1.0,
                    "optimizer": {"type": "AdamW", "params": {"lr": 2e-4, "betas": [0.9, 0.95]}},
                    "scheduler": {"type": "WarmupDecayLR", "params": _LINEAR_WARMUP},
                }
            )
        },
        Training(
            Rate(2e-4, 100, 10, "linear"),
            weights="random",
            shards=2,
            betas=(0.9, 0.95),
            tokens=2 * 2 * 2 * 128,
        ),
        {**TEXTS, "SEQUENCE_LENGTH": 128, "PRETRAINED": False},
    ),
    Case(
        "DeepSpeed, no clipping, decay of everything",
        {
            "ds.json": json.dumps(
                {
                    "train_batch_size": 8,
                    "train_micro_batch_size_per_gpu": 2,
                    "zero_optimization": {"stage": 2},
                    "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "weight_decay": 0.2}},
                }
            )
        },
        Training(
            Rate(1e-4, 30),
            decay=0.2,
            decayed=EVERY,
            clip=None,
            compute="float32",
            shards=2,
            tokens=8 * 64,
        ),
        {**TEXTS, "SEQUENCE_LENGTH": 64, "STEPS": 30, "PRETRAINED": True},
    ),
    Case(
        "DeepSpeed, warm-up by its default, the logarithm",
        {
            "ds.json": json.dumps(
                {
                    "train_micro_batch_size_per_gpu": 1,
                    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
                    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
                }
            )
        },
        frozenset({"scheduler.params.warmup_type"}),
        {**TEXTS, "SEQUENCE_LENGTH": 64, "STEPS": 30},
    ),
    Case(
        "DeepSpeed, one cycle",
        {
            "ds.json": json.dumps(
                {"train_micro_batch_size_per_gpu": 1, "scheduler": {"type": "OneCycle", "params": {}}}
            )
        },
        frozenset({"scheduler.type"}),
        {**TEXTS, "SEQUENCE_LENGTH": 64, "STEPS": 30, "LR": 1e-4},
    ),
)

TITAN = (
    Case(
        "torchtitan, a decay of the last fifth",
        {
            "titan.toml": text("""
            [training]
            local_batch_size = 2
            seq_len = 256
            steps = 200
            max_norm = 0.8
            dataset_path = "data/docs.jsonl"
            [optimizer]
            name = "AdamW"
            lr = 6e-4
            [lr_scheduler]
            warmup_steps = 20
            decay_ratio = 0.2
            decay_type = "linear"
            min_lr_factor = 0.1
            [parallelism]
            data_parallel_shard_degree = -1
            [activation_checkpoint]
            mode = "none"
        """)
        },
        Training(
            Rate(6e-4, 200, 20, "linear", 0.1, 40, starts_at=1),
            decay=0.1,
            decayed=EVERY,
            clip=0.8,
            weights="random",
            shards=2,
            betas=(0.9, 0.95),
            tokens=2 * 2 * 256,
        ),
        TWO,
    ),
    Case(
        "torchtitan, published weights, a cosine",
        {
            "titan.toml": text("""
            [training]
            local_batch_size = 1
            global_batch_size = 8
            seq_len = 128
            steps = 90
            dataset_path = "data/docs.jsonl"
            mixed_precision_param = "float32"
            [checkpoint]
            initial_load_in_hf = true
            [optimizer]
            lr = 1e-5
            weight_decay = 0.0
            [lr_scheduler]
            warmup_steps = 9
            decay_type = "cosine"
            [parallelism]
            data_parallel_replicate_degree = 2
            data_parallel_shard_degree = 1
        """)
        },
        Training(
            Rate(1e-5, 90, 9, "cosine", starts_at=1),
            compute="float32",
            betas=(0.9, 0.95),
            tokens=8 * 128,
        ),
        TWO,
    ),
    Case(
        "torchtitan, float8",
        {"titan.toml": '[training]\nseq_len = 64\nsteps = 5\n[model]\nflavor = "8B"\nconverters = ["fp8"]\n'},
        frozenset({"model.converters"}),
        TEXTS,
    ),
)

AUTOMODEL_BODY = text("""
    recipe: TrainFinetuneRecipeForNextTokenPrediction
    step_scheduler:
      global_batch_size: 8
      local_batch_size: 2
      max_steps: 40
    model:
      _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
      pretrained_model_name_or_path: org/base
    distributed:
      strategy: fsdp2
    dataset:
      _target_: nemo_automodel.components.datasets.llm.ChatDataset
      path_or_dataset_id: data/chats.jsonl
      seq_length: 128
    optimizer:
      _target_: torch.optim.AdamW
      lr: 1.0e-5
""")
AUTOMODEL = (
    Case(
        "Automodel, conversations",
        {"chat.yaml": AUTOMODEL_BODY},
        Training(
            Rate(1e-5, 40),
            decay=0.01,
            decayed=EVERY,
            data="chat:answers",
            shards=2,
            tokens=8 * 128,
        ),
        TWO,
    ),
    Case(
        "Automodel, LoRA",
        {
            "peft.yaml": AUTOMODEL_BODY
            + text("""
            peft:
              _target_: nemo_automodel.components._peft.lora.PeftConfig
              match_all_linear: true
              exclude_modules: []
              dim: 16
              alpha: 64
            lr_scheduler:
              lr_decay_style: cosine
              lr_warmup_steps: 4
              min_lr: 1.0e-6
        """)
        },
        Training(
            Rate(1e-5, 40, 4, "cosine", 0.1),
            decay=0.01,
            data="chat:answers",
            adapters=LINEAR,
            lora=(16, 64.0, 0.0, False),
            shards=2,
            tokens=8 * 128,
        ),
        TWO,
    ),
    Case(
        "Automodel, adapters whose dropout comes last",
        {
            "peft.yaml": AUTOMODEL_BODY
            + "peft:\n  _target_: nemo_automodel.components._peft.lora.PeftConfig\n  dim: 8\n  dropout: 0.1\n"
        },
        frozenset({"peft.dropout"}),
        TWO,
    ),
)

FACTORY_BODY = text("""
    model_name_or_path: org/base
    stage: sft
    do_train: true
    dataset: own_chats
    cutoff_len: 256
    overwrite_cache: true
    preprocessing_num_workers: 4
    output_dir: saves
    logging_steps: 10
    plot_loss: true
    per_device_train_batch_size: 1
    gradient_accumulation_steps: 8
    learning_rate: 1.0e-4
    max_steps: 150
    lr_scheduler_type: cosine
    warmup_ratio: 0.1
    bf16: true
""")
FACTORY = (
    Case(
        "LLaMA-Factory, LoRA",
        {"lora.yaml": FACTORY_BODY + "finetuning_type: lora\nlora_rank: 4\nlora_target: q_proj,v_proj\n"},
        Training(
            Rate(1e-4, 150, 15, "cosine"),
            data="chat:answers",
            adapters=QUERIES_VALUES,
            lora=(4, 8.0, 0.0, False),
            tokens=2 * 8 * 256,
        ),
        {**TWO, "DATA": "data/chats.jsonl"},
    ),
    Case(
        "LLaMA-Factory, nothing said of the method",
        {"lora.yaml": FACTORY_BODY},
        Training(
            Rate(1e-4, 150, 15, "cosine"),
            data="chat:answers",
            adapters=LINEAR,
            lora=(8, 16.0, 0.0, False),
            tokens=2 * 8 * 256,
        ),
        {**TWO, "DATA": "data/chats.jsonl"},
    ),
    Case(
        "LLaMA-Factory, documents, full, ZeRO-3",
        {
            "pt.yaml": FACTORY_BODY.replace("stage: sft", "stage: pt")
            + "finetuning_type: full\ndeepspeed: ds_z3_config.json\n",
            "ds_z3_config.json": ZERO3_AUTO,
        },
        Training(Rate(1e-4, 150, 15, "cosine"), shards=2, tokens=2 * 8 * 256),
        TEXTS,
    ),
    Case(
        "LLaMA-Factory, the last two layers",
        {"freeze.yaml": FACTORY_BODY + "finetuning_type: freeze\nweight_decay: 0.1\n"},
        Training(
            Rate(1e-4, 150, 15, "cosine"),
            decay=0.1,
            data="chat:answers",
            frozen=FIRST_LAYERS,
            tokens=2 * 8 * 256,
        ),
        {**TWO, "DATA": "data/chats.jsonl"},
    ),
    Case(
        "LLaMA-Factory, a template of its own",
        {"own.yaml": FACTORY_BODY + "finetuning_type: full\ntemplate: llama3\n"},
        frozenset({"template"}),
        {**TWO, "DATA": "data/chats.jsonl"},
    ),
    Case(
        "LLaMA-Factory, DPO",
        {"dpo.yaml": FACTORY_BODY.replace("stage: sft", "stage: dpo") + "pref_beta: 0.2\n"},
        Training(
            Rate(1e-4, 150, 15, "cosine"),
            data="pairs, beta 0.2, smoothing 0.0",
            adapters=LINEAR,
            lora=(8, 16.0, 0.0, False),
            tokens=2 * 2 * 8 * 256,
        ),
        {**TWO, "DATA": "data/chats.jsonl"},
    ),
    Case(
        "LLaMA-Factory, another loss of preferences",
        {"orpo.yaml": FACTORY_BODY.replace("stage: sft", "stage: dpo") + "pref_loss: orpo\n"},
        frozenset({"pref_loss"}),
        {**TWO, "DATA": "data/chats.jsonl"},
    ),
    Case(
        "LLaMA-Factory, another reference",
        {"dpo.yaml": FACTORY_BODY.replace("stage: sft", "stage: dpo") + "ref_model: org/other\n"},
        frozenset({"ref_model"}),
        {**TWO, "DATA": "data/chats.jsonl"},
    ),
    Case(
        "LLaMA-Factory, 4 bits and GaLore",
        {"q.yaml": FACTORY_BODY + "quantization_bit: 4\nuse_galore: true\n"},
        frozenset({"use_galore"}),
        {**TWO, "DATA": "data/chats.jsonl"},
    ),
)

SWIFT_SCRIPT = text("""
    # one node
    NPROC_PER_NODE=2 CUDA_VISIBLE_DEVICES=0,1 \\
    swift sft \\
        --model org/base \\
        --train_type full \\
        --dataset data/chats.jsonl \\
        --torch_dtype float32 \\
        --max_length 512 \\
        --max_steps 80 \\
        --per_device_train_batch_size 1 \\
        --gradient_accumulation_steps 4 \\
        --warmup_ratio 0.05 \\
        --freeze_parameters model.embed_tokens lm_head \\
        --deepspeed zero2
""")
SWIFT = (
    Case(
        "ms-swift, LoRA",
        {
            "sft.yaml": text("""
            model: org/base
            tuner_type: lora
            lora_rank: 16
            lora_alpha: 32
            target_modules: all-linear
            dataset:
              - data/chats.jsonl
            max_length: 256
            max_steps: 64
            per_device_train_batch_size: 2
            learning_rate: 1e-4
        """)
        },
        Training(
            Rate(1e-4, 64, 0, "cosine"),
            decay=0.1,
            data="chat:answers",
            adapters=LINEAR,
            lora=(16, 32.0, 0.05, False),
            betas=(0.9, 0.95),
            tokens=2 * 2 * 4 * 256,
        ),
        {**TWO, "DATA": "data/chats.jsonl"},
    ),
    Case(
        "ms-swift, a command, all but the embeddings",
        {"sft.sh": SWIFT_SCRIPT},
        Training(
            Rate(1e-5, 80, 4, "cosine"),
            decay=0.1,
            data="chat:answers",
            frozen=frozenset({"model.embed_tokens.weight", "lm_head.weight"}),
            betas=(0.9, 0.95),
            shards=2,
            tokens=2 * 4 * 512,
        ),
        TWO,
    ),
    Case(
        "ms-swift, preferences",
        {"rlhf.sh": "swift rlhf --rlhf_type dpo --model a/b --train_type lora --dataset data/p.jsonl\n"},
        frozenset({"rlhf_type"}),
        TWO,
    ),
)

MEGATRON_SCRIPT = text("""
    #!/bin/bash
    GPUS_PER_NODE=4
    NODES=1
    DATA=$1
    LAUNCH=(--nproc_per_node $GPUS_PER_NODE --nnodes $NODES)
    MODEL_ARGS=(
        --num-layers 4
        --hidden-size 128
        --num-attention-heads 8
        --seq-length 256
        --max-position-embeddings 2048
        --hidden-dropout 0.0
        --attention-dropout 0.0
        --swiglu # and RMSNorm
        --normalization RMSNorm
    )
    TRAINING_ARGS=(
        --micro-batch-size 2
        --global-batch-size 16
        --train-iters 1000
        --lr 3.0e-4
        --min-lr 3.0e-5
        --lr-decay-style cosine
        --lr-warmup-fraction 0.01
        --lr-decay-iters 1000
        --weight-decay 0.1
        --adam-beta2 0.95
        --clip-grad 1.0
        --bf16
        --tensor-model-parallel-size 2
        --sequence-parallel
        --use-distributed-optimizer
    )
    torchrun ${LAUNCH[@]} pretrain_gpt.py ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} \\
        --data-path $DATA --save out --load out --save-interval 100
""")
MEGATRON_OPTIONS = {"WORLD_SIZE": 4, "DATA": "data/docs.jsonl"}
MEGATRON = (
    Case(
        "Megatron-LM, tensor parallelism and ZeRO-1",
        {"gpt.sh": MEGATRON_SCRIPT},
        Training(
            Rate(3e-4, 1000, 10, "cosine", 0.1),
            decay=0.1,
            weights="random",
            shards=2,
            betas=(0.9, 0.95),
            tokens=16 * 256,
        ),
        MEGATRON_OPTIONS,
    ),
    Case(
        "Megatron-LM, dropout by default",
        {"gpt.sh": MEGATRON_SCRIPT.replace("    --hidden-dropout 0.0\n", "")},
        frozenset({"hidden-dropout"}),
        MEGATRON_OPTIONS,
    ),
    Case(
        "Megatron-LM, another size of model",
        {"gpt.sh": MEGATRON_SCRIPT.replace("--num-layers 4", "--num-layers 12")},
        frozenset({"num-layers"}),
        MEGATRON_OPTIONS,
    ),
    Case(
        "Megatron-LM, WSD by its default, exponential",
        {"gpt.sh": MEGATRON_SCRIPT.replace("cosine", "WSD --lr-wsd-decay-iters 100")},
        frozenset({"lr-wsd-decay-style"}),
        MEGATRON_OPTIONS,
    ),
    Case(
        "Megatron-LM, fp16 and a growing batch",
        {"gpt.sh": MEGATRON_SCRIPT.replace("--bf16", "--fp16 --rampup-batch-size 4 4 100")},
        frozenset({"fp16", "rampup-batch-size"}),
        MEGATRON_OPTIONS,
    ),
)

SHAPES = (*TRL, *AXOLOTL, *ARGUMENTS, *DEEPSPEED, *TITAN, *AUTOMODEL, *FACTORY, *SWIFT, *MEGATRON)
