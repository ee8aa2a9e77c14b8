"""Renders every hostile template in this process, and prints what it comes to, its seconds and the peak."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from planc.runtime.data.chat import ChatTemplate, compiled
from tests.security.chat_templates import HOSTILE

TALK = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]


def main() -> None:
    for name, template in HOSTILE.items():
        began = time.process_time()
        try:
            answer = f"rendered {len(compiled(ChatTemplate('here', template, {}))(TALK, False))} characters"
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps([name, answer, time.process_time() - began, peak_bytes()]), flush=True)


def peak_bytes() -> int:
    """The most memory that this process held. The kernel's `ru_maxrss` is also that of the process which
    started it, as large as any other test has made it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


if __name__ == "__main__":
    main()
