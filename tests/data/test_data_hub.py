"""Data sets in the formats of the `datasets` library, and what is said where the hub cannot be reached."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import datasets
import pytest

from planc.data_sources.kinds import HfDatasetSource, HfHubSource
from planc.runtime.data.documents import source_documents
from planc.runtime.data.errors import DataError
from planc.runtime.data.open import OpenData, open_data
from planc.runtime.data.spec import DataSpec

TEXTS = ["first text", "", "third", "thé"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SPEC = DataSpec(HfDatasetSource(("a.parquet",)), "bytes", sequence_length=4, shuffle_seed=3)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    table = datasets.Dataset.from_dict({"text": TEXTS, "number": [1, 2, 3, 4]})
    table.to_parquet(str(tmp_path / "a.parquet"))
    table.save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    (tmp_path / "b.json").write_text(json.dumps([{"text": text} for text in TEXTS]))
    return tmp_path


def opened(spec: DataSpec, *, base: Path) -> OpenData:
    return open_data(spec, base=base, model_vocab_size=400)


def texts(pattern: str, *, base: Path, field: str = "text") -> list[str]:
    return [one.text for one in source_documents(HfDatasetSource((pattern,), field), base=base)]


@pytest.mark.parametrize("pattern", ["*.parquet", "saved/*.arrow", "a.jsonl", "b.json"])
def test_every_format_gives_its_texts_in_order(base: Path, pattern: str) -> None:
    assert texts(pattern, base=base) == TEXTS


def test_a_run_goes_on_with_the_very_next_samples(base: Path) -> None:
    first, again = opened(SPEC, base=base), opened(SPEC, base=base)
    assert first.fingerprint == again.fingerprint
    assert first.order.sample_ids(3, count=5).tolist() == again.order.sample_ids(0, count=8).tolist()[3:]


def test_field_and_patterns_are_in_the_fingerprint(base: Path) -> None:
    others = [HfDatasetSource(("*.parquet",)), HfDatasetSource(("a.jsonl",))]
    prints = {opened(replace(SPEC, source=source), base=base).fingerprint for source in others}
    assert len(prints | {opened(SPEC, base=base).fingerprint}) == 3


@pytest.mark.parametrize(("field", "reason"), [("body", 'no field "body"'), ("number", "is not a string")])
def test_a_column_that_is_not_text_is_named(base: Path, field: str, reason: str) -> None:
    with pytest.raises(DataError, match=f"a.parquet:1.*{reason}"):
        texts("a.parquet", base=base, field=field)


def test_a_damaged_file_is_named(base: Path) -> None:
    (base / "a.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match=r"cannot read a\.parquet"):
        texts("a.parquet", base=base)


def test_a_file_without_a_reader_is_named(base: Path) -> None:
    (base / "a.csv").write_text("text\nx\n")
    with pytest.raises(DataError, match=r"a\.csv:1 is not JSON"):
        texts("*.csv", base=base)


def test_a_library_that_is_missing_is_named_with_what_installs_it(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None in sys.modules makes Python raise as it does for a package that is not installed.
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="needs the datasets library") as caught:
        texts("a.parquet", base=base)
    assert caught.value.help == "install it: pip install 'planc[run]'"


def test_a_hub_that_cannot_be_reached_is_said_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing listens there, so the connection fails at once.
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("datasets.config.HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = "cannot read org/text@0123456789ab from the Hugging Face Hub"
    with pytest.raises(DataError, match=message) as caught:
        list(source_documents(HfHubSource("org/text", COMMIT), base=tmp_path))
    assert "check the connection" in caught.value.help
