"""The life of ranks: started, given functions to run, watched, ended."""
