"""Votes → probabilities, as pure functions of arrays: no network, no disk but votes files, no clock."""
