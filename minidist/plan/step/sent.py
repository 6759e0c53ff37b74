"""What one rank sends for one axis in one planned step."""

from dataclasses import dataclass

from minidist.plan.step.collectives import Group


@dataclass(frozen=True)
class Sent:
    """What one axis sends, all calls of a step together.

    Attributes:
        axis: of the layout. The two ends of a tied weight are pp's all-reduce, copies of hybrid sharding dp's.
        collective: its name. group: those that take part.
        nbytes: sent by one rank. seconds: that it takes, hidden or not. exposed: seconds that nothing hides.
    """

    axis: str
    collective: str
    group: Group
    nbytes: float
    seconds: float
    exposed: float
