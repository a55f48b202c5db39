"""SGLang's scheduler: a second set of rules beside vLLM's, over the same sequences, batches and prices."""
