"""`python -m nearmetal`: the command line of this interpreter's nearmetal, whatever is on PATH."""

from nearmetal.cli.main import main

if __name__ == "__main__":
    main()
