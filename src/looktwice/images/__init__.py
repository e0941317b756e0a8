"""Files → images: decode untrusted bytes, and find pictures with their truths."""

from looktwice.images.collection import (
    ENDINGS,
    PictureLike,
    PicturesLike,
    find,
    has_truths,
    labelled,
    many,
    one,
    with_truths,
)
from looktwice.images.datasets import open_all_labelled
from looktwice.images.decode import decode, is_video, load
from looktwice.images.descriptor import NAMES, PLACES, Floats, descriptor
from looktwice.images.image import (
    MAX_PIXELS,
    PHOTO,
    SMALL,
    Image,
    WorkingSize,
    data_url,
    encode_jpeg,
    encode_png,
    shrunk,
)
from looktwice.images.picture import Picture, Stamp
from looktwice.images.truths import FILE_COLUMNS, read_header, read_truths
from looktwice.images.video import FRAMES, frames, is_video_file
