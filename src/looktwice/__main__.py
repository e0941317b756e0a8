"""`python -m looktwice` is the command `looktwice`."""

from looktwice.cli.app import main

if __name__ == "__main__":
    main()
