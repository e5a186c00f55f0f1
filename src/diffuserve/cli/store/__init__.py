"""Commands that keep models: downloaded, published, quantized, compiled."""
