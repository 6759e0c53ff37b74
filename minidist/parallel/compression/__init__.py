"""What is sent in place of gradients: fewer bits, fewer elements, lower rank."""
