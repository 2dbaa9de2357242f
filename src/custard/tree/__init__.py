"""Decision trees that are policies: reading them off, making them smaller, and what people do with them."""
