"""A file's facts in a plan's terms, and what became of each of its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planc.diagnostics.suggest import closest
from planc.import_configs import facts
from planc.import_configs.facts import Fact
from planc.import_configs.kind import Kind, Note, NoteKind, Row, find_row, note
from planc.import_configs.leaves import Leaf, written
from planc.import_configs.readers import Automatic, Idle, Unread
from planc.plan.foreign_help import foreign_help
from planc.record import record


@record
class Given:
    """A value with the leaf it comes from; none for an option or a default."""

    value: Any
    leaf: Leaf | None


@record
class Imported:
    """A key that is in the plan, and where."""

    key: str
    line: int
    place: str
    file: str = ""


@record
class Part:
    """The leaves of one file, and its kind."""

    file: str
    kind: Kind
    leaves: tuple[Leaf, ...]


class Draft:
    """Facts by name. Taking one moves its key to the imported; what is never taken becomes a note."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.kind = parts[0].kind
        """The kind of the file that names the training; other files have parts of it."""
        self.files = {part.kind.name: part.file for part in parts}
        self.notes: list[Note] = []
        self.imported: list[Imported] = []
        self._given: dict[str, Given] = {}
        self._taken: set[str] = set()
        self._defaults: dict[str, str] = {}
        """Whose default a fact has, by its name."""
        self.open: dict[str, Leaf] = {}
        """Keys that leave a fact open, by the fact's name."""
        self.automatic: set[str] = set()
        """The names of facts that the launching program fills in."""

    def give(self, fact: Fact, value: Any, leaf: Leaf | None) -> None:
        """State a fact. A second value of a file is a note."""
        first = self._given.get(fact.name)
        if first is None:
            self._given[fact.name] = Given(value, leaf)
        elif leaf is not None and first.leaf is None:
            if first.value != value:
                text = f"`{fact.option}` gives {written(first.value)} instead of {written(leaf.value)}"
                self.notes.append(note(NoteKind.SET_ASIDE, leaf, text))
            else:
                self._import(leaf, fact)
        elif leaf is not None and first.leaf is not None:
            if first.value == value:
                self._import(leaf, fact)
                return
            place = "" if first.leaf.file == leaf.file else f" of {first.leaf.file}"
            other = f"`{first.leaf.key}` in line {first.leaf.line}{place} is {written(first.leaf.value)}"
            kind = NoteKind.WRONG if fact.trains else NoteKind.SET_ASIDE
            self.notes.append(note(kind, leaf, f"{written(leaf.value)}, but {other}, which the plan has"))

    def give_default(self, fact: Fact, value: Any, whose: str) -> None:
        """State what a tool takes where a file is silent. It is a note once the plan has it."""
        if fact.name not in self._given:
            self._given[fact.name] = Given(value, None)
            self._defaults[fact.name] = whose

    def has(self, *facts: Fact) -> bool:
        return all(fact.name in self._given for fact in facts)

    def states(self, fact: Fact) -> bool:
        """Whether a file or an option gives it, and not only a default."""
        return fact.name in self._given and fact.name not in self._defaults

    def take(self, fact: Fact) -> Any:
        """The value of a fact for the plan; None without one."""
        given = self._given.get(fact.name)
        if given is None:
            return None
        if fact.name not in self._taken:
            self._taken.add(fact.name)
            if given.leaf is not None:
                self._import(given.leaf, fact)
            elif fact.name in self._defaults:
                self.added(fact.place, f"{fact.show(given.value)}, {self._defaults[fact.name]}")
        return given.value

    def peek(self, fact: Fact) -> Given | None:
        """A fact without using it."""
        return self._given.get(fact.name)

    def stop(self, fact: Fact, text: str) -> None:
        """Stop the import at a fact's key: the plan would train something else."""
        self.set_aside(fact, text, kind=NoteKind.CHANGED)

    def spread(self) -> None:
        """State what one word of a file means in several of a plan's settings. Own keys of a file win."""
        words = self.take(facts.STRATEGY) or ()
        meant = [pair for word in words for pair in facts.STRATEGIES[word]]
        stage = self.take(facts.ZERO_STAGE)
        if stage is not None:
            meant += facts.STAGES[stage]
        for fact, value in meant:
            if fact is facts.SHARDED and (given := self._given.get(fact.name)) is not None:
                self._given[fact.name] = Given(value, given.leaf)
            elif fact.name not in self._given:
                self._given[fact.name] = Given(value, None)

    def set_aside(self, fact: Fact, text: str, *, kind: NoteKind = NoteKind.SET_ASIDE) -> None:
        """Leave a fact out of the plan, with the reason."""
        given = self._given.get(fact.name)
        if given is not None and given.leaf is not None and fact.name not in self._taken:
            self.notes.append(note(kind, given.leaf, text))
        self._taken.add(fact.name)

    def _import(self, leaf: Leaf, fact: Fact) -> None:
        self.imported.append(Imported(leaf.key, leaf.line, fact.place, leaf.file))

    def added(self, place: str, text: str) -> None:
        self.notes.append(Note(NoteKind.ADDED, place, text))

    def finish(self) -> None:
        """Make notes of the facts that no part of the plan took."""
        for name, given in self._given.items():
            if name not in self._taken and given.leaf is not None:
                text = _UNUSED.get(name, "no part of this plan depends on it")
                self.notes.append(note(NoteKind.SET_ASIDE, given.leaf, text))


_UNUSED = {
    fact.name: reason
    for facts_of, reason in (
        ((facts.SAVE_EVERY, facts.KEEP_LAST, facts.ASYNC), "the file saves no checkpoints"),
        ((facts.SEQUENCE_PARALLEL,), "without tensor parallelism it does nothing"),
        ((facts.ROTATE, facts.BALANCER), "without context parallelism it does nothing"),
        ((facts.PIPELINE_SCHEDULE, facts.PIPELINE_MICRO_BATCH), "without pipeline ranks it does nothing"),
        ((facts.FULLGRAPH, facts.DYNAMIC), "the file does not compile the model"),
        ((facts.PARAM_DTYPE, facts.REDUCE_DTYPE), "without sharding, a plan computes in `model.dtype`"),
        (
            (facts.OFFLOAD, facts.RESHARD, facts.RESHARD_BACKWARD, facts.REDUCES_EACH, facts.HYBRID),
            "without sharding it does nothing",
        ),
        (
            (facts.TRAIN_ON, facts.MESSAGES, facts.TEMPLATE, facts.TRAINS_ENDS),
            "the data are not conversations",
        ),
        (
            (
                *(
                    facts.LORA_RANK,
                    facts.LORA_ALPHA,
                    facts.LORA_DROPOUT,
                    facts.RSLORA,
                    facts.DORA,
                    facts.LORA_TARGETS,
                ),
                facts.LORA_START,
            ),
            "the file trains without adapters",
        ),
        ((facts.DPO_BETA, facts.DPO_SMOOTHING), "the file trains on no preferences"),
        ((facts.SPLIT,), "it is of data that the plan does not read"),
        ((facts.EVAL_EVERY,), "the file holds no share of its data out"),
        ((facts.TEXT_FIELD,), "the data have no columns"),
        ((facts.MIN_FACTOR, facts.MIN_LR), "a constant schedule has no lowest rate"),
        ((facts.MOMENTUM,), "AdamW has betas instead"),
        ((facts.BETAS, facts.BETA1, facts.BETA2, facts.EPS), "SGD does not have it"),
        ((facts.EPOCHS,), "the number of steps is given too, and wins"),
        ((facts.NODES,), "the nodes do not divide the plan's ranks"),
    )
    for fact in facts_of
}
"""The reasons that a fact of a file may have no place in its plan."""


def draft_of(parts: Sequence[Part], options: Mapping[Fact, Any]) -> Draft:
    """The draft of files under the options, which win over them. The first file wins over the others."""
    draft = Draft(parts)
    for fact, value in options.items():
        draft.give(fact, value, None)
    pairs = [pair for part in parts for pair in _read_part(part, draft)]
    draft.spread()
    for part in parts:
        for fact, value in part.kind.implied:
            if not draft.has(fact):
                draft.give(fact, value, None)
    for leaf, row in pairs:
        for fact, value in row.implies if row and leaf.value not in (None, False) else ():
            if fact.name not in draft.open:
                draft.give_default(fact, value, f"as `{leaf.key}` implies")
    for kind in (part.kind for part in parts):
        for fact, value in kind.defaults:
            if fact.name not in draft.open:
                draft.give_default(fact, value, f"the default of {kind.title}")
        for fact, value in kind.automatic:
            if fact.name in draft.automatic:
                draft.give_default(fact, value, "which transformers' Trainer fills in for `auto` by default")
    return draft


def _read_part(part: Part, draft: Draft) -> list[tuple[Leaf, Row | None]]:
    """Read the leaves of one file; each with its row."""
    by_key = {leaf.key: leaf for leaf in part.leaves}
    rows = (*part.kind.own_rows(by_key), *part.kind.rows)
    pairs = [(leaf, find_row(rows, leaf)) for leaf in by_key.values()]
    for leaf, row in pairs:
        _read(leaf, row, draft, part.kind)
    draft.notes += part.kind.faults(by_key)
    return pairs


def _read(leaf: Leaf, row: Row | None, draft: Draft, kind: Kind) -> None:
    """Move a leaf to the draft, or to a note."""
    if row is None:
        draft.notes.append(note(NoteKind.CHANGED, leaf, _unknown(leaf, kind)))
    elif leaf.value is None and (row.fact is None or not row.fact.null):
        draft.notes.append(note(NoteKind.SET_ASIDE, leaf, "has no value"))
    elif row.names in draft.files and isinstance(leaf.value, str) and leaf.value:
        draft.imported.append(Imported(leaf.key, leaf.line, draft.files[row.names], leaf.file))
    elif row.fact is None:
        _open(row.opens, leaf, draft)
        is_idle = leaf.value in row.harmless and type(leaf.value) in map(type, row.harmless)
        text = f"{written(leaf.value)} asks for what a plan does" if is_idle else row.reason or row.change
        changes = bool(row.change) and not is_idle and leaf.value != ()
        draft.notes.append(note(NoteKind.CHANGED if changes else NoteKind.SET_ASIDE, leaf, text))
    else:
        _open(row.opens, leaf, draft)
        try:
            draft.give(row.fact, (row.read or row.fact.read)(leaf.value), leaf)
        except Unread as error:
            _open(row.fact, leaf, draft)
            if isinstance(error, Automatic):
                draft.automatic.add(row.fact.name)
            can_ask = row.fact.option and not row.fact.is_settled
            changes = row.fact.trains and not can_ask and not isinstance(error, Idle)
            draft.notes.append(note(NoteKind.CHANGED if changes else NoteKind.SET_ASIDE, leaf, str(error)))


def _open(fact: Fact | None, leaf: Leaf, draft: Draft) -> None:
    if fact is not None:
        draft.open.setdefault(fact.name, leaf)


def _unknown(leaf: Leaf, kind: Kind) -> str:
    """The note on a key without a row: a slip, another tool's word, or neither."""
    text = f"planc knows no such key of {kind.title}"
    meant = closest(leaf.key, (row.key for row in kind.rows if "*" not in row.key))
    if meant is not None:
        return f"{text}; did you mean `{meant}`?"
    help = foreign_help(leaf.path[-1])
    return f"{text}; a word like it: {help}" if help else text
