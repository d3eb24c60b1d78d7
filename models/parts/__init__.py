"""What systems are built of: backbones, tokenizing, packing, pooling, towers, heads."""
