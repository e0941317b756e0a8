"""Labels from people: the queue of pictures, the label file and the page."""
