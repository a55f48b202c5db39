"""SGLang's rules on the calendar: decode batches by number, prefill batches between them."""
