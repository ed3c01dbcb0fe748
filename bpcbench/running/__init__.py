"""Running stages: the queue, the engines, the workers and the bodies of stages."""
