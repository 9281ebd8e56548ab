"""What ranks say to each other: six calls on tensors and objects; nesting, padding and checks above them."""
