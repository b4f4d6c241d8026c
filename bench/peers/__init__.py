"""One folder a peer: what it needs and a worker that runs in an environment of its own."""
