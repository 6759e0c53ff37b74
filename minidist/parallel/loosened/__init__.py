"""Steps in which ranks do not wait for each other: parameter servers, local SGD, updates one step late."""
