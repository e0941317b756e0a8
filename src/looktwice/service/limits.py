"""How much the service takes on."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What one request, and all of them together, may ask for."""

    body: int = 16 * 2**20
    """Bytes of a request."""
    pixels: int = 24_000_000
    """Width times height of a picture."""
    pictures: int = 32
    """Pictures in one request."""
    looks: int = 64
    """Pictures that are looked at or wait for it, of all requests together; more are refused for now."""
    seconds: float = 60.0
    """Until a request is told that its verdict takes too long."""
    upload: float = 30.0
    """Seconds in which the whole body must have come."""
    headers: float = 10.0
    """Seconds in which the headers must have come."""
    head: int = 32_768
    """Bytes of the headers."""
    connections: int = 512
    """Open connections."""
    reviews: int = 1000
    """Pictures that are kept for people to review; more are told to the caller alone."""
    review_bytes: int = 2**30
    """What they may take on disk."""
