"""The command line, with one file per group of commands."""
