"""The confined process that tokenizes: batches on its standard input, token ids on its standard output.

It ends with its input, with a batch that it can't finish, and with the limits of one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from planc.hub.tokenizer_files import DEFAULT_TEMPLATE, TOOLS_TEMPLATE
from planc.runtime.data.chat import ChatTemplate
from planc.runtime.data.encoding.frames import parts_of, read_frame, write_frame
from planc.runtime.data.encoding.limits import Limits, allow, confine
from planc.runtime.data.errors import DataError
from planc.runtime.data.sources import IGNORED_LABEL, LONE_SURROGATE_HELP
from planc.runtime.data.tokenizer_folder import Files

if TYPE_CHECKING:
    from planc.runtime.data.encoding.document_marks import Frame
    from planc.runtime.data.encoding.loaded import LoadedTokenizer
    from planc.runtime.data.encoding.talk import Rendered
    from planc.runtime.data.encoding.template import Compiled
    from planc.runtime.data.encoding.turn import Turn

_ID_TYPE, _CLASS_TYPE = "I", "i"
_MAX_REASON = 500


@dataclass(slots=True)
class _Loaded:
    tokenizer: LoadedTokenizer
    begin: Sequence[int]
    """The tokens that a text begins with."""
    frame: Frame | None = None
    """The tokens around two texts; None if no row has two."""
    templates: dict[str, Compiled] = field(default_factory=dict)
    """Compiled templates by name, as `chat.Templates`."""
    turns: dict[str, Turn | None] = field(default_factory=dict)
    """The text around answers, by template."""

    def answer(self, header: dict[str, Any], content: memoryview) -> tuple[dict[str, Any], list[bytes]]:
        """The header and the bytes of the answer to a batch, or to a template. Raises DataError for that."""
        if "template" in header:
            return self._add(header.pop("template"), ChatTemplate(**header)), []
        if "decode" in header:
            return self.decoded(parts_of(content, header["decode"]))
        parts = parts_of(content, header["sizes"])
        made = {"texts": self.texts, "text_pairs": self.text_pairs, "words": self.words}
        return made.get(header["kind"], self.conversations)(parts)

    def _add(self, name: str, template: ChatTemplate) -> dict[str, Any]:
        """Get a template ready, and answer what ends a turn. Raises DataError."""
        # Only conversations need Jinja.
        from planc.runtime.data.encoding.template import compiled
        from planc.runtime.data.encoding.turn import turn_of

        made = compiled(replace(template, special_tokens=self.tokenizer.special_tokens))
        tools: list[object] | None = [] if name == TOOLS_TEMPLATE else None
        self.templates[name] = made
        turn = self.turns[name] = turn_of(made.render(tools=tools, arguments={}))
        return {"turn": "" if turn is None else turn.words(trains_ends=template.trains_ends)}

    def texts(self, parts: Sequence[memoryview]) -> tuple[dict[str, Any], list[bytes]]:
        """The answer to a batch of texts."""
        texts = [str(part, "utf-8") for part in parts]
        found = [[*self.begin, *ids] for ids in self.tokenizer.encode(texts)]
        answers = [{"tokens": len(one), "bytes": len(part)} for one, part in zip(found, parts, strict=True)]
        return {"answers": answers}, [_joined(found)]

    def text_pairs(self, parts: Sequence[memoryview]) -> tuple[dict[str, Any], list[bytes]]:
        """The answer to a batch of two texts each: as to texts, and each token's type after that."""
        assert self.frame is not None, "the first message asks for pairs"
        rows: list[list[str]] = [json.loads(str(part, "utf-8")) for part in parts]
        encoded = (self.tokenizer.encode(texts) for texts in zip(*rows, strict=True))
        made = [self.frame.of(first, second) for first, second in zip(*encoded, strict=True)]
        answers = [
            {"tokens": len(marked), "bytes": sum(len(text.encode()) for text in row), "spans": spans}
            for (marked, spans), row in zip(made, rows, strict=True)
        ]
        ids, types = ([[pair[place] for pair in marked] for marked, _ in made] for place in (0, 1))
        return {"answers": answers}, [_joined(ids), _joined(types, kind=_CLASS_TYPE)]

    def words(self, parts: Sequence[memoryview]) -> tuple[dict[str, Any], list[bytes]]:
        """The answer to a batch of words with classes: as to texts, and each token's class after that."""
        rows = [json.loads(str(part, "utf-8")) for part in parts]
        ids, classes, answers = [], [], []
        for (words, known), (own, numbers) in zip(
            rows, self.tokenizer.of_words([words for words, _ in rows]), strict=True
        ):
            ids.append([*self.begin, *own])
            first = (number != before for number, before in pairwise((None, *numbers)))
            labels = (
                known[number] if is_first and number is not None else IGNORED_LABEL
                for number, is_first in zip(numbers, first, strict=True)
            )
            classes.append([*[IGNORED_LABEL] * len(self.begin), *labels])
            answers.append({"tokens": len(ids[-1]), "bytes": sum(len(word.encode()) for word in words)})
        return {"answers": answers}, [_joined(ids), _joined(classes, kind=_CLASS_TYPE)]

    def decoded(self, parts: Sequence[memoryview]) -> tuple[dict[str, Any], list[bytes]]:
        """The answer to a batch of ids: the text of each part."""
        texts = [self.tokenizer.decode(part.cast("I").tolist()).encode() for part in parts]
        return {"sizes": [*map(len, texts)]}, texts

    def conversations(self, parts: Sequence[memoryview]) -> tuple[dict[str, Any], list[bytes]]:
        """Encode as `texts` does, and tell which tokens are trained on, and why one can't be rendered."""
        from planc.runtime.data.encoding.talk import Rendered, mask

        made = [self._rendered(part) for part in parts]
        good = [one for one in made if isinstance(one, Rendered)]
        encodings = self.tokenizer.encodings([one.text for one in good])
        # A template writes its own begin; a prompt that is a text begins as other texts do.
        begins = [self.begin if one.is_text else () for one in good]
        ids = [[*begin, *one.ids] for begin, one in zip(begins, encodings, strict=True)]
        masks = [
            bytes(len(begin)) + bytes(mask(encoding, one))
            for begin, encoding, one in zip(begins, encodings, good, strict=True)
        ]
        lengths = map(len, ids)
        answers = [
            result
            if isinstance(result, dict)
            else {
                "tokens": next(lengths),
                "bytes": len(result.text.encode()),
                "trains_end": result.trains_end,
                "stops": result.stops,
                "unread": ", ".join(result.unread),
            }
            for result in made
        ]
        return {"answers": answers}, [_joined(ids), *masks]

    def _rendered(self, content: memoryview) -> Rendered | dict[str, str]:
        """The text of a conversation; why there is none."""
        from planc.runtime.data.encoding.talk import rendered
        from planc.runtime.data.encoding.template import TemplateFault

        try:
            talk = json.loads(str(content, "utf-8", "surrogatepass"))
            has_own = talk.get("tools") is not None and TOOLS_TEMPLATE in self.templates
            name = TOOLS_TEMPLATE if has_own else DEFAULT_TEMPLATE
            found = rendered(talk, self.templates.get(name), self.turns.get(name))
            found.text.encode()
            return found
        except TemplateFault as fault:
            return {"reason": f"is rejected by the chat template: {fault}", "help": fault.help}
        except UnicodeEncodeError as error:
            reason = f"becomes a text with a lone surrogate at character {error.start}"
            return {"reason": reason, "help": LONE_SURROGATE_HELP}


def _joined(lists: Any, *, kind: str = _ID_TYPE) -> bytes:
    joined = array(kind)
    assert joined.itemsize == 4
    for one in lists:
        joined.extend(one)
    return joined.tobytes()


def _load(header: dict[str, Any], message: memoryview) -> tuple[_Loaded, dict[str, Any]]:
    """The tokenizer, and the answer to the message that it came in. Raises DataError."""
    name = header["name"]
    try:
        # Here, so a missing library is reported as any other fault of the first message.
        from planc.runtime.data.encoding.document_marks import (
            around,
            around_pairs,
            begin_of_document,
            end_of_document,
            marks,
            marks_of_pairs,
            mask_of,
            require_like_text,
        )
        from planc.runtime.data.encoding.loaded import load_tokenizer
    except ModuleNotFoundError as error:
        raise DataError(
            f"reading {name} needs the tokenizers library", help="install it: pip install 'planc[run]'"
        ) from error
    sizes: dict[str, int] = header["files"]
    parts = parts_of(message, [*sizes.values()])
    files = {path: bytes(part) for path, part in zip(sizes, parts, strict=True)}
    with _written(files, Path(header["folder"])) as folder:
        confine()
        loaded = load_tokenizer(files, name=name, folder=folder)
    begin = begin_of_document(loaded, header["begin_of_document"])
    end = end_of_document(loaded, header["end_of_document"])
    if header["by_word"]:
        require_like_text(loaded)
    ends: tuple[int, ...] = (end,)
    if header["has_classes"] and header["end_of_document"] is None:
        ends = around(loaded)[1]
    text = marks(loaded, begin=begin, end=ends, has_template=header["has_template"])
    frame = None
    if header["by_pair"]:
        frame = around_pairs(loaded, begin=header["begin_of_document"], end=header["end_of_document"])
        text = marks_of_pairs(loaded, frame)
    answer = {
        "vocab_size": loaded.vocab_size,
        "special_ids": loaded.special_ids,
        "end_of_document": end,
        "mask": mask_of(loaded),
        "after": ends,
        "marks": text,
    }
    return _Loaded(loaded, begin, frame), answer


@contextlib.contextmanager
def _written(files: Files, folder: Path) -> Iterator[Path]:
    """The files in a new directory that no other user can read, for a while."""
    folder.mkdir(mode=0o700)
    try:
        for path, content in files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_bytes(content)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer each message; after one that can't be answered, end."""
    limits, loaded = Limits(), None
    while (message := read_frame(source)) is not None:
        header, content = message
        parts: list[bytes] = []
        try:
            if loaded is None:
                limits = Limits.of_data(header["limits"])
                allow(limits, num_bytes=len(content))
                loaded, answer = _load(header, content)
            else:
                allow(limits, num_bytes=len(content))
                answer, parts = loaded.answer(header, content)
        except DataError as error:
            write_frame(sink, {"message": error.message, "help": error.help})
            return
        except MemoryError:
            write_frame(sink, {"is_memory": True})
            return
        # A panic of Rust code is a BaseException; after one, the library's locks may be poisoned.
        except BaseException as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            write_frame(sink, {"failure": lines[0][:_MAX_REASON]})
            return
        write_frame(sink, answer, *parts)


def main() -> None:
    # A signal is for the run, which ends this process when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sink = os.fdopen(os.dup(1), "wb")
    # What a library prints must not be taken for an answer, nor wait for a reader.
    os.dup2(2, 1)
    if sys.platform != "win32":
        os.set_blocking(2, False)
    try:
        serve(sys.stdin.buffer, sink)
    except BrokenPipeError:
        # Nobody waits for the answer.
        os._exit(0)
    sink.close()


if __name__ == "__main__":
    main()
