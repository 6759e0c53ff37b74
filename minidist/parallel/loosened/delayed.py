from minidist.parallel.axis import Axis


class Delayed(Axis):
    pass
