#!/bin/bash
# The sizes and flags of examples/gpt3/train_gpt3_175b_distributed.sh of NVIDIA/Megatron-LM (core 0.20.0), on 16 nodes.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-16}

MODEL=(
    --num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048
    --max-position-embeddings 2048 --attention-backend auto
)
TRAINING=(
    --micro-batch-size 1 --global-batch-size 1536 --train-iters 500000 --weight-decay 0.1
    --adam-beta1 0.9 --adam-beta2 0.95 --clip-grad 1.0 --fp16 --lr 6.0e-5 --min-lr 6.0e-6
    --lr-decay-style cosine --lr-warmup-fraction .001 --lr-decay-iters 430000
)
PARALLEL=(--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16)

torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES pretrain_gpt.py \
    "${MODEL[@]}" "${TRAINING[@]}" "${PARALLEL[@]}" \
    --tokenizer-type GPT2BPETokenizer --log-interval 100 --eval-iters 10
