"""The places to look, in order, by symptom: one Markdown file each, shipped with the package."""

from __future__ import annotations

import re
from pathlib import Path

SYMPTOMS = {
    "out of memory": "oom, cuda oom, cuda out of memory, memory error, OutOfMemoryError, exit code 8",
    "nan": "loss nan, inf, infinite loss, overflow, not finite, non-finite, exit code 5",
    "hang": "stuck, deadlock, freezes, timeout, timed out, nccl error, watchdog, exit code 6",
    "lost node": "lost rank, dead node, dead rank, node failure, node fails, rank killed, crash, preempted, "
    "preemption, spot instance, fault tolerance, exit code 75",
    "slow": "slower, speed, throughput, performance, bottleneck, gpu idle, gpu utilization, low mfu",
    "loss not falling": "loss not decreasing, loss not going down, loss flat, loss high, loss constant, "
    "loss plateau, loss stuck, loss spike, loss diverges, not learning, not converging, no convergence, "
    "overfitting",
    "resume": "continue training, restart, start again",
    "multi node": "multinode, multiple nodes, several nodes, many nodes, two nodes, multiple machines, "
    "several machines, cluster, nnodes",
    "flash attention": "flash attn, attention kernel",
    "custom dataset": "own dataset, my dataset, own data, custom data, my data, python dataset, "
    "torch dataset, iterable dataset, streaming dataset, huggingface dataset, hf dataset, collator, sampler, "
    "loss mask, label mask, ignore index, fill in the middle",
    "own model": "custom model, my model, own architecture, custom architecture, nn module, model class",
    "own loss": "custom loss, my loss function, loss function, own optimizer, custom optimizer, "
    "my optimizer, own schedule, custom schedule, own scheduler, custom scheduler",
    "text classification": "classification, classifier, classify text, sentiment analysis, "
    "fine tune classifier, new head, csv, token classification, ner, named entities, "
    "named entity recognition, part of speech",
    "embeddings": "embedding model, sentence embeddings, sentence transformers, contrastive learning, "
    "infonce, retrieval, retriever, dense retrieval, hard negatives, in batch negatives, similarity search",
    "summaries and translations": "summarization, summarize, translation, translate, encoder decoder, "
    "encoder decoders, seq2seq, sequence to sequence, text to text, t5, bart, decoder start token, "
    "decoder start token id",
    "images": "vision, vision language, vision language model, vlm, multimodal, image text to text, "
    "pictures, qwen vl, qwen2 vl, qwen2 5 vl, qwen3 vl, visual question answering, vqa",
    "callback": "hook, metric, custom metric, own metric, own loop, custom loop, own trainer, custom trainer",
}
"""The name of each page, and other phrases for it, none of which hides a key or a word of another tool."""

_FOLDER = Path(__file__).parent / "symptoms"
_WORD = re.compile(r"[a-z0-9]+")
_ENDING = re.compile(r"(?<=\w\w)(?:ing|es|s|e)$")
_FILLERS = (
    "a",
    "an",
    "and",
    "at",
    "do",
    "does",
    "in",
    "is",
    "it",
    "of",
    "on",
    "the",
    "to",
    "training",
    "with",
)


def symptom_page(name: str) -> str:
    """The page of one of SYMPTOMS."""
    return (_FOLDER / f"{name.replace(' ', '-')}.md").read_text(encoding="utf-8")


def symptom_named(topic: str) -> str | None:
    """The symptom that a topic is the name of, whatever separates its words."""
    words = _words(topic)
    return next((name for name in SYMPTOMS if _words(name) == words), None)


def symptoms_in(topic: str) -> tuple[str, ...]:
    """The symptoms that a sentence contains, such as a pasted error message.

    Of several phrases, those with the most words decide: `loss is nan` is not about every loss.
    """
    words = set(_words(topic))
    found = [
        (len(set(_words(phrase))), name) for phrase, name in _phrases() if words.issuperset(_words(phrase))
    ]
    most = max((length for length, _ in found), default=0)
    return tuple(dict.fromkeys(name for length, name in found if length == most))


def symptoms_near(topic: str) -> tuple[str, ...]:
    """The symptoms that share a word with a topic."""
    words = set(_words(topic))
    return tuple(dict.fromkeys(name for phrase, name in _phrases() if words.intersection(_words(phrase))))


def phrases() -> tuple[str, ...]:
    """Every phrase that names a symptom."""
    return tuple(phrase for phrase, _ in _phrases())


def _phrases() -> list[tuple[str, str]]:
    return [(phrase, name) for name, more in SYMPTOMS.items() for phrase in (name, *more.split(", "))]


def _words(text: str) -> tuple[str, ...]:
    """The words that matter, without endings: `nodes`, `is falling`, `doesn't fall`."""
    plain = text.lower().replace("n't", " not")
    return tuple(_ENDING.sub("", word) for word in _WORD.findall(plain) if word not in _FILLERS)
