"""Ranks that an MPI launcher has started: ``mpiexec``, or Slurm's ``srun``."""
