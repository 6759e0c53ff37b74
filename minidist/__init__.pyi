"""What editors and type checkers read: the names that __init__.py imports at their first use."""

from minidist import backend as backend
from minidist.comm import *  # noqa: F403
from minidist.nn.config import GPTConfig as GPTConfig
from minidist.nn.data import load_corpus as load_corpus
from minidist.nn.gpt import GPT as GPT
from minidist.nn.optim.optimizers import AdamW as AdamW
from minidist.nn.tensor import Tensor as Tensor
from minidist.nn.tensor import no_grad as no_grad
from minidist.train.config import TrainConfig as TrainConfig
from minidist.train.layout import Layout as Layout
from minidist.train.result import RunOptions as RunOptions
from minidist.train.trainer import run as run
from minidist.train.trainer import train_rank as train_rank
from minidist.verify.comparison import agrees as agrees
from minidist.verify.comparison import bits as bits
from minidist.verify.comparison import first_difference as first_difference
from minidist.verify.ulps import ulps_between as ulps_between

WHERE: dict[str, str]
__version__: str
