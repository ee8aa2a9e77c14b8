"""Host the store of an elastic job on a machine of its own: `python -m planc.rendezvous HOST:PORT`."""

from __future__ import annotations

from planc.cli.rendezvous import main

if __name__ == "__main__":
    main()
