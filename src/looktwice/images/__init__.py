"""Files → images: decode untrusted bytes, and find pictures with their true labels."""

from looktwice.images.collection import (
    ENDINGS,
    FILE_COLUMNS,
    PictureLike,
    PicturesLike,
    find,
    has_truths,
    labelled,
    many,
    of_kind,
    one,
    open_all_labelled,
    read_header,
    read_truths,
    with_truths,
)
from looktwice.images.decode import decode, load, reads_heic
from looktwice.images.image import (
    MAX_PIXELS,
    NAMES,
    PHOTO,
    PLACES,
    SMALL,
    Floats,
    Image,
    Picture,
    Stamp,
    WorkingSize,
    data_url,
    descriptor,
    encode_jpeg,
    encode_png,
    shrunk,
)
