"""Labels from people: the queue of pictures, the label file, the page, and exchange with other tools."""
