"""The worker: claims runs and drives them."""
