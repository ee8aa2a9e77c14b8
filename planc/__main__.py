"""`python -m planc`."""

from planc.cli.main import entry

if __name__ == "__main__":
    entry()
