"""Those who decode under SGLang's rules, as columns: a batch of them is worked out for all together."""
