"""The command line: what is typed, and the exit status."""
