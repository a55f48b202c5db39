"""What GPUs draw, watts and joules."""
