"""For those who write tasks: the pytest plugin, assertions, mutants, and stubs made from solutions."""
