"""`python -m specfleet`: the command line."""

from specfleet.experiments.cli.main import main

if __name__ == "__main__":
    main()
