"""What the projection costs: beside the plain loop, the memory's speed, other libraries and whole training steps."""
