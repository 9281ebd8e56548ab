"""Ways of training on several processes, and the wrappers that go with them."""
