"""`python -m gemmdb` is the command `gemmdb`."""

from gemmdb.cli.app import main

if __name__ == "__main__":
    main()
