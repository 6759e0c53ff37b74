"""Methods in which ranks do not wait for each other in a step: parameter servers, local SGD, delayed updates."""
