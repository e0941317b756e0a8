"""`looktwice serve`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from looktwice import service
from looktwice.cli.options import OtherOption, ProfileOption, Serve, asks, decides, others, serves
from looktwice.model import AskOptions, DecisionOptions
from looktwice.service import Place


@decides
@serves
@asks
def serve(
    decide: DecisionOptions,
    ask: AskOptions,
    place: Place,
    profile: ProfileOption,
    classifier: OtherOption,
    tls_cert: Annotated[Path | None, Serve(help="TLS certificate, for HTTPS.")] = None,
    tls_key: Annotated[Path | None, Serve(help="Private key of the certificate.")] = None,
    looks: Annotated[
        int, Serve(help="Maximum number of pictures in progress at a time; others wait for their turn.", min=1)
    ] = 64,
    timeout: Annotated[float, Serve(help="Longest time that a client waits, in seconds.", min=0.1)] = 60.0,
    max_megabytes: Annotated[float, Serve(help="Maximum size of a request.", min=0.001)] = 16.0,
    max_megapixels: Annotated[float, Serve(help="Maximum size of a picture.", min=0.0001)] = 24.0,
    review: Annotated[
        Path | None, Serve(help="Folder in which to keep pictures that need review; see `looktwice review`.")
    ] = None,
    most_reviews: Annotated[int, Serve(help="Maximum number of pictures in that folder.", min=1)] = 1000,
) -> None:
    """Serve verdicts over HTTP, with a web page.

    [bold]Examples[/bold]

      looktwice serve --profile profile.json

      looktwice serve --host 0.0.0.0 --token-file tokens.txt --per-day 5000
    """
    limits = service.ServiceLimits(
        body=int(max_megabytes * 1e6),
        pixels=int(max_megapixels * 1e6),
        looks=looks,
        seconds=timeout,
        reviews=most_reviews,
    )
    place = replace(place, certificate=tls_cert, key=tls_key)
    service.load("looktwice.service.server").run(profile, others(classifier), decide, ask, place, limits, review)
