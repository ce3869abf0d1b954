"""The topics of the store's interface; `Store` combines them."""
