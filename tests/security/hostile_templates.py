"""Renders every hostile template in this process, and prints what it comes to, its seconds and the peak."""

from __future__ import annotations

import json
import resource
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
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps([name, answer, time.process_time() - began, peak]), flush=True)


if __name__ == "__main__":
    main()
