"""What ranks read for themselves is agreed on before the first step: each case changes one rank's folder."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from planc.graph.graph import Graph
from planc.runtime.errors import ExitCode
from tests.data.conversing import TALK, save_talks, save_tokenizer
from tests.dist.reading import NUM_RANKS, ODD, PLAN, SOURCES, Reading, Told, rank_folder, run_own
from tests.plans import PLANS, checked, write_plan

HERE = f"rank {ODD} ({socket.gethostname()})"
SETTINGS = "tokenizer_config.json"
OTHERS = f"the other {NUM_RANKS - 1} ranks"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One rank's folder, with every kind of source, and weights in two files."""
    folder = tmp_path_factory.mktemp("agreement") / "whole"
    (folder / "data").mkdir(parents=True)
    for name in "ab":
        (folder / "data" / f"{name}.txt").write_text(f"The ranks read {name}, all of them. " * 4)
        lines = [json.dumps({"text": f"line {number} of {name}"}) for number in range(6)]
        (folder / "data" / f"{name}.jsonl").write_text("\n".join(lines))
    shutil.copy(folder / "data" / "a.jsonl", folder / "data" / "set.jsonl")
    save_talks(folder / "data" / "talks.chat", *([*TALK[:end]] for end in (3, 5) * 4))
    (folder / "held_out.txt").write_text("Nothing of this is trained on.")
    save_tokenizer(folder / "tokenizer", has_config=False)
    (folder / "model").mkdir()
    config = json.loads((PLANS / "models" / "tiny-llama" / "config.json").read_text())
    (folder / "model" / "config.json").write_text(json.dumps({**config, "vocab_size": 320}))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "model"))
    model.to(torch.float32).save_pretrained(folder / "weights", max_shard_size="200KB")
    for path in (folder / "weights").glob("model*"):
        shutil.move(path, folder / "model" / path.name)
    return folder


def graph_of(folder: Path, *, source: str = "text", weights: str = "random", mesh: str = "dp_shard") -> Graph:
    write_plan(folder, text=PLAN.format(source=SOURCES[source], weights=weights, mesh=mesh))
    graph = checked(folder / "x.plan").graph
    assert graph is not None, checked(folder / "x.plan").diagnostics
    return graph


def run_changed(folder: Path, to: Path, change: Callable[[Path], object], graph: Graph) -> list[Told]:
    """How all ranks end, of which one has a folder that was changed."""
    for rank in range(NUM_RANKS):
        shutil.copytree(folder, rank_folder(to, rank))
    change(rank_folder(to, ODD))
    return run_own(Reading(graph, to))


def flipped(name: str, *, at: int = -3) -> Callable[[Path], object]:
    """A change of one bit of a file."""

    def change(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[at] ^= 1
        (folder / name).write_bytes(content)

    return change


def appended(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes() + b"\n")


def require_refused(told: list[Told], *texts: str) -> None:
    """All ranks end in the same way, before any step, with a message that contains the texts."""
    assert len({one.message for one in told}) == 1, told
    for one in told:
        assert (one.code, one.steps) == (ExitCode.INPUT, 0), one
        for text in texts:
            assert text in one.message, one.message


@pytest.mark.slow
def test_ranks_with_equal_folders_train(folder: Path, tmp_path: Path) -> None:
    told = run_changed(folder, tmp_path, lambda folder: None, graph_of(folder, weights="pretrained"))
    assert [(one.code, one.message, one.steps) for one in told] == [(None, "", 2)] * NUM_RANKS


CHANGED = {
    "text": ("text", "data/b.txt", "`data/b.txt` is sha256 "),
    "jsonl": ("jsonl", "data/a.jsonl", "`data/a.jsonl` is sha256 "),
    "chat": ("chat", "data/talks.chat", "`data/talks.chat` is sha256 "),
    "hf_dataset": ("hf_dataset", "data/set.jsonl", "`data/set.jsonl` is sha256 "),
    "evaluation": ("text", "held_out.txt", "`held_out.txt` is sha256 "),
    "tokenizer": ("text", "tokenizer/tokenizer.json", "`tokenizer/tokenizer.json` is sha256 "),
    "special tokens": (
        "text",
        f"tokenizer/{SETTINGS}",
        f"`tokenizer/{SETTINGS}` is sha256 ",
    ),
    "chat template": (
        "chat",
        "tokenizer/chat_template.jinja",
        "`tokenizer/chat_template.jinja` is sha256 ",
    ),
}


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("case", CHANGED)
def test_a_changed_file_is_named_with_the_rank_and_its_machine(
    folder: Path, tmp_path: Path, case: str
) -> None:
    source, name, subject = CHANGED[case]
    is_json = name.startswith("tokenizer/")
    change = appended(name) if is_json else flipped(name, at=-4 if source == "hf_dataset" else -8)
    if name.endswith(SETTINGS):
        folder = Path(shutil.copytree(folder, tmp_path / "with settings"))
        save_tokenizer(folder / "tokenizer")
    told = run_changed(folder, tmp_path, change, graph_of(folder, source=source))
    require_refused(told, subject, f" on {HERE}, and sha256 ", f" on {OTHERS}")
    assert "same files" in told[0].help
    (deviation,) = told[0].record["differing"]
    assert (deviation["rank"], deviation["host"]) == (ODD, socket.gethostname())


def test_a_file_more_is_named(folder: Path, tmp_path: Path) -> None:
    more = "data/c.txt"
    told = run_changed(folder, tmp_path, lambda own: (own / more).write_text("more"), graph_of(folder))
    require_refused(told, f"`{more}` is sha256 ", f" on {HERE}, and not read on {OTHERS}")


def test_a_file_that_one_rank_lacks_is_named(folder: Path, tmp_path: Path) -> None:
    told = run_changed(folder, tmp_path, lambda own: (own / "data" / "b.txt").unlink(), graph_of(folder))
    require_refused(told, f"`data/b.txt` is not read on {HERE}, and sha256 ")


def test_a_rank_that_cannot_read_is_named_by_all(folder: Path, tmp_path: Path) -> None:
    told = run_changed(folder, tmp_path, lambda own: (own / "held_out.txt").unlink(), graph_of(folder))
    require_refused(told, f'{HERE}: pattern "held_out.txt" matches no file')


def test_another_config_is_named_with_its_rank(folder: Path, tmp_path: Path) -> None:
    told = run_changed(folder, tmp_path, appended("model/config.json"), graph_of(folder))
    require_refused(told, HERE, "config.json changed after the plan was compiled")


@pytest.mark.parametrize("mesh", ["dp_shard", "dp_replicate"])
def test_one_bit_of_a_weight_is_found_whichever_rank_reads_it(
    folder: Path, tmp_path: Path, mesh: str
) -> None:
    """The weights of a rank's own part are compared with another's, which reads them from its own files."""
    names = sorted(path.name for path in (folder / "model").glob("*.safetensors"))
    assert len(names) > 1
    change = flipped(f"model/{names[0]}", at=-1)
    told = run_changed(folder, tmp_path, change, graph_of(folder, weights="pretrained", mesh=mesh))
    require_refused(told, f"its weight files and those of rank {ODD} have different values of ")


def test_a_header_of_weights_is_compared(folder: Path, tmp_path: Path) -> None:
    def change(own: Path) -> None:
        from safetensors.torch import load_file, save_file

        path = sorted((own / "model").glob("*.safetensors"))[0]
        save_file(load_file(path), path, metadata={"format": "pt", "by": "another"})

    told = run_changed(folder, tmp_path, change, graph_of(folder, weights="pretrained"))
    require_refused(told, ".safetensors` is ", " bytes with header sha256 ", f" on {HERE}, and ")
