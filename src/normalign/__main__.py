"""``python -m normalign``: the command line where no script is installed."""

from normalign.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
