"""Functions that have lines of C for a GPU are functions like any other."""

from minidist.comm.runtime import serialization
from minidist.nn.optim.clip import grad_norm

SOURCE = "def norm(parameters):\n    return grad_norm(parameters)\n"


def test_a_function_of_a_notebook_that_calls_one_can_be_sent_to_ranks():
    """A notebook's function travels with all that it refers to, which must not go round in circles."""
    notebook = {"__name__": "__main__", "grad_norm": grad_norm}
    exec(SOURCE, notebook)
    assert serialization.loads(serialization.dumps(notebook["norm"]))([]) == 0.0
