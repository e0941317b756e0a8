"""Probabilities → decisions: what was learned, when to stop asking, what to accept, and how sure that is."""
