"""What happens over time in a serving cluster: scheduler, KV cache, speculation, clients, metrics."""
