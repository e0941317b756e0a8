"""Files → images: decoding bytes that nobody vouches for, and finding pictures with their truths."""
