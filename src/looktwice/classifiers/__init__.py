"""Black-box classifiers: the interface and the connectors."""

from looktwice.classifiers.base import (
    NO_LABEL,
    Answer,
    AnswerKind,
    AnyClassifier,
    Classifier,
    Limits,
    Metered,
    Naming,
    Pixels,
    Prompted,
    Renamed,
    Rereadable,
    Tokens,
    answer_kind,
    fingerprint,
    lasting,
    merged,
    names_of,
    reading,
    size_in_bytes,
    tags,
    why_none,
)
from looktwice.classifiers.chat.batching import Fate, Line, Sought
from looktwice.classifiers.chat.model import Asked, ChatClassifier
from looktwice.classifiers.onnx import Preprocessing
from looktwice.classifiers.prices import Tariff, example, read_table
from looktwice.classifiers.python import batched, returns_tags
from looktwice.classifiers.registry import (
    Amount,
    Connected,
    Described,
    Source,
    approve,
    checked,
    connect,
    describe,
    reach,
    read_renames,
    read_toml,
    resolve,
)
from looktwice.classifiers.secrets import no_keys_needed
from looktwice.classifiers.transport import Reply
