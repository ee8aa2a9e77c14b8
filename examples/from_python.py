"""Trains a plan from Python, one step at a time, until its loss is low enough.

torchrun --nproc-per-node 2 examples/from_python.py examples/own_loop.plan --until 3.5
"""

from __future__ import annotations

import argparse
import sys

import planc


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("plan")
    parser.add_argument("--until", type=float, default=0.0, help="a loss")
    parser.add_argument("--run-dir", default="runs/from_python")
    arguments = parser.parse_args()
    run = planc.Run(arguments.plan, run_dir=arguments.run_dir)
    for step in run:
        if step.loss < arguments.until:
            run.stop()
    return run.result.code


if __name__ == "__main__":
    sys.exit(main())
