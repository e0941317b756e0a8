"""Every table and figure of the paper, from a model and labelled pictures."""
