"""Tools for authors of tasks: the pytest plugin, assertions, mutants, and stubs made from solutions."""
