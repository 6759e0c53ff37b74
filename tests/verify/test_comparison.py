"""Two runs are compared by their bits, and not by the values of their numbers."""

import numpy as np

from minidist.train.config import TrainConfig
from minidist.train.fingerprint import digest, fingerprint
from minidist.train.layout import Layout
from minidist.train.trainer import RankResult, train_rank
from minidist.verify.comparison import _first_step_that_differs, agrees, bits, first_difference, verify

# 3 heads pad the vocabulary of 256 to 258. No token looks up the last two rows, and their moments stay 0.0.
CONFIG = TrainConfig(layers=1, heads=3, width=12, context=8, global_batch=4, micro_batch=2, steps=2, warmup=1)


def quiet_nan(payload: int) -> np.ndarray:
    return np.array([0x7FC00000 + payload], np.uint32).view(np.float32)


def test_bits_tell_apart_what_compares_equal_and_equate_what_compares_unequal():
    zeros = np.array([0.0, -0.0], np.float32)
    assert zeros[0] == zeros[1] and bits(zeros)[0] != bits(zeros)[1]
    nan, other = quiet_nan(0), quiet_nan(1)
    assert nan != nan and bits(nan) == bits(nan) != bits(other)
    assert bits(np.zeros((2, 3))).shape == (2, 3) and bits(np.zeros(2)).dtype == np.uint64


def test_the_digest_is_of_bits():
    class Weights:
        """A model of one parameter, and its optimizer, which keeps no state."""

        def __init__(self, *values) -> None:
            self.name, self.data = "weight", np.array(values, np.float32).reshape(-1)
            self.parameters, self.kinds = [self], {}

        def named_parameters(self):
            return [(self.name, self)]

        def extra_state(self):
            return {}

    weights = [Weights(0.0), Weights(-0.0), Weights(quiet_nan(0)), Weights(quiet_nan(1))]
    assert len({digest(weight, weight).hexdigest() for weight in weights}) == 4
    assert digest(weights[3], weights[3]).hexdigest() == digest(Weights(quiet_nan(1)), weights[3]).hexdigest()
    assert fingerprint(weights[0], weights[0], [0.0]) != fingerprint(weights[0], weights[0], [-0.0])


def a_zero_loses_its_sign(world, config, layout, options):
    """After the last step one moment of a padding row is -0.0 where one process has 0.0."""
    import minidist.train.share as share

    class Flipping(share.AdamW):
        def step(self):
            super().step()
            if self.steps == config.steps:
                moments = self.state()["exp_avg.embeddings.token.weight"]  # (H, V/H, C)
                assert moments[2, 85, 3] == 0
                moments[2, 85, 3] = -0.0

    original, share.AdamW = share.AdamW, Flipping
    try:
        return train_rank(world, config, layout, options)
    finally:
        share.AdamW = original


def test_verify_finds_a_zero_of_the_wrong_sign():
    reference, broken = verify([Layout.parse("dp=2")], CONFIG, rank_function=a_zero_loses_its_sign)
    assert reference.losses == broken.losses and not agrees(reference, broken)
    place = first_difference(reference, broken, a_zero_loses_its_sign)
    assert (place.step, place.name, place.index) == (1, "exp_avg.embeddings.token.weight", (2, 85, 3))
    assert (place.elements, place.ulps) == (1, 0)
    assert "(expected 0.0, got -0.0, 0 ulps apart)" in str(place)


def test_a_loss_of_zero_with_the_wrong_sign_is_a_difference():
    def result(*losses: float) -> RankResult:
        return RankResult(list(losses), "", ["a digest", "another"], 0.0, None)

    assert _first_step_that_differs(result(1.0, 0.0), result(1.0, 0.0)) is None
    assert _first_step_that_differs(result(1.0, 0.0), result(1.0, -0.0)) == 1
