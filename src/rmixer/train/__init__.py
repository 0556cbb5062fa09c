"""Training: one function, its optimizers, and the process that a runner starts."""
