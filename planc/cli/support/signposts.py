"""Commands that other tools have: which one of planc does the same, or what serves instead."""

from __future__ import annotations

_SIGNPOSTS = {
    "train fit pretrain finetune fine-tune sft start execute": (
        "`planc run PLAN` trains on one rank, and `torchrun --nproc-per-node N -m planc.run PLAN` on N"
    ),
    "resume continue restart": (
        "the command that started the run resumes it: `planc run PLAN` continues from the last checkpoint"
    ),
    "init create generate-plan scaffold quickstart wizard": "`planc new MODEL` writes a plan",
    "validate lint typecheck test vet": "`planc check PLAN` finds every error before a run",
    "dry-run dryrun simulate rehearse": (
        "`planc check PLAN --deep` rehearses a run, on tensors without values"
    ),
    "plan apply": "`planc check PLAN` and `planc show PLAN` come before a run, `planc run PLAN` is one",
    "format": "`planc fmt PLAN` formats a plan",
    "evaluate benchmark lm-eval": (
        "`planc eval CHECKPOINT` computes the loss on held-out text; `planc checkpoint export CHECKPOINT "
        "--hf DIR` writes what other evaluators load"
    ),
    "generate infer inference predict": (
        '`planc sample CHECKPOINT "text"` continues a text, or answers an input'
    ),
    "chat serve": (
        "planc serves no models: `planc checkpoint export CHECKPOINT --hf DIR` writes a model directory for "
        "transformers and for servers that read one"
    ),
    "export merge merge-adapter to-hf save": (
        "`planc checkpoint export CHECKPOINT --hf DIR` writes a model directory, with adapters merged"
    ),
    "push upload push-to-hub publish": (
        "`planc checkpoint push RUN` pushes the exports of a run to the Hugging Face Hub"
    ),
    "convert": (
        "`planc import CONFIG` converts a config, and `planc checkpoint convert CHECKPOINT --dcp DIR` a "
        "checkpoint"
    ),
    "checkpoints ckpt": "`planc checkpoint ls DIR` lists checkpoints",
    "tokenize prepare preprocess dataset datasets": (
        "`planc data prepare PLAN` tokenizes a plan's data, and `planc data show PLAN` shows it"
    ),
    "memory cost flops size": "`planc estimate PLAN --gpu NAME` estimates memory, communication and time",
    "profile trace": "planc profiles during a run only: write `profile { first_step = 2, last_step = 3 }`",
    "graph view print dump describe inspect cat": "`planc show PLAN` shows what a plan means",
    "plot visualize viz dashboard html": "`planc report PLAN -o FILE` draws a plan or a run as a page",
    "compare": "`planc diff OLD NEW` compares plans, and `planc runs` the runs of a directory",
    "ls list ps status logs": "`planc runs` lists runs with their state",
    "search optimize autotune": "`planc tune PLAN --gpus N --gpu NAME` searches for a fast plan",
    "grid hpo": "`planc sweep PLAN --grid PATH=VALUES` runs a plan at every point of a grid",
    "env info version": "`planc doctor` reports hardware and software, `planc --version` the version",
    "submit slurm kubernetes torchrun deploy": "`planc launch PLAN` prints what starts a plan",
    "stop kill cancel": (
        "planc stops no run: send SIGTERM to it or to its torchrun, and it saves and exits with 75"
    ),
    "model models download": "`planc inventory MODEL` shows a model's structure",
    "docs doc man why error": (
        "`planc explain TOPIC` explains a word or an error, and `planc help COMMAND` a command"
    ),
}
"""The command or page to use for words that aren't commands of planc."""


def signpost(word: str) -> str | None:
    """The one line for a command that planc does not have; None for a word without a signpost."""
    written = word.lower().replace("_", "-")
    text = next((text for words, text in _SIGNPOSTS.items() if written in words.split()), None)
    return f"planc has no command `{word}`: {text}" if text is not None else None


def signposted() -> dict[str, str]:
    """Every word with a signpost, and its line."""
    return {word: text for words, text in _SIGNPOSTS.items() for word in words.split()}
