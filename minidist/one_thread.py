"""Pins the BLAS to one thread. Importing minidist does so first of all, before anything loads NumPy.

A rank stands for one device, so it gets one core, and the bits of a product may depend on the number of threads that
compute it.
"""

import os
import sys

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.environ[_name] = "1"  # ranks are child processes and inherit it

if "numpy" in sys.modules:  # in a notebook, say: the BLAS has read the environment already, so set the loaded library
    from threadpoolctl import threadpool_limits

    threadpool_limits(limits=1, user_api="blas")
