"""Truths from people: which pictures next, the labels file, and the page."""
