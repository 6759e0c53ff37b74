"""What happens around every operation: precision, storage, FLOPs, traces and checks, as layers about autograd."""
