"""Transfer from an open model to a black-box classifier."""

from looktwice.transfer.borrow import Pupil, fit_towards
from looktwice.transfer.latent import Noise
from looktwice.transfer.noise import Measured, NoiseFile, measure
