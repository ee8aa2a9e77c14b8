"""Artifacts: what is written comes back, and what was touched is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planc.graph.artifact import ArtifactError, base_between, dump, graph_of, load
from planc.graph.graph import plan_hash
from tests.plans import QUICKSTART, TINY, canonical_plans, checked, write_plan


def _dumped(path: Path = QUICKSTART) -> str:
    found = checked(path)
    assert found.graph is not None
    return dump(found.graph, sources=found.source_digests, overrides=found.overrides, base="../plans")


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("path", canonical_plans(), ids=lambda path: path.stem)
def test_graph_comes_back_with_its_positions(path: Path) -> None:
    graph = checked(path).graph
    assert graph is not None
    loaded = graph_of(load(_dumped(path)))
    assert loaded == graph
    assert [op.span for op in loaded.ops()] == [op.span for op in graph.ops()]
    assert plan_hash(loaded) == plan_hash(graph)


def test_equal_plans_give_equal_texts() -> None:
    assert _dumped() == _dumped()


def test_pretrained_recomputed_and_context_parallel_ops_come_back(tmp_path: Path) -> None:
    path = write_plan(
        tmp_path,
        text=TINY,
        edits=[
            ('tiny-llama"', 'tiny-llama"\n  weights = pretrained'),
            ("tp = 2", "tp = 2\n  cp = 2"),
            ("fsdp on dp_shard {", "fsdp on dp_shard, cp {"),
            (
                "data {",
                'context_parallel on cp {\n  ["input_ids", "labels", "position_ids"] -> Shard(1)\n}\n'
                'activation_checkpoint {\n  "model.layers.*" -> full\n}\ndata {',
            ),
        ],
    )
    assert graph_of(load(_dumped(path))) == checked(path).graph


Tamper = Callable[[dict[str, Any]], None]


def _set(*path: str | int, value: Any) -> Tamper:
    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = value

    return change


def _remove_last_setup_op(document: dict[str, Any]) -> None:
    document["graph"]["setup"].pop()


TAMPERINGS: dict[str, tuple[Tamper, str]] = {
    "value": (_set("graph", "num_steps", value=999_999), "plan_hash does not match"),
    "op removed": (_remove_last_setup_op, "plan_hash does not match"),
    "hash": (_set("plan_hash", value="0" * 64), "plan_hash does not match"),
    "type": (_set("graph", "num_steps", value="60"), "graph.num_steps"),
    "number as float": (_set("graph", "num_steps", value=60.5), "graph.num_steps"),
    "unknown key": (_set("extra", value=1), "extra"),
    "unknown key in an op": (_set("graph", "setup", 0, "extra", value=1), "extra"),
    "unknown op": (_set("graph", "setup", 0, "op", value="os.system"), "op"),
    "version": (_set("format_version", value=1), "format version 1; this planc reads version 4"),
    "mesh of the wrong size": (_set("graph", "mesh", 3, 1, value=4), "its sizes differ from the graph's"),
    "mesh without a dim": (_set("graph", "mesh", value=[["tp", 2]]), "its sizes differ from the graph's"),
}


@pytest.mark.parametrize(("tamper", "text"), TAMPERINGS.values(), ids=TAMPERINGS)
def test_tampering_is_refused(tamper: Tamper, text: str) -> None:
    document = json.loads(_dumped())
    tamper(document)
    with pytest.raises(ArtifactError, match=text):
        load(json.dumps(document))


@pytest.mark.parametrize("key", ["plan_hash", "num_steps", "op"])
def test_a_key_that_stands_twice_is_refused(key: str) -> None:
    text = _dumped()
    start = text.index(f'"{key}":')
    _, end = json.JSONDecoder().raw_decode(text, start + len(key) + 4)
    twice = text[:start] + text[start:end] + ", " + text[start:]
    with pytest.raises(ArtifactError, match=f'the key "{key}" stands twice'):
        load(twice)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"format_version": 4}', "[" * 100_000])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(ArtifactError, match="not a compiled plan"):
        load(text)


def test_base_follows_links(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "plans").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    base = base_between(tmp_path / "link", plan_folder=tmp_path / "plans")
    assert ((tmp_path / "link").resolve() / base).resolve() == (tmp_path / "plans").resolve()


def test_base_of_the_same_folder_is_a_dot(tmp_path: Path) -> None:
    assert base_between(tmp_path, plan_folder=tmp_path) == "."
