"""``python -m fullfield``."""

from fullfield.cli.main import console

if __name__ == "__main__":
    console()
