#!/bin/bash
# Plays two nodes of two ranks each on this machine: bash examples/two_nodes.sh
set -euo pipefail

export OMP_NUM_THREADS=1
for node in 0 1; do
    torchrun --nnodes 2 --node-rank "$node" --nproc-per-node 2 \
        --master-addr 127.0.0.1 --master-port 29512 \
        -m planc.run plans/quickstart.plan --run-dir runs/two-nodes --stop-after 5 &
done
wait
