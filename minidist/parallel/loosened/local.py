from minidist.parallel.axis import Axis


class LocalSGD(Axis):
    pass
