"""What SGLang decides by itself."""
