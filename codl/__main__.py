"""`python -m codl`: the command line."""

from codl.cli import main

if __name__ == "__main__":
    main()
