"""Queries and what they cost: the only package that spends."""
