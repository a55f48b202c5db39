"""What a run says in words: verdicts, tails, claims, backing."""
