"""What every connector must do, written once.

`replica.py`  a local server with the embedded classifier behind it, which can be told to fail in many ways
`cases.py`    one Case a connector: how its server answers, how to connect to it, what belongs to its fingerprint
`test_conformance.py`  the tests, run for each case

A new connector adds a Case to `CASES`; with `routes` if it talks to a server, without if it runs on this machine.
"""
