"""Where an elastic job's nodes meet, on a machine of its own: `python -m planc.rendezvous HOST:PORT`."""

from __future__ import annotations

from planc.cli.rendezvous import main

if __name__ == "__main__":
    main()
