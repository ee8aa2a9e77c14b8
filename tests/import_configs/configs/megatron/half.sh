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
    --fp16
    --tensor-model-parallel-size 2
    --sequence-parallel
    --use-distributed-optimizer
)
torchrun ${LAUNCH[@]} pretrain_gpt.py ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} \
    --data-path $DATA --save out --load out --save-interval 100
