"""Transfer from an open model to a black-box classifier."""
