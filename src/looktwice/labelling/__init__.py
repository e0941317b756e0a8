"""Labels from people: the picture queue, the label file and the page."""
