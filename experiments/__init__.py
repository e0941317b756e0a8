"""The experiments behind the documents; `python -m experiments --help` has the paper's tables and figures."""
