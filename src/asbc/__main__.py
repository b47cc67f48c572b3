"""`python -m asbc NAME` is `asbc NAME`."""

from asbc.commands import main

if __name__ == "__main__":
    main()
