"""Black-box classifiers: what looktwice needs of a classifier, and how to reach one."""
