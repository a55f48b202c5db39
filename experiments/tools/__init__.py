"""What other tools write: results of benchmarks, scrapes and logs of servers. A file a format."""
