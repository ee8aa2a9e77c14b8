# one node
NPROC_PER_NODE=2 CUDA_VISIBLE_DEVICES=0,1 \
swift sft \
    --model org/base \
    --train_type full \
    --dataset data/chats.jsonl \
    --torch_dtype float32 \
    --max_length 512 \
    --max_steps 80 \
    --per_device_train_batch_size 1 \
    --gradient_accumulation_steps 4 \
    --warmup_ratio 0.05 \
    --freeze_parameters model.embed_tokens lm_head \
    --deepspeed zero2
